"""The topic that remembers batches which were sent exactly once: the epoch of each place, the
newest batch per writer.

A marker is committed in one transaction with the messages of its batch. The topic is compacted and
has one partition; its keys are place and writer, JSON lists, so that Kafka keeps the newest marker
of each. The epoch has the writer ''.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.client import Client
from draindown.sinks.port import SinkBatch, SinkPlace
from draindown.sources.kafka.library import library

_NOBODY = ""
_READ = 1_000  # messages at once
_WAIT = 0.1  # seconds for each look
_SLACK = 5.0  # seconds until the brokers have ended a transaction whose time is over
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}
"""The topic is read whole: what is not compacted yet stays a few segments of a megabyte."""


@dataclass(frozen=True)
class Marked:
    """What the topic has of one place.

    Attributes:
        epoch: the newest; None if nothing was ever recorded.
        since: the epoch whose driver found nothing of the place, and so began its records.
        batches: the newest batch of each writer, with the number of its portions that are there.
    """

    epoch: int | None = None
    since: int = 0
    batches: Mapping[str, tuple[SinkBatch, int]] = field(default_factory=dict)

    def portions(self, batch: SinkBatch) -> int | None:
        """Return how many portions of a batch are there; None if it is done.

        Only the newest batch of a writer is looked for. With other rows under its number none is
        there: a person gave those up. An earlier number is that of a lake which was restored from
        an older copy, as epochs exclude older drivers.
        """
        newest, done = self.batches.get(batch.writer, (None, 0))
        if newest is None:
            return 0
        same = (newest.number, newest.digest, newest.portions) == (
            batch.number,
            batch.digest,
            batch.portions,
        )
        return 0 if not same else None if newest.whole else done


class Markers:
    """The markers of one place. Methods raise what `Client` names, and TerminalError
    `sink-records`.
    """

    def __init__(self, client: Client, spec: KafkaSink, place: SinkPlace) -> None:
        self._client, self._spec, self._place = client, spec, place

    @property
    def command(self) -> str:
        """The command that makes the topic, with Kafka's own tool."""
        settings = "".join(f" --config {name}={value}" for name, value in _SETTINGS.items())
        return (
            f"kafka-topics.sh --create --topic {self._spec.marker_topic} --partitions 1{settings}"
        )

    def check(self) -> None:
        """Raise TerminalError `sink-records` unless batches could be recorded."""
        settings = self._settings()
        if settings is None:
            self._make(try_only=True)
        else:
            self._judge(settings)

    def make(self) -> None:
        """Make the topic if there is none. Raises as `check` does."""
        settings = self._settings()
        if settings is None:
            self._make()
        else:
            self._judge(settings)

    def look(self) -> Marked:
        """Return what `read` does, nothing if there is no such topic yet."""
        return Marked() if self._settings() is None else self.read()

    def read(self) -> Marked:
        """Return what was committed of the place before the call.

        Markers of other sinks lie between. A reader of committed messages gets nothing behind the
        first open transaction of a partition, whoever has it: so it reads on until it is behind all
        that was written before, which takes as long as the oldest of these transactions. Raises
        TransientError `sink-unreachable` if that is too long.
        """
        kafka = library()
        with self._client.naming():
            every = self._client.reader(self._spec.marker_topic)
            place = kafka.TopicPartition(self._spec.marker_topic, 0)
            at, end = every.get_watermark_offsets(place, timeout=self._spec.request_timeout)
            every.close()
            values = self._values(at, end) if at < end else {}
        epoch = values.pop(_NOBODY, None)
        batches = {writer: self._batch(writer, value) for writer, value in values.items()}
        if epoch is None:
            return Marked(None, 0, batches)
        return Marked(int(epoch["epoch"]), int(epoch["since"]), batches)

    def of_epoch(self, marked: Marked) -> dict[str, bytes]:
        """Return the marker of an epoch, as arguments of `Producer.produce`."""
        return self._marker(_NOBODY, {"epoch": marked.epoch, "since": marked.since})

    def of_batch(self, batch: SinkBatch, done: int) -> dict[str, bytes]:
        """Return the marker of a batch of which `done` portions are sent."""
        names = ("epoch", "number", "generation", "kind", "batch", "rows", "digest", "portions")
        return self._marker(
            batch.writer, {name: getattr(batch, name) for name in names} | {"done": done}
        )

    def _settings(self) -> Mapping[str, str] | None:
        """Return the settings of the topic; None if there is none."""
        try:
            return self._client.topic_settings(self._spec.marker_topic, read=True)
        except TerminalError as error:
            if error.code != "sink-missing":
                raise
            return None

    def _make(self, *, try_only: bool = False) -> None:
        try:
            self._client.make_topic(self._spec.marker_topic, _SETTINGS, try_only=try_only)
        except TerminalError as error:
            why = f"there is no such topic, and this user can't make it: {error.found}"
            raise self._unready(why, self.command) from error

    def _judge(self, settings: Mapping[str, str]) -> None:
        policy = settings.get("cleanup.policy")
        if policy != "compact":
            how = f"kafka-configs.sh --alter --topic {self._spec.marker_topic} --add-config cleanup.policy=compact"
            raise self._unready(
                f"its cleanup.policy is {policy}, which deletes markers after a while", how
            )

    def _values(self, at: int, end: int) -> dict[str, Any]:
        kafka, found = library(), dict[str, Any]()
        until = (
            time.monotonic() + self._spec.request_timeout + self._spec.transaction_timeout + _SLACK
        )
        committed = self._client.reader(self._spec.marker_topic, at)
        try:
            while at < end:
                for message in committed.consume(_READ, _WAIT):
                    error = message.error()
                    if error is None:
                        self._take(message, found)
                    elif error.code() != error._PARTITION_EOF:
                        raise kafka.KafkaException(error)
                    at = max(at, message.offset() + (error is None))
                if time.monotonic() > until:
                    raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))
        finally:
            committed.close()
        return found

    def _take(self, message: Any, found: dict[str, Any]) -> None:
        *place, writer = json.loads(message.key() or b'[""]')
        if place == self._mine and message.value():
            found[writer] = json.loads(message.value())

    def _batch(self, writer: str, value: dict[str, Any]) -> tuple[SinkBatch, int]:
        done = int(value.pop("done"))
        return SinkBatch(self._place, writer, **value, whole=done == value["portions"]), done

    @property
    def _mine(self) -> list[str]:
        return [self._place.lake, self._place.pipeline, self._place.flow, self._place.sink]

    def _marker(self, writer: str, value: Mapping[str, Any]) -> dict[str, bytes]:
        return {
            "key": json.dumps([*self._mine, writer]).encode(),
            "value": json.dumps(value).encode(),
        }

    def _unready(self, found: str, how: str) -> TerminalError:
        return TerminalError(
            "sink-records",
            tried=f"look at topic {self._spec.marker_topic}, which remembers the batches of {self._spec.place}",
            found=found,
            next=[how, self._place.command("plan")],
        )
