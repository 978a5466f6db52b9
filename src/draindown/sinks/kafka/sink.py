"""A Kafka topic as a sink, at least once: a batch that is sent again has the same messages with the
same ids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from draindown.base.errors import DraindownError, TerminalError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.conditions import null_keys, quoted, years
from draindown.sinks.kafka.client import Client, broken_by
from draindown.sinks.kafka.messages import Message, Messages
from draindown.sinks.port import ORIGIN, Sink, SinkBatch, SinkColumn, SinkPlace
from draindown.sinks.refusals import CODE, refused
from draindown.sources.kafka.library import library

if TYPE_CHECKING:
    import pyarrow
    from confluent_kafka import KafkaError

_POLLED = 1_000  # messages between looks at delivery reports
_WAIT = 0.1  # seconds until the queue of a producer is tried again
_BROKEN = (
    "_FATAL",
    "_STATE",
)  # what a producer says of any message once another one or a transaction failed
_CONSEQUENCES = (
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "_INVALID_DIFFERENT_RECORD",
)  # of the same failures, in reports
_REPORTED = 1.0  # seconds within which a client that is broken reports the message that broke it
_SLACK = 5.0  # seconds that delivery reports may come late
_AROUND = 512  # bytes of a message beside its key and value: headers, lengths
_PER_COLUMN = 8  # of a value's JSON: quotes, colon, comma, null
_LONGEST_NUMBER = 48  # characters of any value that is no text, binary or nested
_BY_LENGTH = ("string", "binary", "array", "map", "struct")
_MAX_BYTES = "max.message.bytes"


class KafkaTopic(Sink):
    """A topic. It remembers no batch and no epoch: consumers drop ids that they have seen.

    Methods raise what `client` names, and TerminalError `sink-unfit`, `sink-refused`.
    """

    records = False

    def __init__(
        self, spec: KafkaSink, place: SinkPlace, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._spec, self._place = spec, place
        self._client = Client(spec, place, environ)
        self._failed: list[tuple[KafkaError, str]] = []
        self._found: Mapping[str, str] | None = None

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """See `Sink.check`."""
        keys, names = (
            [column.name for column in columns if column.key],
            {column.name for column in columns},
        )
        problems = [] if keys else ["no column is a key"]
        problems += [
            f"partition_by: no column {name} is sent"
            for name in self._spec.partition_by or ()
            if name not in names
        ]
        if self._spec.partition_by and keys != [ORIGIN]:
            problems.append("partition_by: rows of a target with keys are placed by these")
        settings = self._settings()
        if keys == [ORIGIN] and "compact" in settings.get("cleanup.policy", ""):
            problems.append(
                "the topic is compacted, which would drop rows of a target without keys"
            )
        if problems:
            raise TerminalError(
                "sink-unfit",
                tried=f"look at {self._spec.place}",
                found="; ".join(problems),
                next="draindown validate   # correct this sink",
            )

    def fence(self, epoch: int) -> None:
        """Do nothing: the topic keeps no epoch, and messages of a frozen driver are known by their
        ids.
        """

    def unsendable(self, columns: Sequence[SinkColumn]) -> Mapping[str, str]:
        """See `Sink.unsendable`. The bound of a message is the topic's; its size is judged a bit
        too large.
        """
        most = self._largest()
        keys = [column for column in columns if column.key]
        size = " + ".join([str(_AROUND), *map(_size, columns), *map(_size, keys)])
        found = {**null_keys(columns), "message-too-large": f"{size} > {most}"}
        for column in columns:
            found |= years(column)
        return found

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        """Return None: a topic keeps no record of batches."""
        del batch
        return None

    def send(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """See `Sink.send`. Returns once the brokers have confirmed every message."""
        messages = Messages(batch, columns, self._spec.partition_by or ())
        producer, self._failed = self._client.producer(largest=self._largest()), []
        try:
            with self._client.sending():
                for part in rows:
                    self._produce_all(producer, messages.of(part))
                self._confirm(producer)
        except BaseException:
            with ignored():
                producer.purge()  # nothing more of a batch that failed goes out
                producer.flush(_WAIT)
            raise

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """Return None: a topic can't tell what it holds."""
        del batch, columns, keys

    def close(self) -> None:
        """See `Sink.close`."""

    def _largest(self) -> int:
        return int(self._settings().get(_MAX_BYTES, 1_048_588))

    def _settings(self) -> Mapping[str, str]:
        """Return the topic's settings, which are asked for once: a sink lives as long as a
        batch.
        """
        if self._found is None:
            self._found = self._client.topic_settings()
        return self._found

    def _produce_all(self, producer: Any, messages: Iterable[Message]) -> None:
        for number, message in enumerate(messages):
            self._produce(producer, message)
            if number % _POLLED == 0:
                self._poll(producer, 0)

    def _confirm(self, producer: Any) -> None:
        """Wait until the brokers have all that was sent."""
        with self._client.naming(producer):
            left = producer.flush(self._client.delivery_timeout + _SLACK)
        self._raise_failed(producer)
        if left:
            raise self._client.named(library().KafkaError(library().KafkaError._TIMED_OUT))

    def _produce(self, producer: Any, message: Message) -> None:
        until = time.monotonic() + self._client.delivery_timeout + _SLACK
        report = partial(self._delivered, message.row)
        while True:
            try:
                producer.produce(
                    self._spec.topic,
                    message.value,
                    message.key,
                    headers=message.headers,
                    on_delivery=report,
                )
                return
            except BufferError:  # the queue is full until the brokers have confirmed some
                self._poll(producer, _WAIT)
                if time.monotonic() > until:
                    raise self._client.named(
                        library().KafkaError(library().KafkaError._TIMED_OUT)
                    ) from None
            except library().KafkaException as error:
                if error.args[0].name() not in _BROKEN:
                    raise self._named(error.args[0], message.row) from error
                raise self._named(*self._original(producer)) from error

    def _poll(self, producer: Any, seconds: float) -> None:
        with self._client.naming(producer):
            producer.poll(seconds)
        self._raise_failed(producer)

    def _delivered(self, row: str, error: KafkaError | None, message: Any) -> None:
        del message
        if error is not None:
            self._failed.append((error, row))

    def _raise_failed(self, producer: Any) -> None:
        """Raise the failure of a message, if a report says one."""
        if self._failed:
            raise self._named(*self._original(producer))

    def _original(self, producer: Any) -> tuple[KafkaError, str]:
        """Return the first failure that is no consequence of another one, with the row of its
        message; without a report of it, what broke the producer, and no row.

        The client refuses further messages, and may report consequences, before it hands out the
        report.
        """
        until = time.monotonic() + _REPORTED
        while True:
            found = next((one for one in self._failed if one[0].name() not in _CONSEQUENCES), None)
            if found is not None:
                return found
            if time.monotonic() > until:
                return broken_by(producer), ""
            with self._client.naming(producer):
                producer.poll(_WAIT)

    def _named(self, error: KafkaError, row: str = "") -> DraindownError:
        """Return the error that a client's error stands for; a message that is refused may be given
        up.
        """
        found = self._client.named(error)
        if found.code != CODE:
            return self._client.named(error, row)
        part = "any part of the batch may be in the topic; the same messages, with the same ids, are sent again"
        return refused(
            self._place,
            tried=found.tried,
            found=found.found,
            changed=part,
            key=row,
            ways=found.next,
        )


def ignored() -> AbstractContextManager[None]:
    """Ignore an error of a producer that is given up: the next driver ends what this one left
    open.
    """
    return suppress(library().KafkaException, DraindownError, SystemError)


def _size(column: SinkColumn) -> str:
    """Return the most bytes of a column in a message, in Spark SQL: a character of JSON may take
    six bytes.
    """
    name, around = quoted(column.name), len(column.name.encode()) + _PER_COLUMN
    base = column.type.partition("<")[0]
    if base not in _BY_LENGTH:
        return str(around + _LONGEST_NUMBER)
    if base == "string":
        return f"{around} + coalesce(octet_length({name}) + 6 * length({name}) - 6 * length({_plain(name)}), 0)"
    if base == "binary":
        return f"{around} + coalesce(4 * (octet_length({name}) + 2) / 3, 0)"
    return f"{around} + coalesce(2 * octet_length(to_json({name})), 0)"


def _plain(name: str) -> str:
    """Return the text without the characters that JSON escapes."""
    return f"regexp_replace({name}, '[\\\\x00-\\\\x1f\"\\\\\\\\]', '')"
