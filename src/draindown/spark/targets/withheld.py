"""Keys and sequences that no batch may bring back: those of rows that the gate withdrew and nobody released.

The quarantine and what people decided about it are all there is to know: nothing else is written down.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from draindown.flow import withdrawals
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.ledger.rows import GATE
from draindown.spark.contract import json_rows
from draindown.spark.frames import TEXT, relation
from draindown.spark.targets.delta_target import Writer


def keys(spark: SparkSession, writer: Writer, schema: StructType, besides: Sequence[str] = ()) -> DataFrame | None:
    """Keys and sequence of every withheld row, with their types of `schema`; None where no row was ever withdrawn.

    `besides`: ids of rows that this batch releases.
    """
    live = writer.layout.live  # whose withdrawals count for a table that is rebuilt beside it, too
    if not withdrawals.ever(live):
        return None
    goal = writer.flow.target
    wanted = StructType([StructField(name, schema[name].dataType) for name in goal.essential])
    rows = spark.read.format("delta").load(live.quarantine).where(F.col("kind") == GATE)
    kept = rows.join(_released(spark, live), "quarantine_id", "left_anti")
    if besides:
        chosen = relation(spark, {"quarantine_id": TEXT}, [(known,) for known in besides])
        kept = kept.join(chosen, "quarantine_id", "left_anti")
    return kept.select(json_rows.decode(F.col("raw"), wanted).alias("row")).select("row.*")


def _released(spark: SparkSession, layout: FlowLayout) -> DataFrame:
    """Ids of rows whose newest decision is their release."""
    if not log_of(layout, layout.resolutions).exists:
        return relation(spark, {"quarantine_id": TEXT}, ())
    decided = spark.read.format("delta").load(layout.resolutions).groupBy("quarantine_id")
    newest = decided.agg(F.max_by("action", "at").alias("action"))
    return newest.where(F.col("action") == "released").select("quarantine_id")
