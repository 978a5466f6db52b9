"""The place of a record within a batch: which block of which unit, and where in the block.

Spark has no row numbers, but a partition reads its blocks one after the other. So `monotonically_increasing_id` is
consecutive within each block, and a record's position is its id plus an offset that is the same for the whole block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.spark.frames import NUMBER, TEXT, relation

PLACE = ("_unit", "_block", "_id")
"""Columns that every reader adds: the unit as the reader spells it, the block's start, an id that rises within it."""

ARRIVED = "_arrived"
"""When the file of a line was first seen, in microseconds since 1970, of lines that don't share the batch's time."""
ENVELOPE = "_envelope"
"""What a record came in, of records that have more than their text: a struct of ENVELOPE_FIELDS.

Such records are counted by their source, so a text of blanks is a record, too. A NULL text is a record without a value.
"""
ENVELOPE_FIELDS = (
    "struct<key: binary, headers: array<struct<key: string, value: binary>>, "
    "timestamp: timestamp, topic: string, partition: int, offset: bigint>"
)
Block = tuple[str, int, int, int]
"""(unit as in PLACE, block, records, smallest id) of one block that was read."""
Offset = tuple[str, int, int]
"""(unit as in PLACE, block, offset): id plus offset is the position of a record in its unit."""


def number(frame: DataFrame, found: Sequence[Offset], name: Callable[[str], str]) -> DataFrame:
    """Return a frame with PLACE plus `file` (name of the unit) and `position`. `name`: as in `SliceReader`."""
    spark = frame.sparkSession
    rows = [(unit, block, offset, name(unit)) for unit, block, offset in found]
    places = relation(spark, {"_unit": TEXT, "_block": NUMBER, "_offset": NUMBER, "file": TEXT}, rows)
    joined = frame.join(F.broadcast(places), ["_unit", "_block"])
    return joined.withColumn("position", F.col("_id") + F.col("_offset")).drop("_offset")


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """Return all rows of all frames. Columns are matched by name."""
    return reduce(lambda left, right: left.unionByName(right), frames)
