"""A Kafka topic as a sink: the topic, how messages are sent, and what a transaction needs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from draindown.base.digests import Meaning
from draindown.config.base import refuse
from draindown.config.kafka import KafkaConnection, Topic
from draindown.config.names import ColumnName
from draindown.config.sink import AT_LEAST_ONCE, SinkSpec
from draindown.config.units import Duration

ONLY_ONCE = ("marker_topic", "transaction_timeout")
"""The keys that count where a batch is sent exactly once."""


class KafkaSink(KafkaConnection, SinkSpec):
    """A topic of a Kafka cluster. A message that is sent again has the same id."""

    kind = "kafka"

    topic: Topic = Field(description="The topic. It must exist.", examples=["spend-5m"])
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        default="at_least_once", description="How often a row may arrive."
    )
    partition_by: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        description="Columns, by their names at the sink, whose values choose the partition, for a target without "
        "keys. Absent: the row's origin.",
        examples=[["user_id"]],
    )
    marker_topic: Topic = Field(
        default="draindown-sinks",
        description="The topic that remembers which batches were sent, where they are sent exactly once. It is made "
        "where it is missing.",
    )
    transaction_timeout: Annotated[Duration, Field(ge=10, le=900)] = Field(
        default=60,
        description="How long the brokers keep a transaction open whose driver is gone; readers wait behind it.",
    )

    @model_validator(mode="after")
    def _combination(self) -> KafkaSink:
        if self.delivery == AT_LEAST_ONCE:
            changed = [
                name
                for name in ONLY_ONCE
                if getattr(self, name) != type(self).model_fields[name].default
            ]
            refuse([((name,), "counts for delivery: exactly_once only") for name in changed])
        return self

    @property
    def delivered(self) -> str:
        """How often a row may arrive."""
        return self.delivery

    def meaning(self) -> Meaning:
        """Return which topic it is, in the words of a sink's fingerprint."""
        return {"bootstrap_servers": self.bootstrap_servers, "topic": self.topic}

    @property
    def place(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic} at {self.bootstrap_servers}"
