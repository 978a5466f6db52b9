"""Withdrawn rows that nobody released: no batch may insert them again.

They are derived from the quarantine and from people's decisions about it; nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from draindown.flow import withdrawals
from draindown.lake.home import FlowHome
from draindown.ledger.rows import WITHDRAW
from draindown.spark.contract import json_rows
from draindown.spark.frames import TEXT, relation
from draindown.spark.targets.delta_target import Writer


def keys(
    spark: SparkSession, writer: Writer, schema: StructType, besides: Sequence[str] = ()
) -> DataFrame | None:
    """Return keys and sequence of every withdrawn, unreleased row. None if no row was ever
    withdrawn.

    Column types are those of `schema`. `besides`: quarantine ids of rows that this batch releases;
    they are excluded.
    """
    wanted = [StructField(name, schema[name].dataType) for name in writer.flow.target.essential]
    return rows(spark, writer, StructType(wanted), besides)


def rows(
    spark: SparkSession, writer: Writer, wanted: StructType, besides: Sequence[str] = ()
) -> DataFrame | None:
    """Return the `wanted` columns of every withdrawn, unreleased row. None if no row was ever
    withdrawn.
    """
    live = writer.layout.live  # withdrawals from the live table apply to a rebuilt one as well
    if not withdrawals.ever(live):
        return None
    taken = (
        spark.read.format("delta")
        .load(live.tables.quarantine.path)
        .where(F.col("kind") == WITHDRAW)
    )
    kept = taken.join(_released(spark, live), "quarantine_id", "left_anti")
    if besides:
        chosen = relation(spark, {"quarantine_id": TEXT}, [(known,) for known in besides])
        kept = kept.join(chosen, "quarantine_id", "left_anti")
    return kept.select(json_rows.decoded_as(F.col("raw"), wanted).alias("row")).select("row.*")


def _released(spark: SparkSession, layout: FlowHome) -> DataFrame:
    """Return the quarantine ids of rows whose newest decision is `released`."""
    if not layout.tables.resolutions.exists:
        return relation(spark, {"quarantine_id": TEXT}, ())
    decided = (
        spark.read.format("delta").load(layout.tables.resolutions.path).groupBy("quarantine_id")
    )
    newest = decided.agg(F.max_by("action", "at").alias("action"))
    return newest.where(F.col("action") == "released").select("quarantine_id")
