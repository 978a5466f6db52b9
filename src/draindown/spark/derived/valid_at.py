"""Rows of a history at a time: which one is valid, and the stretches of time at which changed rows
make it another.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from draindown.config.names import END_AT, START_AT
from draindown.spark.derived.images import IMAGES, NET
from draindown.spark.derived.scope import HIGH, LOW
from draindown.spark.sql import quoted

FROM, UNTIL = "_from", "_until"
"""Columns of a history's row: from when on it is valid, and when it ends; NULL for no end."""
_AT, _BY, _HELD, _EDGE = "_at", "_by", "_held", "_edge"
_NUMBERS = ("byte", "short", "integer", "long", "decimal")


def bounded(rows: DataFrame) -> DataFrame:
    """Return rows of a history with FROM and UNTIL. Of a sequence of several columns they are the
    first one.

    So a row that ends with another event of the same first column is valid at no time.
    """
    kind = rows.schema[START_AT].dataType
    first = f".{quoted(kind.fieldNames()[0])}" if isinstance(kind, StructType) else ""
    return rows.withColumns({FROM: F.col(f"{START_AT}{first}"), UNTIL: F.col(f"{END_AT}{first}")})


def is_valid(time: Column) -> Column:
    """Return the condition, over rows with FROM and UNTIL, that one is valid at a time."""
    return (F.col(FROM) <= time) & (F.col(UNTIL).isNull() | (time < F.col(UNTIL)))


def stretches(changed: DataFrame, keys: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Return the stretches of time [LOW, HIGH) at which a key has other `values` than before, HIGH
    NULL for no end.

    `changed`: rows of a history that came and went, with NET. At a time at which as many rows with
    the same values came as went, nothing changed: so a row that got an end counts from that end on
    only.
    """
    edges = [
        F.struct(F.col(at).alias(_AT), by.alias(_BY))
        for at, by in ((FROM, F.col(NET)), (UNTIL, -F.col(NET)))
    ]
    columns = [*map(quoted, keys), *map(quoted, values)]
    every = bounded(changed).select(*columns, F.explode(F.array(*edges)).alias(_EDGE))
    at = F.col(f"{_EDGE}.{_AT}")
    moved = (
        every.where(at.isNotNull())
        .groupBy(*columns, at.alias(LOW))
        .agg(F.sum(f"{_EDGE}.{_BY}").alias(_BY))
    )
    within = Window.partitionBy(*columns).orderBy(LOW)
    held = moved.withColumns({HIGH: F.lead(LOW).over(within), _HELD: F.sum(_BY).over(within)})
    return held.where(F.col(_HELD) != 0).select(*map(quoted, keys), LOW, HIGH).distinct()


def values_of(changed: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the columns of changed rows that are neither keys nor about the time at which a row is
    valid.
    """
    return [name for name in changed.columns if name not in (*keys, START_AT, END_AT, NET, IMAGES)]


def narrowing(stretches: DataFrame, time: Column) -> list[Column]:
    """Return literal predicates that each time in one of the stretches satisfies, by which files
    are skipped.
    """
    kind = stretches.schema[LOW].dataType
    last = F.when(F.count_if(F.col(HIGH).isNull()) == 0, F.max(HIGH))
    ends = stretches.agg(F.min(LOW).cast("string"), last.cast("string")).first()
    assert ends is not None  # an aggregate without groups has one row
    low, high = (
        None if text is None or not _is_literal(kind, text) else F.lit(text).cast(kind)
        for text in ends
    )
    return [*([] if low is None else [time >= low]), *([] if high is None else [time < high])]


def earliest(keys: DataFrame) -> str | None:
    """Return the least time of touched keys, with LOW, as text; None if there is none, or none that
    a literal has.
    """
    found = keys.agg(F.min(LOW).cast("string")).first()
    text = None if found is None else found[0]
    return text if text is not None and _is_literal(keys.schema[LOW].dataType, text) else None


def _is_literal(kind: DataType, text: str) -> bool:
    """Return whether a value is the same after a cast of its text: not of years before 1 or after
    9999, with a sign.
    """
    name = kind.typeName()
    return text[0].isdigit() if name in ("date", "timestamp", "timestamp_ntz") else name in _NUMBERS
