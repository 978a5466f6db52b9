"""The fold of a key's events into runs of equal tracked columns. One window each, over keys of any
type.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from draindown.config.names import END_AT, START_AT
from draindown.spark.sql import quoted

AT, GONE = "_at", "_gone"
"""Columns of an event: its sequence as one value, and whether it deletes its key."""
BEGINS, ENDS = "_begins", "_ends"
"""Columns of a bounded event: whether it is the first of its run, and whether another run or
nothing follows it.
"""
_TRACKED = "_tracked"


def by(keys: Sequence[str]) -> WindowSpec:
    """Return the window of all events of a key."""
    return Window.partitionBy(*map(quoted, keys))


def sequence(names: Sequence[str]) -> Column:
    """Return the sequence as one value: that of the column, or of several a struct of them."""
    parts = [F.col(quoted(name)) for name in names]
    return parts[0] if len(parts) == 1 else F.struct(*parts)


def counting(events: DataFrame, keys: Sequence[str], content: Sequence[Column]) -> DataFrame:
    """Return of events with the same key and AT the one that counts: a delete, or the greatest by
    `content`.

    `content`: sort orders.
    """
    within = by(keys).orderBy(AT, GONE, *content)
    same = F.lead(AT).over(within).eqNullSafe(F.col(AT))
    return events.withColumn("_lost", same).where("not _lost").drop("_lost")


def bounded(events: DataFrame, keys: Sequence[str], tracked: Sequence[Column]) -> DataFrame:
    """Return events, one per key and AT, with `__START_AT` of their run, BEGINS and ENDS.

    Of the last event of a run `__END_AT` is the AT of the next event, which begins another run or
    deletes.
    """
    within = by(keys).orderBy(AT)
    was_gone, before = F.lag(GONE).over(within), F.lag(_TRACKED).over(within)
    differs = F.coalesce(was_gone, F.lit(True)) | ~before.eqNullSafe(F.col(_TRACKED))
    so_far = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    start = F.last(F.when(F.col(BEGINS), F.col(AT)), ignorenulls=True).over(so_far)
    follows = F.lead(F.col(BEGINS) | F.col(GONE)).over(within)
    compared = events.withColumn(_TRACKED, F.struct(*tracked) if tracked else F.lit(True))
    begun = compared.withColumn(BEGINS, ~F.col(GONE) & differs).drop(_TRACKED)
    return begun.withColumns(
        {START_AT: start, END_AT: F.lead(AT).over(within), ENDS: F.coalesce(follows, F.lit(True))}
    )
