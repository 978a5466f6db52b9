"""The Kafka source of a flow: topics, the client's options, and the bounds of a batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from draindown.config.base import Model, Problem, refuse, repeated
from draindown.config.column_types import check_separators
from draindown.config.source import (
    LONGEST_RECORD,
    DecimalSeparator,
    RecordBytes,
    SourceSpec,
    ThousandsSeparator,
    Zone,
)
from draindown.config.units import Duration, DurationOrFalse, Size, parse_time

_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"
_SECRET = r"^\$\{secret:[A-Za-z_][A-Za-z0-9_]*\}$"
_SERVERS = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*|\[[0-9A-Fa-f:]+\]:\d{1,5}")
_TIMES = ("earliest", "latest")
_BYTES, _TEXT = (
    ("string", "binary"),
    ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date"),
)
_SCALARS = (*_BYTES, *_TEXT, "timestamp", "timestamp_ntz", "decimal")


def _topic(name: str) -> str:
    if not re.fullmatch(_TOPIC, name) or name in (".", ".."):
        raise ValueError(f"{name!r} is no topic: letters, digits, '.', '_' and '-', at most 249")
    return name


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


def _reference(text: str) -> str:
    if not re.fullmatch(_SECRET, text):
        raise ValueError(
            "must be a reference such as ${secret:KAFKA_PASSWORD}: a pipeline file holds no secret"
        )
    return text


def _servers(text: str) -> str:
    if not re.fullmatch(_SECRET, text) and not _SERVERS.fullmatch(text):
        raise ValueError(f"{text!r} is no list of brokers such as kafka-1:9092,kafka-2:9092")
    return text


def _starting(text: str) -> str:
    if text not in _TIMES:
        try:
            parse_time(text)
        except ValueError:
            raise ValueError(
                f"must be earliest, latest or a time such as 2026-01-31T12:00Z, not {text!r}"
            ) from None
    return text


Topic = Annotated[
    str, AfterValidator(_topic), WithJsonSchema({"type": "string", "pattern": _TOPIC})
]
SecretReference = Annotated[
    str,
    AfterValidator(_reference),
    WithJsonSchema({"type": "string", "examples": ["${secret:KAFKA_PASSWORD}"]}),
]


class KafkaConnection(Model):
    """How clients connect to a Kafka cluster. Options are named as Kafka's clients name them."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = Field(
        description="Brokers to ask first, as host:port, separated by commas.",
        examples=["${KAFKA}"],
    )
    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        default="plaintext", description="How clients connect."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None,
        description="How clients prove who they are; needed by sasl_plaintext and sasl_ssl.",
    )
    sasl_username: str | None = Field(default=None, min_length=1, description="The user's name.")
    sasl_password: SecretReference | None = Field(
        default=None, description="The user's password, as a reference."
    )
    ssl_ca_location: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file with the certificates that sign the brokers'; absent: those the system trusts.",
    )
    ssl_certificate_location: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file with the client's certificate, where brokers ask for one.",
    )
    ssl_key_location: str | None = Field(
        default=None, min_length=1, description="PEM file with the client's private key, in PKCS#8."
    )
    ssl_key_password: SecretReference | None = Field(
        default=None, description="What the private key is locked with."
    )
    request_timeout: Annotated[Duration, Field(ge=1, le=300)] = Field(
        default=20, description="How long one request to the brokers may take."
    )

    @model_validator(mode="after")
    def _connection(self) -> Self:
        problems: list[Problem] = []
        sasl, tls = (
            self.security_protocol.startswith("sasl"),
            self.security_protocol.endswith("ssl"),
        )
        for name in ("sasl_mechanism", "sasl_username", "sasl_password"):
            given = getattr(self, name) is not None
            if given != sasl:
                why = (
                    f"is needed by security_protocol {self.security_protocol}"
                    if sasl
                    else "needs a sasl_ protocol"
                )
                problems.append(
                    (
                        (name,),
                        why if sasl else f"counts for sasl_plaintext and sasl_ssl only; {why}",
                    )
                )
        if not tls:
            named = (
                "ssl_ca_location",
                "ssl_certificate_location",
                "ssl_key_location",
                "ssl_key_password",
            )
            problems += [
                ((n,), "counts for ssl and sasl_ssl only")
                for n in named
                if getattr(self, n) is not None
            ]
        elif (self.ssl_certificate_location is None) != (self.ssl_key_location is None):
            lacking = (
                "ssl_key_location" if self.ssl_key_location is None else "ssl_certificate_location"
            )
            problems.append(((lacking,), "is needed: a certificate and its key go together"))
        refuse(problems)
        return self


class KafkaCluster(KafkaConnection):
    """Topics of a Kafka cluster, and how clients connect."""

    topics: list[Topic] = Field(
        default_factory=list, description="The topics to read.", examples=[["user-events"]]
    )
    topic_pattern: Annotated[str, AfterValidator(_pattern)] | None = Field(
        default=None,
        min_length=1,
        description="Regular expression; every topic whose whole name matches is read. Excludes topics.",
        examples=["events-.*"],
    )
    starting_offsets: Annotated[str, AfterValidator(_starting)] = Field(
        default="earliest",
        description="Where the first generation begins: earliest, latest, or a time in UTC.",
        examples=["earliest", "2026-01-31T12:00Z"],
    )
    transactional: bool = Field(
        default=False,
        description="Producers write the topics in transactions, so that some offsets hold no record.",
    )
    keep_raw: DurationOrFalse = Field(
        default=2_592_000,
        description="How long raw records stay in the lake, for when the topic no longer has them; or false.",
        examples=["30 days", False],
    )

    @model_validator(mode="after")
    def _combination(self) -> KafkaCluster:
        problems: list[Problem] = []
        if self.topics and self.topic_pattern is not None:
            problems.append((("topic_pattern",), "excludes topics: keep one of the two"))
        elif not self.topics and self.topic_pattern is None:
            problems.append((("topics",), "is needed where there is no topic_pattern"))
        problems += [(("topics",), f"names {name!r} twice") for name in set(repeated(self.topics))]
        refuse(problems)
        return self


class KafkaSource(SourceSpec):
    """Records of Kafka topics, read in slices of pinned offsets; only committed records are
    read.
    """

    kind = "kafka"
    own_intakes = True
    bytes_estimated = True
    PLACES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "key": _SCALARS,
        "header:": _SCALARS,
        "timestamp": ("timestamp",),
        "offset": ("bigint",),
        "partition": ("int", "bigint"),
        "topic": ("string",),
    }

    kafka: KafkaCluster = Field(description="The topics and how to connect.")
    format: Literal["json", "text"] = Field(
        description="What a record's value is. json: one object; text: one column, `value: string`."
    )
    max_offsets_per_trigger: int | None = Field(
        default=None,
        ge=1,
        description="Upper bound of one batch, in records over all partitions. Absent: sized to memory.",
        examples=[1000000],
    )
    max_bytes_per_trigger: Size | None = Field(
        default=None,
        description="Upper bound of one batch, in bytes of keys and values, estimated. Absent: sized to memory.",
        examples=["256mb"],
    )
    max_record_bytes: RecordBytes = LONGEST_RECORD
    timezone: Zone = "UTC"
    decimal_separator: DecimalSeparator = None
    thousands_separator: ThousandsSeparator = None

    @model_validator(mode="after")
    def _combination(self) -> KafkaSource:
        check_separators(*self.separators)
        return self

    @property
    def separators(self) -> tuple[str | None, str | None]:
        """What separates fractions and thousands."""
        return self.decimal_separator, self.thousands_separator

    @property
    def place(self) -> str:
        """The topics, for people."""
        return ", ".join(self.kafka.topics) or f"topics like {self.kafka.topic_pattern}"

    @property
    def raw_for(self) -> int | None:
        """How long raw records stay in the lake, in seconds; None if none are kept."""
        return self.kafka.keep_raw or None

    @property
    def most_units(self) -> tuple[int | None, str]:
        """The most records of one batch, and the setting that says so."""
        most = self.max_offsets_per_trigger
        return most, "" if most is None else f"max_offsets_per_trigger: {most}"

    @property
    def starting_time(self) -> datetime | None:
        """The time at which the first generation begins; None for earliest and latest."""
        start = self.kafka.starting_offsets
        return None if start in _TIMES else parse_time(start)

    def matches(self, topic: str) -> bool:
        """Return whether the flow reads the topic."""
        if self.kafka.topic_pattern is None:
            return topic in self.kafka.topics
        return re.fullmatch(self.kafka.topic_pattern, topic) is not None
