"""A Kafka topic as a sink: the topic, how messages are sent, and what a transaction needs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from draindown.base.digests import Meaning
from draindown.config.kafka import KafkaConnection, Topic
from draindown.config.names import ColumnName
from draindown.config.sink import AT_LEAST_ONCE, EXACTLY_ONCE, SinkSpec
from draindown.config.units import Duration


class KafkaSink(KafkaConnection, SinkSpec):
    """A topic of a Kafka cluster. A message that is sent again has the same id."""

    kind = "kafka"
    DELIVERIES = (AT_LEAST_ONCE, EXACTLY_ONCE)
    OF_DELIVERY = dict.fromkeys(("markers", "create", "transaction_timeout"), EXACTLY_ONCE)

    topic: Topic = Field(description="The topic. It must exist.", examples=["spend-5m"])
    place_by: list[ColumnName] | None = Field(
        default=None,
        min_length=1,
        description="Columns, by their names at the sink, whose values choose the partition, for a target without "
        "keys. Absent: the row's origin.",
        examples=[["user_id"]],
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="lz4", description="How messages are compressed on their way."
    )
    delivery_timeout: Annotated[Duration, Field(ge=1, le=3600)] = Field(
        default=120,
        description="How long a message may take until the brokers have it, retries included.",
    )

    markers: Topic = Field(
        default="draindown-sinks",
        description="The topic that remembers which batches were sent, where they are sent exactly once.",
    )
    create: bool = Field(
        default=False,
        description="Make the topic of `markers` where it is missing. No other topic is made.",
    )
    transaction_timeout: Annotated[Duration, Field(ge=10, le=900)] = Field(
        default=60,
        description="How long the brokers keep a transaction open whose driver is gone; readers wait behind it.",
    )

    def meaning(self) -> Meaning:
        """Return which topic it is, in the words of a sink's fingerprint."""
        return {"bootstrap_servers": self.bootstrap_servers, "topic": self.topic}

    @property
    def place(self) -> str:
        """The topic and its brokers."""
        return f"{self.topic} at {self.bootstrap_servers}"
