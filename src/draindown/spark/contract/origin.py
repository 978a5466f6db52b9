"""The origin and the arrival of records: `_origin` and `_arrived_at`, from PLACE and what is known
of each unit.

Both columns are values of few distinct rows, one per block or unit. They are literals if there are
few of them, and a broadcast join otherwise. Records with an ARRIVED of their own arrived then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.place import ARRIVED, PLACE, BlockOrigin
from draindown.spark.sql import ARRIVED_AT, ORIGIN, origin

_FEW = 32
"""At most so many rows become literals, found by binary search.

A join costs a broadcast, and a hash of each record's unit. The code of many literals is too long
for the JIT compiler.
"""
_SQL: Mapping[pa.DataType, str] = {TEXT: "string", NUMBER: "bigint"}


def located(frame: DataFrame, blocks: Sequence[BlockOrigin]) -> DataFrame:
    """Return a frame that has PLACE with `_origin` and `_arrived_at` in its place."""
    rows = [(one.spelled, one.block, one.offset, one.unit, one.arrived_us) for one in blocks]
    found = _looked_up(frame, PLACE[:2], {"_offset": NUMBER, "_name": TEXT, "_us": NUMBER}, rows)
    at = origin(F.col("_name"), F.col("_id") + F.col("_offset"))
    us = ARRIVED if ARRIVED in found.columns else "_us"
    stamped = found.withColumns({ORIGIN: at, ARRIVED_AT: F.timestamp_micros(us)})
    return stamped.drop(*PLACE, ARRIVED, "_offset", "_name", "_us")


def arrived(frame: DataFrame, blocks: Sequence[BlockOrigin]) -> DataFrame:
    """Return a frame that has PLACE with `_arrived_at` in its place; one that has `_arrived_at`
    already unchanged.
    """
    if ARRIVED_AT in frame.columns:
        return frame
    if ARRIVED in frame.columns:
        return frame.withColumn(ARRIVED_AT, F.timestamp_micros(ARRIVED)).drop(*PLACE, ARRIVED)
    rows: list[tuple[str | int, ...]] = sorted({(one.spelled, one.arrived_us) for one in blocks})
    by: Sequence[str] = PLACE[:1]
    # records of a unit that did not arrive together
    if len(rows) > len({one.spelled for one in blocks}):
        by, rows = PLACE[:2], [(one.spelled, one.block, one.arrived_us) for one in blocks]
    found = _looked_up(frame, by, {"_us": NUMBER}, rows)
    return found.withColumn(ARRIVED_AT, F.timestamp_micros("_us")).drop(*PLACE, "_us")


def _looked_up(
    frame: DataFrame,
    by: Sequence[str],
    columns: Mapping[str, pa.DataType],
    rows: Sequence[tuple[str | int, ...]],
) -> DataFrame:
    """Add `columns`, whose values depend on the columns `by`. `rows`: values of `by`, then those of
    `columns`.
    """
    values = {name: [row[len(by) + i] for row in rows] for i, name in enumerate(columns)}
    same = {name for name, found in values.items() if len(set(found)) <= 1}
    if len(rows) > _FEW and len(same) < len(columns):
        kinds = dict(zip(by, (TEXT, NUMBER), strict=False)) | dict(columns)
        return frame.join(F.broadcast(relation(frame.sparkSession, kinds, rows)), list(by))
    ordered = sorted(rows, key=lambda row: [_order(part) for part in row[: len(by)]])
    found = {
        name: F.lit(next(iter(values[name]), None))
        if name in same
        else _searched(by, ordered, len(by) + i)
        for i, name in enumerate(columns)
    }
    return frame.withColumns(
        {name: column.cast(_SQL[columns[name]]) for name, column in found.items()}
    )


def _searched(by: Sequence[str], rows: Sequence[tuple[str | int, ...]], at: int) -> Column:
    """Return what the row that a record belongs to has at `at`: a binary search, as a CASE
    expression.

    `rows`: in order of their first columns, which are `by`. A record has the values of one of them.
    """
    if len(rows) == 1:
        return F.lit(rows[0][at])
    first = next(i for i in range(len(by)) if rows[0][i] != rows[-1][i])
    starts = [i for i in range(1, len(rows)) if rows[i][first] != rows[i - 1][first]]
    middle = min(starts, key=lambda start: abs(2 * start - len(rows)))
    lower = F.col(by[first]) < F.lit(rows[middle][first])
    return F.when(lower, _searched(by, rows[:middle], at)).otherwise(
        _searched(by, rows[middle:], at)
    )


def _order(part: str | int) -> bytes | int:
    """Return what Spark sorts by: a text by its bytes."""
    return part.encode() if isinstance(part, str) else part
