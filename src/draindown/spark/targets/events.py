"""Events of a history: those that its rows and the hidden events hold, with a batch's, folded
again. Pure frames.

known (rows + hidden) and new events → the one that counts at each sequence → runs → what differs
from the rows, and which events no row holds whole any more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.window import WindowSpec

from draindown.config.names import END_AT, START_AT
from draindown.spark.sql import quoted
from draindown.spark.targets import folding
from draindown.spark.targets.folding import AT, BEGINS, ENDS, GONE
from draindown.spark.targets.resolution import FATE, LOSERS, comparable

WHY = "_why"
"""Column of a row that differs: opened, split, closed, reopened, changed, joined or removed."""
WHYS: Mapping[str, str] = {
    "opened": "insert",
    "split": "insert",
    "closed": "update",
    "reopened": "update",
    "changed": "update",
    "joined": "delete",
    "removed": "delete",
}
"""What is done to the table's row, by WHY."""
UNSEEN = "_unseen"
"""Column of an event: no row holds it whole, and it is not among the hidden events."""
_KNOWN, _HIDDEN, _WITHHELD, _STANDS_IN = "_known", "_hidden", "_withheld", "_stands_in"
_COUNTS, _FRESH, _NEW, _OLD, _SINCE = "_counts", "_fresh", "_new", "_old", "_since"
_SOURCES = (_KNOWN, _HIDDEN, _WITHHELD, _STANDS_IN)


@dataclass(frozen=True)
class Shape:
    """The columns of a history.

    Attributes:
        keys: what has a history. Never NULL.
        sequence_by: what orders the events of a key. Never NULL.
        columns: those of an event, keys and sequence included, of a delete NULL but for these.
        content: the columns by which events at one sequence are compared, in this order.
        tracked: the columns that begin another row where they change.
    """

    keys: Sequence[str]
    sequence_by: Sequence[str]
    columns: Sequence[str]
    content: Sequence[str]
    tracked: Sequence[str]

    @property
    def others(self) -> list[str]:
        """The columns of an event that are no keys."""
        return [name for name in self.columns if name not in self.keys]

    @property
    def row_keys(self) -> list[str]:
        """The columns that name a row."""
        return [*self.keys, START_AT]


def known(rows: DataFrame | None, hidden: DataFrame | None, shape: Shape) -> DataFrame | None:
    """Return the events that rows of the history and hidden events hold, perhaps more than once;
    None without any.

    A row holds the newest event of its run, and a delete if it ends where no other row begins. Of a
    run whose earlier events are not among `hidden` (see `hidden_since`), an event with the row's
    columns stands in for the first one. `rows`: of `rows_since`.
    """
    found: list[DataFrame] = []
    if rows is not None:
        plain = [F.col(quoted(name)) for name in shape.columns]
        found.append(_as_known(rows.select(*plain, F.lit(False).alias(GONE)), hidden=False))
        found.append(_as_known(_ending(rows, shape), hidden=False))
        found.append(_as_known(_beginning(rows, shape), hidden=True, stands_in=True))
    if hidden is not None:
        found.append(_as_known(hidden.select(*map(quoted, shape.columns), GONE), hidden=True))
    return reduce(DataFrame.unionByName, found) if found else None


def since(of: DataFrame, at: Column, shape: Shape) -> DataFrame:
    """Return per key of `of` the least sequence there, by which `suffix` finds what it can change.
    `at`: a sequence.
    """
    return of.groupBy(*map(quoted, shape.keys)).agg(F.min(at).alias(_SINCE))


def rows_since(rows: DataFrame, times: DataFrame, shape: Shape) -> DataFrame:
    """Return the rows of the keys of `times` (see `since`) from the one on that is valid then, or
    ends then.

    Events from then on change no earlier row: the last event before is in the first of these rows,
    or deletes. The last column is the key's least sequence.
    """
    near = rows.join(times, list(shape.keys))
    return near.where(F.col(END_AT).isNull() | (F.col(END_AT) >= F.col(_SINCE))).select(
        *map(quoted, rows.columns), _SINCE
    )


def hidden_since(
    hidden: DataFrame, rows: DataFrame | None, times: DataFrame, shape: Shape, *, few: bool = False
) -> DataFrame:
    """Return the hidden events of these keys that the fold of new events needs.

    Those from the start of the first of `rows` on, if a new event is not later than the newest one
    of that row; else from its newest event on: whatever is between them has the tracked columns of
    the row. So a key whose events come in order costs the same after any number of events that
    changed nothing.

    `rows`: of `rows_since`. `few`: whether the keys may be broadcast.
    """
    bounds = times
    if rows is not None:
        at = folding.sequence(shape.sequence_by)
        needed = F.when(at < F.col(_SINCE), at).otherwise(F.col(START_AT))
        first = rows.groupBy(*map(quoted, shape.keys)).agg(F.min(needed).alias("_first"))
        earlier = F.when(F.col("_first") < F.col(_SINCE), F.col("_first")).otherwise(F.col(_SINCE))
        bounds = (
            times.join(first, list(shape.keys), "left").withColumn(_SINCE, earlier).drop("_first")
        )
    near = hidden.join(F.broadcast(bounds) if few else bounds, list(shape.keys))
    return near.where(folding.sequence(shape.sequence_by) >= F.col(_SINCE)).select(
        *map(quoted, hidden.columns)
    )


def _as_known(events: DataFrame, *, hidden: bool, stands_in: bool = False) -> DataFrame:
    sources = {_KNOWN: True, _HIDDEN: hidden, _WITHHELD: False, _STANDS_IN: stands_in}
    flags = {name: F.lit(value) for name, value in sources.items()}
    return events.withColumns({**flags, **{name: F.lit(0).cast("long") for name in LOSERS}})


def _beginning(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return an event where a row begins, of rows whose earlier hidden events `hidden_since` leaves
    out.
    """
    at, single = folding.sequence(shape.sequence_by), len(shape.sequence_by) == 1
    start = {
        name: F.col(START_AT) if single else F.col(f"{START_AT}.{quoted(name)}")
        for name in shape.sequence_by
    }
    begun = rows.where((at < F.col(_SINCE)) & (F.col(START_AT) < at))
    columns = [start.get(name, F.col(quoted(name))).alias(name) for name in shape.columns]
    return begun.select(*columns, F.lit(False).alias(GONE))


def _ending(rows: DataFrame, shape: Shape) -> DataFrame:
    """Return the deletes that end a row: where it ends, no other row begins."""
    follows = F.lead(START_AT).over(folding.by(shape.keys).orderBy(START_AT))
    ended = rows.withColumn("_next", follows).where(
        F.col(END_AT).isNotNull() & ~F.col(END_AT).eqNullSafe(F.col("_next"))
    )
    single = len(shape.sequence_by) == 1
    at = {
        name: F.col(END_AT) if single else F.col(f"{END_AT}.{quoted(name)}")
        for name in shape.sequence_by
    }

    def value(name: str) -> Column:
        if name in shape.keys:
            return F.col(quoted(name))
        return at.get(name, F.lit(None).cast(rows.schema[name].dataType)).alias(name)

    return ended.select(*map(value, shape.columns), F.lit(True).alias(GONE))


def judged(
    before: DataFrame | None,
    new: DataFrame,
    shape: Shape,
    withheld: DataFrame | None = None,
    *,
    released: bool = False,
) -> DataFrame:
    """Return all events with AT, FATE, and whether one counts: it is the greatest at its sequence,
    and not withheld.

    FATE is that of a new event (applied, superseded, duplicate), and NULL for all others.

    Args:
        before: what `known` returned.
        new: at most one event per key and sequence, with `_delete` and LOSERS. Lacking columns are
            NULL.
        shape: the columns.
        withheld: events that a person withdrew, with `columns`. One at the top of its sequence
            leaves none there.
        released: `new` are events that were withheld until now, which the hidden ones may have.
    """
    events = _as_new(new, shape, before)
    every = [
        one for one in (before, events, _as_withheld(withheld, events, shape)) if one is not None
    ]
    frame = reduce(DataFrame.unionByName, every).withColumn(AT, folding.sequence(shape.sequence_by))
    content = [
        comparable(frame.schema[name].dataType, F.col(quoted(name))) for name in shape.content
    ]
    ordered = folding.by(shape.keys).orderBy(AT, GONE, *content)
    finer = folding.by(shape.keys).orderBy(AT, GONE, *content, *_SOURCES)
    equal = F.struct(GONE, *(one.alias(f"c{at}") for at, one in enumerate(content)))
    follows = F.lead(AT).over(finer).eqNullSafe(F.col(AT))
    frame = frame.withColumns(
        {
            "_beaten": follows,
            "_twin": follows & F.lead(equal).over(finer).eqNullSafe(equal),
            "_out": _out(withheld, ordered),
        }
    )
    beaten, twin, out = F.col("_beaten"), F.col("_twin"), F.col("_out")
    # a hidden copy may be known that lost its sequence since then to a greater event
    peers = ordered.rangeBetween(Window.currentRow, Window.currentRow)
    frame = frame.withColumn("_top", F.max(~F.col("_beaten")).over(peers))
    same = F.when(F.col("_top"), "applied" if released else "duplicate").otherwise("superseded")
    fate = (
        F.when(out, "superseded").when(~beaten, "applied").when(twin, same).otherwise("superseded")
    )
    return frame.withColumns(
        {FATE: F.when(~F.col(_KNOWN), fate), _COUNTS: F.col(_STANDS_IN) | (~beaten & ~out)}
    ).drop("_beaten", "_twin", "_out", "_top")


def _out(withheld: DataFrame | None, ordered: WindowSpec) -> Column:
    """Return whether an equal event is withheld."""
    if withheld is None:
        return F.lit(False)
    return F.max(_WITHHELD).over(ordered.rangeBetween(Window.currentRow, Window.currentRow))


def _as_new(new: DataFrame, shape: Shape, before: DataFrame | None) -> DataFrame:
    """Return new events with the columns of known ones, whose types they take where they lack
    one.
    """
    kinds = (new if before is None else before).schema
    has = {name: F.col(quoted(name)) for name in new.columns}
    columns = [
        has.get(name, F.lit(None).cast(kinds[name].dataType)).alias(name) for name in shape.columns
    ]
    sources = [F.lit(False).alias(name) for name in _SOURCES]
    return new.select(*columns, F.col("_delete").alias(GONE), *sources, *LOSERS)


def _as_withheld(withheld: DataFrame | None, like: DataFrame, shape: Shape) -> DataFrame | None:
    if withheld is None:
        return None
    has = {name: F.col(quoted(name)) for name in withheld.columns}
    columns = [
        has.get(name, F.lit(None)).cast(like.schema[name].dataType).alias(name)
        for name in shape.columns
    ]
    sources = {_KNOWN: True, _HIDDEN: False, _WITHHELD: True, _STANDS_IN: False}
    flags = [F.lit(value).alias(name) for name, value in sources.items()]
    losers = [F.lit(0).cast("long").alias(name) for name in LOSERS]
    return withheld.select(*columns, F.lit(False).alias(GONE), *flags, *losers)


def fates(judged_events: DataFrame) -> dict[str, int]:
    """Return the number of records by fate: new events, and those that lost to one of them in their
    own batch.
    """
    sums = [F.sum(name).alias(name) for name in LOSERS]
    rows = (
        judged_events.where(F.col(FATE).isNotNull())
        .groupBy(FATE)
        .agg(F.count("*").alias("n"), *sums)
        .collect()
    )
    found = {row[FATE]: row["n"] for row in rows}
    twins, beaten = (sum(row[name] for row in rows) for name in LOSERS)
    return {
        "applied": found.get("applied", 0),
        "duplicate": found.get("duplicate", 0) + twins,
        "superseded": found.get("superseded", 0) + beaten,
    }


def folded(judged_events: DataFrame, shape: Shape) -> DataFrame:
    """Return the events that count, with the bounds of their runs and UNSEEN."""
    counting = judged_events.where(_COUNTS).drop(FATE, _COUNTS, _WITHHELD, _STANDS_IN, *LOSERS)
    kinds = judged_events.schema
    tracked = [
        comparable(kinds[name].dataType, F.col(quoted(name))).alias(name) for name in shape.tracked
    ]
    bounded = folding.bounded(counting, shape.keys, tracked)
    within = folding.by(shape.keys).orderBy(AT)
    so_far = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    after_delete = F.coalesce(F.lag(GONE).over(within), F.lit(True))
    hides = F.when(F.col(GONE), after_delete).otherwise(~F.col(ENDS))
    fresh = F.last(F.when(F.col(BEGINS), ~F.col(_KNOWN)), ignorenulls=True).over(so_far)
    return bounded.withColumns({UNSEEN: hides & ~F.col(_HIDDEN), _FRESH: fresh})


def of_runs(folded_events: DataFrame, rows: DataFrame, shape: Shape) -> DataFrame:
    """Return the events of the runs that `rows`, some of the history, show."""
    within = folded_events.where(~F.col(GONE)).join(
        rows.select(*map(quoted, shape.row_keys)), shape.row_keys, "left_semi"
    )
    return within.select(*map(quoted, shape.columns))


def unseen(folded_events: DataFrame, shape: Shape) -> DataFrame:
    """Return the events to be hidden: those that no row holds whole, with their columns and
    GONE.
    """
    return folded_events.where(UNSEEN).select(*map(quoted, shape.columns), GONE)


def difference(folded_events: DataFrame, rows: DataFrame | None, shape: Shape) -> DataFrame:
    """Return the rows of the history that differ from `rows`, with FATE (insert, update, delete)
    and WHY.

    A deleted row has its keys and start, and NULL elsewhere. One whose first event is within
    another row now is joined; one whose first event counts no more, or became a delete, is removed.
    """
    names = [END_AT, *shape.others]
    keys = [F.col(quoted(name)) for name in shape.keys]
    run = F.struct(*map(quoted, names))
    kind = folded_events.select(run.alias("x")).schema["x"].dataType
    assert isinstance(kind, StructType)
    alive = folded_events.where(~F.col(GONE))
    runs = alive.where(ENDS).select(
        *keys, START_AT, run.alias(_NEW), F.lit(True).alias("_is_row"), _FRESH
    )
    inner = alive.where(~F.col(BEGINS)).select(
        *keys,
        F.col(AT).alias(START_AT),
        F.lit(None).cast(kind).alias(_NEW),
        F.lit(False).alias("_is_row"),
        _FRESH,
    )
    found = runs.unionByName(inner)
    if rows is None:
        paired = found.withColumn(_OLD, F.lit(None).cast(kind))
    else:
        paired = found.join(
            rows.select(*keys, START_AT, run.alias(_OLD)), shape.row_keys, "full_outer"
        )
    return _classified(paired, kind, shape)


def _classified(paired: DataFrame, kind: StructType, shape: Shape) -> DataFrame:
    is_row, was = F.coalesce(F.col("_is_row"), F.lit(False)), F.col(_OLD).isNotNull()
    differs = reduce(Column.__or__, [_differs(name, kind) for name in (END_AT, *shape.others)])
    ended, ends = (F.col(f"{side}.{END_AT}").isNotNull() for side in (_OLD, _NEW))
    why = (
        F.when(is_row & ~was, F.when(F.col(_FRESH), "opened").otherwise("split"))
        .when(
            is_row & differs,
            F.when(ends & ~ended, "closed").when(ended & ~ends, "reopened").otherwise("changed"),
        )
        .when(~is_row & was, F.when(F.col("_is_row").isNull(), "removed").otherwise("joined"))
    )
    act = F.create_map(*(F.lit(text) for pair in WHYS.items() for text in pair))
    values = [F.col(f"{_NEW}.{quoted(name)}").alias(name) for name in (END_AT, *shape.others)]
    fated = paired.withColumn(WHY, why).where(F.col(WHY).isNotNull())
    return fated.select(*map(quoted, shape.row_keys), *values, act[F.col(WHY)].alias(FATE), WHY)


def _differs(name: str, kind: StructType) -> Column:
    old, new = (
        comparable(kind[name].dataType, F.col(f"{side}.{quoted(name)}")) for side in (_OLD, _NEW)
    )
    return ~old.eqNullSafe(new)


def account(different: DataFrame, folded_events: DataFrame) -> tuple[dict[str, int], int]:
    """Return the number of rows by WHY, each of WHYS, and the number of events to be hidden, in one
    job.
    """
    rows = different.groupBy(WHY).agg(F.count("*").alias("n"))
    hidden = folded_events.where(UNSEEN).agg(
        F.lit(None).cast("string").alias(WHY), F.count("*").alias("n")
    )
    found = {row[WHY]: row["n"] for row in rows.unionAll(hidden).collect()}
    number = found.pop(None)
    return dict.fromkeys(WHYS, 0) | found, number
