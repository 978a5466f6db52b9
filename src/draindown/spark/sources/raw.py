"""Raw records in the lake, for Spark: how a batch's records are kept, and how a batch reads those that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lake.table_log import TableLog
from draindown.sources.raw import RANGES, RECORDS
from draindown.sources.slices import Unit
from draindown.spark.sources.place import ARRIVED, ENVELOPE, ENVELOPE_FIELDS


def read(spark: SparkSession, units: Sequence[Unit]) -> DataFrame:
    """Return the kept records of units, with PLACE, ENVELOPE and ARRIVED as they had when they were read first."""
    # with a version: Spark recomputes persisted frames that read a table without one, after a write to it
    (path,) = {unit.kept for unit in units}
    held = spark.read.format("delta").option("versionAsOf", TableLog(path).version).load(path)
    rows = held.where((F.col("part") == RECORDS) & _within(units, "unit", "position", F.col("log")))
    place = [
        F.col("key"),
        F.col("headers"),
        F.col("timestamp"),
        F.regexp_extract("unit", "^(.*)/", 1).alias("topic"),
        F.regexp_extract("unit", "/([0-9]+)$", 1).cast("int").alias("partition"),
        F.col("position").alias("offset"),
    ]
    return rows.select(
        F.col("value").cast("string").alias("value"),
        F.struct(*place).cast(ENVELOPE_FIELDS).alias(ENVELOPE),
        F.unix_micros("arrived_at").alias(ARRIVED),
        F.col("unit").alias("_unit"),
        F.lit(0).cast("bigint").alias("_block"),
        F.col("position").alias("_id"),
    )


def rows(frame: DataFrame, units: Sequence[Unit], day: date) -> DataFrame:
    """Return the rows that keep units of a parsed `frame` (`_raw`, ENVELOPE, ARRIVED, PLACE): records, and ranges."""
    spark = frame.sparkSession
    logs = F.create_map(*[F.lit(text) for name, log in {u.name: u.log for u in units}.items() for text in (name, log)])
    records = frame.where(_within(units, "_unit", "_id")).select(
        F.lit(RECORDS).alias("part"),
        F.col("_unit").alias("unit"),
        logs[F.col("_unit")].alias("log"),
        F.col("_id").alias("position"),
        F.timestamp_micros(ARRIVED).alias("arrived_at"),
        F.col(f"{ENVELOPE}.key").alias("key"),
        F.col("_raw").cast("binary").alias("value"),
        F.col(f"{ENVELOPE}.headers").alias("headers"),
        F.col(f"{ENVELOPE}.timestamp").alias("timestamp"),
    )
    some = [(RANGES, u.name, u.log, u.start, u.until) for u in units]
    ranges = spark.createDataFrame(some, "part string, unit string, log string, `from` bigint, until bigint")
    return records.unionByName(ranges, allowMissingColumns=True).withColumn("day", F.lit(day))


def _within(units: Sequence[Unit], unit: str, position: str, log: Column | None = None) -> Column:
    return reduce(or_, (_in_range(one, unit, position, log) for one in units))


def _in_range(one: Unit, unit: str, position: str, log: Column | None) -> Column:
    inside = (F.col(unit) == one.name) & (F.col(position) >= one.start) & (F.col(position) < one.until)
    return inside if log is None else inside & (log == one.log)
