"""The reader of Kafka: exactly the pinned offsets, by Spark's batch source, each record with its
offset.

A stream over Kafka would read on without an error where a topic was created again and is longer
than the offsets read so far. A batch read of pinned offsets, with the topic's id compared before
and after it, does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.kafka import KafkaSource
from draindown.config.landing import FlowSpec
from draindown.sources.kafka.offsets import by_partition
from draindown.sources.kafka.options import of_java
from draindown.sources.kafka.positions import span_of
from draindown.sources.port import Failure
from draindown.sources.slices import Unit
from draindown.spark.causes import causes
from draindown.spark.sources.place import ARRIVED, ENVELOPE, ENVELOPE_FIELDS, Block, Offset, micros
from draindown.spark.sources.port import Read

_OPTIONS = {
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    # a read that ends with its log otherwise waits half a second per partition for more
    "kafka.fetch.max.wait.ms": "10",
    # never kafka.group.id: with one, Spark keeps consumers between batches, and a prefetched record
    # of a topic that was created again in the meantime is taken for one of the new topic
}
_REFUSED = ("SaslAuthenticationException", "AuthorizationException", "SslAuthenticationException")
_KAFKA = "org.apache.kafka."


class KafkaReader:
    """The `SliceReader` of Kafka. PLACE has `topic/partition`, no blocks, and offsets."""

    settings: Mapping[str, str] = MappingProxyType({})

    def read(
        self,
        spark: SparkSession,
        flow: FlowSpec,
        units: Sequence[Unit],
        spool: str,  # noqa: ARG002
    ) -> list[Read]:
        """Read the pinned offsets: one task per partition, and one plan more where a partition has
        several ranges.
        """
        assert isinstance(flow.source, KafkaSource), "the registry chose this reader"
        spans = [span for unit in units if (span := span_of(unit)).size]
        if not spans:
            return [Read(_nothing(spark))]
        first_seen = micros(max(unit.row["first_seen"] for unit in units))
        client = {f"kafka.{name}": value for name, value in of_java(flow.source.kafka).items()}
        found = []
        for wanted in by_partition(spans):
            options = client | self._options(flow.source, wanted)
            rows = spark.read.format("kafka").options(**options).load()
            found.append(Read(_records(rows, first_seen)))
        return found

    def _options(
        self, source: KafkaSource, wanted: Mapping[str, Mapping[int, tuple[int, int]]]
    ) -> dict[str, str]:
        ends = [
            {t: {p: ends[at] for p, ends in parts.items()} for t, parts in wanted.items()}
            for at in (0, 1)
        ]
        return {
            **_OPTIONS,
            "kafkaConsumer.pollTimeoutMs": str(3000 * source.kafka.request_timeout),
            "assign": json.dumps({topic: sorted(parts) for topic, parts in wanted.items()}),
            "startingOffsets": json.dumps(ends[0]),
            "endingOffsets": json.dumps(ends[1]),
        }

    def name(self, unit: str) -> str:
        """Return the name, which PLACE has as it is."""
        return unit

    def offsets(self, blocks: Sequence[Block]) -> list[Offset]:
        """Return 0 for every partition: an id is an offset."""
        return [(unit, block, 0) for unit, block, _, _ in blocks]

    def failure(self, error: BaseException) -> Failure | None:
        """Understand the errors of Spark's connector and of Kafka's client, wherever they stand in
        the chain.
        """
        chain = list(causes(error))
        lost = next(
            (text for condition, _, text in chain if condition.startswith("KAFKA_DATA_LOSS")), None
        )
        if lost is not None:
            return Failure("lost", lost)
        kafka = [(name, text) for _, name, text in chain if name.startswith(_KAFKA)]
        if not kafka:
            return None
        name, text = kafka[-1]
        return Failure(
            "refused" if name.endswith(_REFUSED) else "away", f"{name.rpartition('.')[2]}: {text}"
        )


def _records(rows: DataFrame, first_seen: int) -> DataFrame:
    fields = ["key", "headers", "timestamp", "topic", "partition", "offset"]
    return rows.select(
        F.col("value").cast("string").alias("value"),
        F.struct(*fields).cast(ENVELOPE_FIELDS).alias(ENVELOPE),
        F.least(F.unix_micros("timestamp"), F.lit(first_seen)).alias(ARRIVED),
        F.concat_ws("/", "topic", F.col("partition").cast("string")).alias("_unit"),
        F.lit(0).cast("bigint").alias("_block"),
        F.col("offset").alias("_id"),
    )


def _nothing(spark: SparkSession) -> DataFrame:
    kinds = {"value": "string", ENVELOPE: ENVELOPE_FIELDS, ARRIVED: "bigint"}
    kinds |= {"_unit": "string", "_block": "bigint", "_id": "bigint"}
    return spark.range(0).select(
        *[F.expr(f"cast(null as {kind})").alias(name) for name, kind in kinds.items()]
    )
