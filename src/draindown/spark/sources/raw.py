"""Raw records in the lake, for Spark: how a batch's records are kept, and how a batch reads those
that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lake.table import Table
from draindown.sources.raw import RANGES, RECORDS
from draindown.sources.slices import Unit
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.place import ARRIVED, ENVELOPE, ENVELOPE_FIELDS

_FEW = 50
"""At most so many ranges are compared one by one with each record."""
_LOG = "_log"


def read(spark: SparkSession, units: Sequence[Unit]) -> DataFrame:
    """Return the kept records of units, with PLACE, ENVELOPE and ARRIVED as they had when they were
    read first.
    """
    # with a version: Spark recomputes persisted frames that read a table without one, after a write
    # to it
    (path,) = {unit.kept for unit in units}
    held = spark.read.format("delta").option("versionAsOf", Table(path).version).load(path)
    some = held.where((F.col("part") == RECORDS) & _bounds(units))
    rows = _within(some, units, "input", "position", F.col("log"))
    place = [
        F.col("key"),
        F.col("headers"),
        F.col("timestamp"),
        F.regexp_extract("input", "^(.*)/", 1).alias("topic"),
        F.regexp_extract("input", "/([0-9]+)$", 1).cast("int").alias("partition"),
        F.col("position").alias("offset"),
    ]
    return rows.select(
        F.col("value").cast("string").alias("value"),
        F.struct(*place).cast(ENVELOPE_FIELDS).alias(ENVELOPE),
        F.unix_micros("arrived_at").alias(ARRIVED),
        F.col("input").alias("_unit"),
        F.lit(0).cast("bigint").alias("_block"),
        F.col("position").alias("_id"),
    )


def rows(frame: DataFrame, units: Sequence[Unit], day: date) -> DataFrame:
    """Return the rows that keep units of a parsed `frame` (`_raw`, ENVELOPE, ARRIVED, PLACE):
    records, and ranges.
    """
    spark = frame.sparkSession
    records = _within(frame, units, "_unit", "_id").select(
        F.lit(RECORDS).alias("part"),
        F.col("_unit").alias("input"),
        F.col(_LOG).alias("log"),
        F.col("_id").alias("position"),
        F.timestamp_micros(ARRIVED).alias("arrived_at"),
        F.col(f"{ENVELOPE}.key").alias("key"),
        F.col("_raw").cast("binary").alias("value"),
        F.col(f"{ENVELOPE}.headers").alias("headers"),
        F.col(f"{ENVELOPE}.timestamp").alias("timestamp"),
    )
    kinds = {"part": TEXT, "input": TEXT, "log": TEXT, "from": NUMBER, "until": NUMBER}
    ranges = relation(spark, kinds, [(RANGES, u.name, u.log, u.start, u.until) for u in units])
    return records.unionByName(ranges, allowMissingColumns=True).withColumn("day", F.lit(day))


def _within(
    frame: DataFrame, units: Sequence[Unit], unit: str, position: str, log: Column | None = None
) -> DataFrame:
    """Return the rows that lie in a range of their unit, and of their `log` if it is known, with
    the log as `_LOG`.

    Few ranges become one flat expression, others a broadcast join: a tree of thousands overflows
    the planner's stack.
    """
    if len(units) <= _FEW:
        logs = [F.when(_in_range(one, unit, position, log), F.lit(one.log)) for one in units]
        return frame.withColumn(_LOG, F.coalesce(*logs)).where(F.col(_LOG).isNotNull())
    kinds = {"_of": TEXT, _LOG: TEXT, "_start": NUMBER, "_until": NUMBER}
    ranges = relation(
        frame.sparkSession, kinds, [(one.name, one.log, one.start, one.until) for one in units]
    )
    at = F.col(position)
    inside = (F.col(unit) == F.col("_of")) & (at >= F.col("_start")) & (at < F.col("_until"))
    inside = inside if log is None else inside & (log == F.col(_LOG))
    return frame.join(F.broadcast(ranges), inside).drop("_of", "_start", "_until")


def _bounds(units: Sequence[Unit]) -> Column:
    """Return a condition on literals that all rows of units meet, by which files are left out."""
    if len(units) <= _FEW:
        return reduce(or_, (_in_range(one, "input", "position", F.col("log")) for one in units))
    names, at = [one.name for one in units], F.col("position")
    least, most = min(one.start for one in units), max(one.until for one in units)
    return F.col("input").between(min(names), max(names)) & (at >= least) & (at < most)


def _in_range(one: Unit, unit: str, position: str, log: Column | None) -> Column:
    inside = (
        (F.col(unit) == one.name) & (F.col(position) >= one.start) & (F.col(position) < one.until)
    )
    return inside if log is None else inside & (log == one.log)
