"""Ask Kafka's brokers, without a JVM. Every wait is bounded; every failure is named.

librdkafka retries by itself, and reports an unknown host, a wrong password and a TLS mismatch
alike, as a time-out. The cause is only told to `error_cb`, so the client collects what that hears,
and prefers it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from draindown.base.clock import EPOCH
from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.base.secrets import redacted
from draindown.config.kafka import KafkaSource
from draindown.sources.kafka.library import library as _library
from draindown.sources.kafka.offsets import Available, Span
from draindown.sources.kafka.options import of_librdkafka, secrets_of
from draindown.sources.kafka.retention import Policy, policy

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_STEP = 0.05  # seconds between looks at what error_cb heard
_FRESH = 0.2  # seconds until partitions that have no leader yet are asked for again; each time a bit longer
_SAMPLED = 20  # records of a sample that are read at once, whatever partitions they are of
_SAMPLE_SECONDS = 2.0
_ASKING: dict[str, str | bool] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_uncommitted",  # an open transaction would keep the answer waiting
}


@dataclass(frozen=True)
class Seen:
    """One look at a cluster: the partitions of the source's topics, and the topics' settings."""

    partitions: tuple[Available, ...]
    policies: Mapping[str, Policy]


@dataclass(frozen=True)
class Sample:
    """A few unread records: when the oldest of each partition was written, and bytes of key and
    value per record.
    """

    oldest: Mapping[tuple[str, int], datetime]
    record_bytes: float | None


class Client:
    """A client of the source's cluster. Its threads end with the process.

    Methods raise TransientError `kafka-unreachable`; TerminalError `kafka-auth`, `kafka-tls`,
    `kafka-denied`. Construction raises TerminalError `kafka-client-missing`, `secret-missing`,
    `kafka-options`.
    """

    def __init__(self, source: KafkaSource, environ: Mapping[str, str] = os.environ) -> None:
        self._source, self._wait = source, float(source.kafka.request_timeout)
        self._heard: list[KafkaError] = []
        self._secrets = secrets_of(source.kafka, environ)
        self._options = of_librdkafka(source.kafka, environ) | {"error_cb": self._heard.append}
        with self._named("connect"):
            self._admin = _library("admin").AdminClient(dict(self._options))

    def look(self) -> Seen:
        """Return partitions, offsets and settings of the source's topics that exist, in one round
        of requests.
        """
        with self._named("look at the topics"):
            described = self._described(self._topics())
            parts = [
                (name, part.id, _hex(one.topic_id))
                for name, one in sorted(described.items())
                for part in one.partitions
            ]
            spec = _library("admin").OffsetSpec
            first = self._offsets([(name, number) for name, number, _ in parts], spec.earliest())
            last = self._offsets([(name, number) for name, number, _ in parts], spec.latest())
            found = [
                Available(
                    name,
                    number,
                    id,
                    start,
                    max(end, start),
                    None if epoch is None or epoch < 0 else epoch,
                )
                for name, number, id in parts
                for (start, _), (end, epoch) in [(first[name, number], last[name, number])]
            ]
            return Seen(tuple(found), self._policies(sorted(described)))

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of those of `topics` that exist."""
        with self._named("look at the topics"):
            return {name: _hex(one.topic_id) for name, one in self._described(topics).items()}

    def at_time(
        self, places: Sequence[tuple[str, int]], at: datetime
    ) -> dict[tuple[str, int], int | None]:
        """Return the first offset written at a time or later, per partition; None if there is none
        so far.
        """
        spec = _library("admin").OffsetSpec.for_timestamp(int(at.timestamp() * 1000))
        with self._named("look for a time in the topics"):
            found = self._offsets(places, spec)
        return {place: offset if offset >= 0 else None for place, (offset, _) in found.items()}

    def truncations(self, spans: Sequence[Span]) -> dict[tuple[str, int], int]:
        """Return where logs were truncated to below `until` of their spans, since the leaders of
        the spans' epochs.

        The client asks the leaders (KIP-320) before it reads: a record, the end or this error
        answers for a partition.
        """
        found: dict[tuple[str, int], int] = {}
        silent, library = {span.place for span in spans}, _library()
        with self._named("ask for truncated logs"):
            places = [
                library.TopicPartition(s.topic, s.partition, s.until, leader_epoch=s.epoch)
                for s in spans
            ]
            for message in self._first(places, _ASKING, time.monotonic() + self._wait):
                place, error = (message.topic(), message.partition()), message.error()
                if error is None or error.code() == error._PARTITION_EOF:
                    silent.discard(place)
                elif (end := _truncation(error)) is None:
                    self._heard.append(error)
                else:
                    silent.discard(place)
                    found |= {place: end} if end >= 0 else {}  # the leader knows of no such epoch
            if silent:
                raise self._refused() or TimeoutError
        return found

    def sample(self, spans: Iterable[Span], seconds: float = _SAMPLE_SECONDS) -> Sample:
        """Read the first few records of each span. Partitions that don't answer in time are left
        out.
        """
        wanted = [span for span in spans if span.size]
        oldest: dict[tuple[str, int], datetime] = {}
        sizes: list[int] = []
        with self._named("read a few records"):
            library, until = _library(), time.monotonic() + min(seconds, self._wait)
            places = [library.TopicPartition(s.topic, s.partition, s.start) for s in wanted]
            for message in self._first(places, {"isolation.level": "read_committed"}, until):
                if message.error() is None:
                    sizes.append(len(message.key() or b"") + len(message.value() or b""))
                    kind, at = message.timestamp()
                    if kind != library.TIMESTAMP_NOT_AVAILABLE:
                        oldest.setdefault((message.topic(), message.partition()), _moment(at))
        return Sample(oldest, sum(sizes) / len(sizes) if sizes else None)

    def _first(
        self, places: Sequence[Any], more: Mapping[str, str | bool], until: float
    ) -> Iterator[Any]:
        """Yield the first messages of each partition, errors included, until each has answered or
        it is late.
        """
        if not (silent := {(one.topic, one.partition) for one in places}):
            return
        library = _library()
        consumer = library.Consumer(
            {
                **self._options,
                "group.id": "draindown",  # required, but no group is joined
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "queued.max.messages.kbytes": 8192,
                **more,
            }
        )
        try:
            consumer.assign(places)
            while silent and time.monotonic() < until:
                answered: set[tuple[str, int]] = set()
                for message in consumer.consume(_SAMPLED, 0.1):
                    yield message
                    if (error := message.error()) is None or error.code() in (
                        error._PARTITION_EOF,
                        error._AUTO_OFFSET_RESET,
                    ):
                        answered.add((message.topic(), message.partition()))
                # what a partition has more of would keep the first records of others waiting
                consumer.pause([library.TopicPartition(*place) for place in answered & silent])
                silent -= answered
        finally:
            consumer.close()

    def _topics(self) -> list[str]:
        if self._source.kafka.topic_pattern is None:
            return list(self._source.kafka.topics)
        try:
            listed = list(self._admin.list_topics(timeout=self._wait).topics)
        finally:
            self._admin.poll(0)
        return sorted(
            name for name in listed if self._source.matches(name) and not name.startswith("__")
        )

    def _described(self, topics: Sequence[str]) -> dict[str, Any]:
        """Return what the brokers say of those of `topics` that exist."""
        if not topics:
            return {}
        library = _library()
        asked = self._admin.describe_topics(
            library.TopicCollection(list(topics)), request_timeout=self._wait
        )
        found: dict[str, Any] = {}
        for name, future in asked.items():
            try:
                found[name] = self._result(future)
            except library.KafkaException as error:
                if error.args[0].code() != library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _offsets(
        self, places: Sequence[tuple[str, int]], spec: Any
    ) -> dict[tuple[str, int], tuple[int, int | None]]:
        """Return offset and leader epoch by partition. Don't ask for a partition that doesn't
        exist: it never answers.
        """
        library = _library()
        codes = library.KafkaError
        leaderless = (
            codes.NOT_LEADER_FOR_PARTITION,
            codes.UNKNOWN_LEADER_EPOCH,
            codes.FENCED_LEADER_EPOCH,
            codes.LEADER_NOT_AVAILABLE,
            codes.UNKNOWN_TOPIC_OR_PART,
        )
        offsets: dict[tuple[str, int], tuple[int, int | None]] = {}
        unanswered = list(places)
        deadline = time.monotonic() + self._wait
        pause = _FRESH
        while unanswered:
            futures = self._admin.list_offsets(
                {library.TopicPartition(*place): spec for place in unanswered},
                isolation_level=library.IsolationLevel.READ_COMMITTED,
                request_timeout=self._wait,
            )
            unanswered = []
            for partition, future in futures.items():
                place = partition.topic, partition.partition
                try:
                    answer = self._result(future)
                    offsets[place] = int(answer.offset), answer.leader_epoch
                except library.KafkaException as error:
                    if error.args[0].code() not in leaderless or time.monotonic() > deadline:
                        raise
                    unanswered.append(place)
            if unanswered:
                # new partitions get their leaders within moments, hundreds of them within seconds
                time.sleep(pause)
                pause *= 1.5
        return offsets

    def _policies(self, topics: Sequence[str]) -> dict[str, Policy]:
        admin = _library("admin")
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in topics]
        asked = (
            self._admin.describe_configs(resources, request_timeout=self._wait) if topics else {}
        )
        return {
            where.name: policy({name: one.value for name, one in self._result(future).items()})
            for where, future in asked.items()
        }

    def _result(self, future: Future[Any]) -> Any:
        """Return a future's result. Raises at once if the brokers refused this client, which would
        go on trying.
        """
        until = time.monotonic() + self._wait + 1
        while not future.done() and time.monotonic() < until:
            self._admin.poll(_STEP)
            if (error := self._refused()) is not None:
                raise error
        return future.result(_STEP)

    def _refused(self) -> DraindownError | None:
        named = (self._of(one) for one in list(self._heard))
        # a handshake may also break because a broker restarts
        return next(
            (error for error in named if error is not None and error.code != "kafka-tls"), None
        )

    @contextmanager
    def _named(self, tried: str) -> Iterator[None]:
        library = _library()
        try:
            yield
        except (library.KafkaException, TimeoutError) as error:
            with suppress(AttributeError):
                self._admin.poll(0)
            raise self._explained(tried, error) from error

    def _explained(self, tried: str, error: BaseException) -> DraindownError:
        library = _library()
        told = error.args[0] if isinstance(error, library.KafkaException) and error.args else None
        kinds = [self._of(one) for one in [*self._heard, *([told] if told is not None else [])]]
        heard = "; ".join(dict.fromkeys(one.str() for one in self._heard)) or str(
            told or "no answer"
        )
        worst = next((one for one in kinds if isinstance(one, TerminalError)), None)
        return worst or TransientError(
            "kafka-unreachable",
            tried=f"{tried} of {self._where}",
            found=f"{redacted(heard, self._secrets)[:400]} (after {self._wait:.0f} s at most)",
            next="draindown status   # once the brokers answer; the next run goes on by itself",
        )

    @property
    def _where(self) -> str:
        return f"{self._source.place} at {self._source.kafka.bootstrap_servers}"

    def _of(self, error: KafkaError) -> DraindownError | None:
        """Return the terminal error that librdkafka's error stands for; None if it may pass."""
        codes, text = _library().KafkaError, error.str()
        code = error.code()
        if "SSL handshake failed" in text or code == codes._SSL:
            return self._error(
                "kafka-tls", text, "check security_protocol, ssl_ca_location and the broker's port"
            )
        if code in (
            codes._AUTHENTICATION,
            codes.SASL_AUTHENTICATION_FAILED,
            codes.UNSUPPORTED_SASL_MECHANISM,
        ):
            return self._error(
                "kafka-auth", text, "check sasl_mechanism, sasl_username and the secret's value"
            )
        if code in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
        ):
            return self._error(
                "kafka-denied",
                text,
                "grant this user DESCRIBE, DESCRIBE_CONFIGS and READ on the topics",
            )
        if code == codes._INVALID_ARG:
            return self._error("kafka-options", text, "correct `kafka` in the pipeline's source")
        return None

    def _error(self, code: str, found: str, help: str) -> TerminalError:
        text = redacted(found, self._secrets)[:400]
        return TerminalError(
            code,
            tried=f"connect to {self._where}",
            found=text,
            next=f"draindown validate   # {help}",
        )


def _truncation(error: KafkaError) -> int | None:
    """Return the offset that a log was truncated to, which the client says in words only; None for
    other errors.
    """
    if type(error)(error._LOG_TRUNCATION).str() not in error.str():
        return None
    told = re.search(r"end offset is (-?\d+)", error.str())
    return int(told[1]) if told else 0  # all that was read is in doubt


def _hex(uuid: Any) -> str:
    """Return a topic id as 32 hexadecimal digits. Its text is base64, which Kafka's own tools spell
    differently.
    """
    mask = (1 << 64) - 1
    return f"{uuid.get_most_significant_bits() & mask:016x}{uuid.get_least_significant_bits() & mask:016x}"


def _moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)
