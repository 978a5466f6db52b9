"""Ask Kafka's brokers, without a JVM. Every wait is bounded; every failure is named.

librdkafka retries by itself, and reports an unknown host, a wrong password and a TLS mismatch alike, as a time-out. The
cause is only told to `error_cb`, so the client collects what that hears, and prefers it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from draindown.base.clock import EPOCH
from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.sources.kafka.offsets import Available, Span
from draindown.sources.kafka.options import of_librdkafka
from draindown.spec.kafka import KafkaSource

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_STEP = 0.05  # seconds between looks at what error_cb heard
_FRESH = 0.2  # seconds until partitions that have no leader yet are asked for again; each time a bit longer
_SAMPLED = 20  # records of a sample that are read at once, whatever partitions they are of
_SAMPLE_SECONDS = 2.0


@dataclass(frozen=True)
class Policy:
    """What a topic's settings say of its records' lives. `retention_ms`, `retention_bytes`: None without a bound."""

    compacted: bool
    deleted: bool
    retention_ms: int | None
    retention_bytes: int | None


@dataclass(frozen=True)
class Seen:
    """One look at a cluster: the partitions of the source's topics, and the topics' settings."""

    partitions: tuple[Available, ...]
    policies: Mapping[str, Policy]


@dataclass(frozen=True)
class Sample:
    """A few unread records: when the oldest of each partition was written, and bytes of key and value per record."""

    oldest: Mapping[tuple[str, int], datetime]
    record_bytes: float | None


class Client:
    """A client of the source's cluster. Its threads end with the process.

    Methods raise TransientError `kafka-unreachable`; TerminalError `kafka-auth`, `kafka-tls`, `kafka-denied`.
    Construction raises TerminalError `kafka-client-missing`, `secret-missing`, `kafka-options`.
    """

    def __init__(self, source: KafkaSource, environ: Mapping[str, str] = os.environ) -> None:
        self._source, self._wait = source, float(source.kafka.request_timeout)
        self._heard: list[KafkaError] = []
        self._options = of_librdkafka(source.kafka, environ) | {"error_cb": self._heard.append}
        with self._named("connect"):
            self._admin = _library("admin").AdminClient(dict(self._options))

    def look(self) -> Seen:
        """Return partitions, offsets and settings of the source's topics that exist, in one round of requests."""
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
                Available(name, number, id, first[name, number], max(last[name, number], first[name, number]))
                for name, number, id in parts
            ]
            return Seen(tuple(found), self._policies(sorted(described)))

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of those of `topics` that exist."""
        with self._named("look at the topics"):
            return {name: _hex(one.topic_id) for name, one in self._described(topics).items()}

    def at_time(self, places: Sequence[tuple[str, int]], at: datetime) -> dict[tuple[str, int], int | None]:
        """Return the first offset written at a time or later, per partition; None if there is none so far."""
        spec = _library("admin").OffsetSpec.for_timestamp(int(at.timestamp() * 1000))
        with self._named("look for a time in the topics"):
            found = self._offsets(places, spec)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def sample(self, spans: Iterable[Span], seconds: float = _SAMPLE_SECONDS) -> Sample:
        """Read the first few records of each span. Partitions that don't answer in time are left out."""
        wanted = [span for span in spans if span.size]
        if not wanted:
            return Sample({}, None)
        with self._named("read a few records"):
            return self._sampled(wanted, time.monotonic() + min(seconds, self._wait))

    def _sampled(self, wanted: Sequence[Span], until: float) -> Sample:
        library = _library()
        consumer = library.Consumer(
            self._options
            | {
                "group.id": "draindown",  # required, but no group is joined
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
                "queued.max.messages.kbytes": 8192,
            }
        )
        oldest: dict[tuple[str, int], datetime] = {}
        sizes: list[int] = []
        silent = {span.place for span in wanted}
        try:
            consumer.assign([library.TopicPartition(s.topic, s.partition, s.start) for s in wanted])
            while silent and time.monotonic() < until:
                answered: set[tuple[str, int]] = set()
                for message in (one for one in consumer.consume(_SAMPLED, 0.1) if one.error() is None):
                    sizes.append(len(message.key() or b"") + len(message.value() or b""))
                    kind, at = message.timestamp()
                    place = (message.topic(), message.partition())
                    if place in silent - answered and kind != library.TIMESTAMP_NOT_AVAILABLE:
                        oldest[place] = _moment(at)
                    answered.add(place)
                # what a partition has more of would keep the first records of others waiting
                consumer.pause([library.TopicPartition(*place) for place in answered & silent])
                silent -= answered
        finally:
            consumer.close()
        return Sample(oldest, sum(sizes) / len(sizes) if sizes else None)

    def _topics(self) -> list[str]:
        if self._source.kafka.pattern is None:
            return list(self._source.kafka.topics)
        listed = self._listed()
        return sorted(name for name in listed if self._source.matches(name) and not name.startswith("__"))

    def _listed(self) -> Iterable[str]:
        try:
            return list(self._admin.list_topics(timeout=self._wait).topics)
        finally:
            self._admin.poll(0)

    def _described(self, topics: Sequence[str]) -> dict[str, Any]:
        """Return what the brokers say of those of `topics` that exist."""
        if not topics:
            return {}
        library = _library()
        asked = self._admin.describe_topics(library.TopicCollection(list(topics)), request_timeout=self._wait)
        found: dict[str, Any] = {}
        for name, future in asked.items():
            try:
                found[name] = self._result(future)
            except library.KafkaException as error:
                if error.args[0].code() != library.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _offsets(self, places: Sequence[tuple[str, int]], spec: Any) -> dict[tuple[str, int], int]:
        """Return offsets by partition. Only partitions that exist may be asked for: others are never answered."""
        library = _library()
        left, found = list(places), {}
        until, pause = time.monotonic() + self._wait, _FRESH
        while True:
            asked = (
                self._admin.list_offsets(
                    {library.TopicPartition(*place): spec for place in left},
                    isolation_level=library.IsolationLevel.READ_COMMITTED,
                    request_timeout=self._wait,
                )
                if left
                else {}
            )
            again: list[tuple[str, int]] = []
            for where, future in asked.items():
                try:
                    found[where.topic, where.partition] = int(self._result(future).offset)
                except library.KafkaException as error:
                    if error.args[0].code() not in _leaderless(library) or time.monotonic() > until:
                        raise
                    again.append((where.topic, where.partition))
            left = again
            if not left:
                break
            time.sleep(pause)  # new partitions get their leaders within moments, hundreds of them within seconds
            pause *= 1.5
        return found

    def _policies(self, topics: Sequence[str]) -> dict[str, Policy]:
        admin = _library("admin")
        asked = (
            self._admin.describe_configs(
                [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in topics], request_timeout=self._wait
            )
            if topics
            else {}
        )
        return {
            where.name: _policy({name: one.value for name, one in self._result(future).items()})
            for where, future in asked.items()
        }

    def _result(self, future: Future[Any]) -> Any:
        """Return a future's result. Raises at once if the brokers refused this client, which would go on trying."""
        until = time.monotonic() + self._wait + 1
        while not future.done() and time.monotonic() < until:
            self._admin.poll(_STEP)
            if (error := self._refused()) is not None:
                raise error
        return future.result(_STEP)

    def _refused(self) -> DraindownError | None:
        named = (self._of(one) for one in list(self._heard))
        # a handshake may also break because a broker restarts
        return next((error for error in named if error is not None and error.code != "kafka-tls"), None)

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
        heard = "; ".join(dict.fromkeys(one.str() for one in self._heard)) or str(told or "no answer")
        worst = next((one for one in kinds if isinstance(one, TerminalError)), None)
        return worst or TransientError(
            "kafka-unreachable",
            tried=f"{tried} of {self._where}",
            found=f"{heard[:400]} (after {self._wait:.0f} s at most)",
            next="draindown lag   # once the brokers answer; the next run goes on by itself",
        )

    @property
    def _where(self) -> str:
        return f"{self._source.place} at {self._source.kafka.bootstrap_servers}"

    def _of(self, error: KafkaError) -> DraindownError | None:
        """Return the terminal error that librdkafka's error stands for; None if it may pass."""
        codes, text = _library().KafkaError, error.str()
        code = error.code()
        if "SSL handshake failed" in text or code == codes._SSL:
            return self._error("kafka-tls", text, "check security_protocol, ssl_ca_location and the broker's port")
        if code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes.UNSUPPORTED_SASL_MECHANISM):
            return self._error("kafka-auth", text, "check sasl_mechanism, sasl_username and the secret's value")
        if code in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
        ):
            return self._error(
                "kafka-denied", text, "grant this user DESCRIBE, DESCRIBE_CONFIGS and READ on the topics"
            )
        if code == codes._INVALID_ARG:
            return self._error("kafka-options", text, "correct `kafka` in the pipeline's source")
        return None

    def _error(self, code: str, found: str, help: str) -> TerminalError:
        return TerminalError(
            code, tried=f"connect to {self._where}", found=found[:400], next=f"draindown validate   # {help}"
        )


def _library(part: str = "") -> Any:
    """Return the client's module. It is imported where it is used: flows without Kafka do not need it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise TerminalError(
            "kafka-client-missing",
            tried="import confluent_kafka",
            found=str(error),
            next="pip install 'draindown[kafka]'",
        ) from error
    return getattr(confluent_kafka, part) if part else confluent_kafka


def _leaderless(library: Any) -> tuple[int, ...]:
    codes = library.KafkaError
    return (codes.NOT_LEADER_FOR_PARTITION, codes.LEADER_NOT_AVAILABLE, codes.UNKNOWN_TOPIC_OR_PART)


def _policy(settings: Mapping[str, str | None]) -> Policy:
    def bound(name: str) -> int | None:
        value = int(settings.get(name) or -1)
        return value if value >= 0 else None

    policies = (settings.get("cleanup.policy") or "delete").split(",")
    return Policy("compact" in policies, "delete" in policies, bound("retention.ms"), bound("retention.bytes"))


def _hex(uuid: Any) -> str:
    """Return a topic id as 32 hexadecimal digits. Its text is base64, which Kafka's own tools spell differently."""
    mask = (1 << 64) - 1
    return f"{uuid.get_most_significant_bits() & mask:016x}{uuid.get_least_significant_bits() & mask:016x}"


def _moment(milliseconds: int) -> datetime:
    return EPOCH + timedelta(milliseconds=milliseconds)
