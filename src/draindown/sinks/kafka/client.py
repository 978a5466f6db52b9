"""Clients of a Kafka cluster for sending: what the brokers say of the topic, and a producer. Every wait is bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.sinks.port import SinkPlace
from draindown.sources.kafka.library import library
from draindown.sources.kafka.options import of_librdkafka
from draindown.spec.kafka_sink import KafkaSink

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_STEP = 0.05  # seconds between looks at what error_cb heard
_LONGEST = 400
_PRODUCING: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",  # as Java's clients place keys
    "linger.ms": 20,
    "batch.size": 262_144,
    "queue.buffering.max.messages": 100_000,
    "delivery.report.only.error": True,  # a flush waits for all of them; what succeeded needs no call
}
_TERMINAL = {
    "_AUTHENTICATION": ("sink-auth", "check sasl_mechanism, sasl_username and the secret's value"),
    "SASL_AUTHENTICATION_FAILED": ("sink-auth", "check sasl_mechanism, sasl_username and the secret's value"),
    "UNSUPPORTED_SASL_MECHANISM": ("sink-auth", "check sasl_mechanism"),
    "_SSL": ("sink-tls", "check security_protocol, ssl_ca_location and the broker's port"),
    "TOPIC_AUTHORIZATION_FAILED": ("sink-denied", "grant this user DESCRIBE, DESCRIBE_CONFIGS and WRITE on the topic"),
    "CLUSTER_AUTHORIZATION_FAILED": ("sink-denied", "grant this user IDEMPOTENT_WRITE on the cluster"),
    "UNKNOWN_TOPIC_OR_PART": ("sink-missing", "create the topic, or correct `topic`"),
    "_UNKNOWN_TOPIC": ("sink-missing", "create the topic, or correct `topic`"),
    "_UNKNOWN_PARTITION": ("sink-missing", "create the topic, or correct `topic`"),
    "MSG_SIZE_TOO_LARGE": ("sink-refused", "raise the topic's max.message.bytes, or send fewer columns"),
    "INVALID_MSG": ("sink-refused", "a topic that is compacted takes no message without a key"),
    "INVALID_RECORD": ("sink-refused", "a topic that is compacted takes no message without a key"),
    "POLICY_VIOLATION": ("sink-refused", "ask who made the cluster's policies"),
    "_INVALID_ARG": ("sink-options", "correct `kafka` of this sink"),
}


class Client:
    """Clients of the sink's cluster. Their threads end with the process.

    Methods raise TransientError `sink-unreachable`; TerminalError `sink-auth`, `sink-tls`, `sink-denied`,
    `sink-missing`, `sink-options`, `secret-missing`.
    """

    def __init__(self, spec: KafkaSink, place: SinkPlace, environ: Mapping[str, str] = os.environ) -> None:
        self._spec, self._place, self._environ, self._wait = spec, place, environ, float(spec.request_timeout)
        self._heard: list[KafkaError] = []
        library()

    def producer(self) -> Any:
        """Return a new producer."""
        more = {"compression.type": self._spec.compression, "message.timeout.ms": self._spec.delivery_timeout * 1000}
        # the brokers judge sizes: the topic may take more than the client's own bound
        return self._made("", "Producer", _PRODUCING | more | {"message.max.bytes": 1_000_000_000})

    def topic_settings(self) -> Mapping[str, str]:
        """Return the topic's settings. Raises TerminalError `sink-missing` if there is no such topic."""
        admin, kafka = library("admin"), library()
        client = self._made("admin", "AdminClient", {})
        asked = client.describe_topics(
            kafka.TopicCollection([self._spec.topic]), include_authorized_operations=True, request_timeout=self._wait
        )
        described = self._result(client, asked[self._spec.topic])
        allowed = described.authorized_operations
        if allowed and admin.AclOperation.WRITE not in allowed:
            raise self._error("sink-denied", "this user may not write", _TERMINAL["TOPIC_AUTHORIZATION_FAILED"][1])
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, self._spec.topic)
        (future,) = client.describe_configs([resource], request_timeout=self._wait).values()
        return {name: one.value for name, one in self._result(client, future).items()}

    def named(self, error: KafkaError, row: str = "") -> DraindownError:
        """Return the error that a client's error stands for; `row`: the key of the row whose message failed."""
        worst = next((one for one in map(self._terminal, [error, *self._heard]) if one is not None), None)
        if worst is not None:
            code, help = worst
            return self._error(code, self._text(error, row), help)
        return TransientError(
            "sink-unreachable",
            tried=f"send to {self._spec.place}",
            found=self._text(error, row),
            changed="any part of the batch may be in the topic; the same messages, with the same ids, are sent again",
            next=self._place.again,
        )

    def _made(self, part: str, name: str, options: Mapping[str, Any]) -> Any:
        made = of_librdkafka(self._spec, self._environ) | {"error_cb": self._heard.append} | dict(options)
        kafka = library()
        try:
            return getattr(library(part), name)(made)
        except kafka.KafkaException as error:
            raise self.named(error.args[0]) from error

    def _result(self, client: Any, future: Any) -> Any:
        """Return a future's result. Raises at once if the brokers refused this client, which would go on trying."""
        kafka, until = library(), time.monotonic() + self._wait + 1
        while not future.done() and time.monotonic() < until:
            client.poll(_STEP)
            refused = next((one for one in self._heard if (self._terminal(one) or ("",))[0] == "sink-auth"), None)
            if refused is not None:
                raise self.named(refused)
        with suppress(AttributeError):
            client.poll(0)
        try:
            return future.result(_STEP)
        except kafka.KafkaException as error:
            raise self.named(error.args[0]) from error
        except TimeoutError as error:
            raise self.named(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from error

    @staticmethod
    def _terminal(error: KafkaError) -> tuple[str, str] | None:
        if "SSL handshake failed" in error.str():
            return _TERMINAL["_SSL"]
        return _TERMINAL.get(error.name())

    def _text(self, error: KafkaError, row: str) -> str:
        heard = dict.fromkeys([error.str(), *(one.str() for one in self._heard)])
        return "; ".join([*([f"key {row}"] if row else []), *heard])[:_LONGEST]

    def _error(self, code: str, found: str, help: str) -> TerminalError:
        tried = f"send to {self._spec.place}"
        return TerminalError(code, tried=tried, found=found[:_LONGEST], next=self._place.command("plan", help))
