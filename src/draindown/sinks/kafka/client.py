"""Clients of a Kafka cluster for sending: what the brokers say of the topic, and a producer. Every
wait is bounded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.base.secrets import redacted
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.port import SinkPlace
from draindown.sources.kafka.library import library
from draindown.sources.kafka.options import of_librdkafka, secrets_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_STEP = 0.05  # seconds between looks at what error_cb heard
_TURN = 1.0  # seconds of one try to begin, which goes on at the next
_LONGEST = 400
_BATCH = 262_144  # bytes of a record batch
_PRODUCING: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Java's clients place keys
    "linger.ms": 20,
    "queue.buffering.max.messages": 100_000,
    "delivery.report.only.error": True,  # a flush waits for all of them; what succeeded needs no call
}
_TERMINAL = {
    "_AUTHENTICATION": ("sink-auth", "check sasl_mechanism, sasl_username and the secret's value"),
    "SASL_AUTHENTICATION_FAILED": (
        "sink-auth",
        "check sasl_mechanism, sasl_username and the secret's value",
    ),
    "UNSUPPORTED_SASL_MECHANISM": ("sink-auth", "check sasl_mechanism"),
    "_SSL": ("sink-tls", "check security_protocol, ssl_ca_location and the broker's port"),
    "TOPIC_AUTHORIZATION_FAILED": (
        "sink-denied",
        "grant this user DESCRIBE, DESCRIBE_CONFIGS and WRITE on the topic",
    ),
    "CLUSTER_AUTHORIZATION_FAILED": (
        "sink-denied",
        "grant this user IDEMPOTENT_WRITE on the cluster",
    ),
    "UNKNOWN_TOPIC_OR_PART": ("sink-missing", "create the topic, or correct `topic`"),
    "_UNKNOWN_TOPIC": ("sink-missing", "create the topic, or correct `topic`"),
    "_UNKNOWN_PARTITION": ("sink-missing", "create the topic, or correct `topic`"),
    "MSG_SIZE_TOO_LARGE": (
        "sink-refused",
        "raise the topic's max.message.bytes, or send fewer columns",
    ),
    "INVALID_MSG": ("sink-refused", "a topic that is compacted takes no message without a key"),
    "INVALID_RECORD": ("sink-refused", "a topic that is compacted takes no message without a key"),
    "POLICY_VIOLATION": ("sink-refused", "ask who made the cluster's policies"),
    "_INVALID_ARG": ("sink-options", "correct `kafka` of this sink"),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": (
        "sink-denied",
        "grant this user WRITE on the transactional id",
    ),
    "INVALID_TRANSACTION_TIMEOUT": (
        "sink-options",
        "lower `transaction_timeout`, or raise the brokers' transaction.max.timeout.ms",
    ),
}
_PARTLY = "any part of the batch may be in the topic; the same messages, with the same ids, are sent again"
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")


class Client:
    """Clients of the sink's cluster. Their threads end with the process.

    Methods raise TransientError `sink-unreachable`; TerminalError `sink-auth`, `sink-tls`,
    `sink-denied`, `sink-missing`, `sink-options`, `secret-missing`. Once another producer has the
    transactional id, TransientError `sink-fenced`.
    """

    delivery_timeout = 120
    """Seconds that a message may take until the brokers have it, retries included."""

    def __init__(
        self, spec: KafkaSink, place: SinkPlace, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._spec, self._place, self._environ, self._wait = (
            spec,
            place,
            environ,
            float(spec.request_timeout),
        )
        self._heard: list[KafkaError] = []
        self._sends = False
        self._has_met = False  # brokers have answered, so TLS is set up right
        library()

    def producer(self, transactional_id: str = "", largest: int = _BATCH) -> Any:
        """Return a new producer, of transactions where it has an id for them.

        `largest`: bytes of a record batch that the topic takes. A broker refuses a larger one
        whole, however small its messages are, and the client does not divide it.
        """
        longest = self.delivery_timeout
        more: dict[str, Any] = {
            "compression.type": "lz4",
            "batch.size": min(_BATCH, largest),
        }
        if transactional_id:
            timeout = self._spec.transaction_timeout
            longest = min(longest, timeout)
            more["socket.timeout.ms"] = min(self._spec.request_timeout, timeout) * 1000
            more |= {"transactional.id": transactional_id, "transaction.timeout.ms": timeout * 1000}
        # the brokers judge sizes: the topic may take more than the client's own bound
        more |= {"message.timeout.ms": longest * 1000, "message.max.bytes": 1_000_000_000}
        return self._made("", "Producer", _PRODUCING | more)

    def ready(self, producer: Any) -> None:
        """End all transactions of the producer's transactional id, and exclude the producers that
        began them.
        """
        kafka, until = library(), time.monotonic() + self._wait
        while True:
            try:
                producer.init_transactions(_TURN)
                self._has_met = True
                return
            except kafka.KafkaException as error:
                self._raise_refused()
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise self.named(error.args[0]) from error

    @contextmanager
    def naming(self, producer: Any = None) -> Iterator[None]:
        """Raise the error that a client's error within the block stands for; `producer`: the one
        that it calls.

        A client that has heard of a fatal error raises it from the call that serves its callbacks,
        but serves the callbacks behind it first. What these do makes Python raise SystemError in
        its place, with the fatal error as its cause or, once a callback has cleared it, with none;
        the producer still has it then.
        """
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            raise self.named(error.args[0]) from error
        except SystemError as error:
            if isinstance(error.__cause__, kafka.KafkaException):
                raise self.named(error.__cause__.args[0]) from error
            if producer is None:
                raise
            raise self.named(broken_by(producer)) from error

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Have errors within the block say that a part of the batch may be in the topic."""
        self._sends = True
        try:
            yield
        finally:
            self._sends = False

    def reader(self, topic: str, start: int | None = None) -> Any:
        """Return a reader of the first partition of a topic. With `start`: of committed messages
        from there on.
        """
        kafka = library()
        level = "read_uncommitted" if start is None else "read_committed"
        options = {
            "group.id": "draindown",
            "enable.auto.commit": False,
            "isolation.level": level,
        }  # no group is joined
        made = self._made(
            "", "Consumer", options | {"enable.partition.eof": True, "fetch.wait.max.ms": 10}
        )
        if start is not None:
            made.assign([kafka.TopicPartition(topic, 0, start)])
        return made

    def make_topic(
        self, topic: str, settings: Mapping[str, str], *, try_only: bool = False
    ) -> None:
        """Make a topic of one partition, replicated as the brokers do by default, and wait until it
        has a leader. `try_only`: the brokers judge whether it could be made, and make none.
        """
        admin, kafka = library("admin"), library()
        client = self._made("admin", "AdminClient", {})
        asked = client.create_topics(
            [admin.NewTopic(topic, 1, config=dict(settings))],
            request_timeout=self._wait,
            validate_only=try_only,
        )
        try:
            self._result(client, asked[topic])
        except DraindownError as error:
            cause = error.__cause__
            if (
                not isinstance(cause, kafka.KafkaException)
                or cause.args[0].name() != "TOPIC_ALREADY_EXISTS"
            ):
                raise
        until = time.monotonic() + self._wait
        with self.naming():
            while not try_only and (
                not _is_led(client.list_topics(topic, timeout=self._wait), topic)
                and time.monotonic() < until
            ):
                client.poll(_STEP)

    def topic_settings(self, topic: str = "", *, read: bool = False) -> Mapping[str, str]:
        """Return the settings of a topic, by default of the sink's; `read`: it is read, too.

        Raises TerminalError `sink-missing` if there is no such topic.
        """
        admin, kafka, topic = library("admin"), library(), topic or self._spec.topic
        client = self._made("admin", "AdminClient", {})
        asked = client.describe_topics(
            kafka.TopicCollection([topic]),
            include_authorized_operations=True,
            request_timeout=self._wait,
        )
        allowed = self._result(client, asked[topic]).authorized_operations
        needed = [admin.AclOperation.WRITE, *([admin.AclOperation.READ] if read else [])]
        lacking = [one.name for one in needed if allowed and one not in allowed]
        if lacking:
            why = f"this user lacks {' and '.join(lacking)} on topic {topic}"
            raise self._error("sink-denied", why, _TERMINAL["TOPIC_AUTHORIZATION_FAILED"][1])
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
        (future,) = client.describe_configs([resource], request_timeout=self._wait).values()
        return {name: one.value for name, one in self._result(client, future).items()}

    def named(self, error: KafkaError, row: str = "") -> DraindownError:
        """Return the error that a client's error stands for; `row`: the key of the row whose
        message failed.
        """
        worst = next(
            (one for one in map(self._terminal, [error, *self._heard]) if one is not None), None
        )
        if worst is not None:
            code, help = worst
            return self._error(code, self._text(error, row), help)
        if any(one.name() in _FENCED for one in [error, *self._heard]):
            return self.fenced(self._text(error, row))
        return TransientError(
            "sink-unreachable",
            tried=f"send to {self._spec.place}",
            found=self._text(error, row),
            changed=_PARTLY if self._sends else "this step changed nothing at the sink",
            next=self._place.again,
        )

    def _made(self, part: str, name: str, options: Mapping[str, Any]) -> Any:
        made = (
            of_librdkafka(self._spec, self._environ)
            | {"error_cb": self._heard.append}
            | dict(options)
        )
        kafka = library()
        try:
            return getattr(library(part), name)(made)
        except kafka.KafkaException as error:
            raise self.named(error.args[0]) from error

    def _result(self, client: Any, future: Any) -> Any:
        """Return a future's result. Raises at once if the brokers refused this client, which would
        go on trying.
        """
        kafka, until = library(), time.monotonic() + self._wait + 1
        while not future.done() and time.monotonic() < until:
            client.poll(_STEP)
            self._raise_refused()
        with suppress(AttributeError):
            client.poll(0)
        try:
            found = future.result(_STEP)
        except kafka.KafkaException as error:
            raise self.named(error.args[0]) from error
        except TimeoutError as error:
            raise self.named(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from error
        self._has_met = True
        return found

    def _raise_refused(self) -> None:
        refused = next(
            (one for one in self._heard if (self._terminal(one) or ("",))[0] == "sink-auth"), None
        )
        if refused is not None:
            raise self.named(refused)

    def _terminal(self, error: KafkaError) -> tuple[str, str] | None:
        """Return code and help of an error that a retry does not mend.

        A broker that restarts breaks handshakes, so a broken one means wrong settings only before
        the first answer.
        """
        is_handshake = error.name() == "_SSL" or "SSL handshake failed" in error.str()
        if is_handshake and self._has_met and "certificate" not in error.str():
            return None
        return _TERMINAL["_SSL"] if is_handshake else _TERMINAL.get(error.name())

    def _text(self, error: KafkaError, row: str) -> str:
        heard = dict.fromkeys([error.str(), *(one.str() for one in self._heard)])
        told = redacted("; ".join(heard), secrets_of(self._spec, self._environ))
        return "; ".join([*([f"key {row}"] if row else []), told])[:_LONGEST]

    def fenced(self, found: str) -> TransientError:
        """Return the error of a driver that another one took over from."""
        return TransientError(
            "sink-fenced",
            tried=f"send to {self._spec.place}",
            found=f"another driver sends there since, or a transaction outlasted transaction_timeout: {found}"[
                :_LONGEST
            ],
            next=[
                self._place.command("run", "if no other run is at work: it takes a higher epoch"),
                "raise transaction_timeout of the sink, if no other run was at work: a portion took longer",
            ],
        )

    def _error(self, code: str, found: str, help: str) -> TerminalError:
        tried = f"send to {self._spec.place}"
        return TerminalError(
            code, tried=tried, found=found[:_LONGEST], next=self._place.command("plan", help)
        )


def broken_by(producer: Any) -> KafkaError:
    """Return what broke a producer. Each call of its transactions says so; one without them only
    says that it is so.
    """
    kafka = library()
    try:
        producer.begin_transaction()
    except kafka.KafkaException as error:
        found: KafkaError = error.args[0]
        if found.fatal() or found.txn_requires_abort():
            return found
    return kafka.KafkaError(kafka.KafkaError._FATAL)  # type: ignore[no-any-return]


def _is_led(cluster: Any, topic: str) -> bool:
    found = cluster.topics.get(topic)
    return (
        found is not None
        and bool(found.partitions)
        and all(one.leader >= 0 for one in found.partitions.values())
    )
