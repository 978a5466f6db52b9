"""The keys that a derive batch recomputes: those that changes touch, or all of one bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.base.clock import EPOCH
from draindown.spark.frames import persisted
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning, Range, joined, text_safe

_SENT = 500_000  # touched keys; more of them are not broadcast
_MOST_VALUES = 200
_COLLECTED = (
    2_000  # rows of each task whose values are collected before it is known how many there are
)
_DAY = 86_400


@dataclass(frozen=True)
class KeyRange:
    """The keys whose value at place `at` is `low` or more and less than `high`. NULL is less than
    any value.

    `low`, `high`: text of type `kind`; None for no bound.
    """

    at: int
    kind: str
    low: str | None
    high: str | None

    def has(self, key: Sequence[Column]) -> Column:
        """Return the condition that a key is in the range."""
        return self.between(key[self.at])

    def between(self, value: Column, wider: str = "") -> Column:
        """Return the condition that a value is in the range, whose end is later by the interval
        `wider`.
        """
        found, null = F.lit(True), F.lit(False)
        if self.low is None:
            null = value.isNull()
        else:
            found = value >= F.lit(self.low).cast(self.kind)
        if self.high is not None:
            high = F.lit(self.high).cast(self.kind)
            found &= (value < (high + F.expr(f"interval {wider}") if wider else high)) | null
        return found


@dataclass(frozen=True)
class Bucket:
    """Bucket `number` of `of`, by the hash of a key, of the keys in `range`; None: of all keys."""

    number: int
    of: int
    range: KeyRange | None = None

    def has(self, key: Sequence[Column]) -> Column:
        """Return the condition that a key is in the bucket."""
        within = F.lit(True) if self.range is None else self.range.has(key)
        return (
            within
            if self.of == 1
            else within & (F.pmod(F.xxhash64(*key), F.lit(self.of)) == self.number)
        )

    def pruning(self, keys: Sequence[str]) -> Pruning:
        """Return predicates on the key columns `keys` that every key of the bucket satisfies."""
        own = self.range
        if own is None or own.low is None or own.high is None:
            return Pruning()
        return Pruning(ranges={keys[own.at]: [(own.low, own.high)]})


LOW, HIGH = "_low", "_high"
"""Columns of touched keys: the ends of what is read again of a key."""
_FIRST, _LAST = "_first", "_last"
WENT = "_went"
"""Column of touched keys, of a kind that absorbs: whether a row went from the key."""
WHOLE = Bucket(0, 1)
"""The bucket of all keys."""


class Scope(Protocol):
    """A set of keys."""

    @property
    def pruning(self) -> Pruning:
        """Predicates on the result's key columns that every key of the set satisfies."""

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key, in the columns `names`, is in the set."""


@dataclass(frozen=True)
class Everything:
    """All keys of a bucket: for a fill, which compares the whole table with its whole source."""

    bucket: Bucket
    pruning: Pruning = field(default_factory=Pruning)

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key is in the bucket."""
        return rows.where(self.bucket.has([F.col(quoted(name)) for name in names]))


@dataclass(frozen=True)
class Part:
    """Those keys of a set for which a condition on the key columns of source rows holds."""

    scope: Scope
    condition: Column

    @property
    def pruning(self) -> Pruning:
        """Predicates that every key of the set satisfies."""
        return self.scope.pruning

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key is in the set."""
        return self.scope.within(rows, names).where(self.condition)


@dataclass(frozen=True)
class Span:
    """The rows of a scope that depend on each other: runs of rows, each at most `gap` seconds after
    the one before.

    `time`: the source's column with a row's time. `start`, `end`: the result's columns with the
    time of a run's first row, and of its last one plus `gap`.
    """

    time: str
    gap: int
    start: str
    end: str


@dataclass(frozen=True)
class Touched:
    """The keys that changes touch. `keys`: one row per key, `number` of them; persisted by the
    caller.

    `earliest`: the least time of a changed row, of a kind with a time and no span, as text; None if
    none is known. Of a kind with a time, `keys` ends with the columns LOW and HIGH: the times of
    the earliest and the latest changed row of the key, in microseconds since 1970. Of a kind that
    absorbs, it ends with WENT.
    """

    keys: DataFrame
    number: int
    pruning: Pruning
    earliest: str | None = None

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key is touched. NULL equals NULL."""
        keys, same = self.matching(names)
        return rows.join(keys, same, "left_semi")

    def matching(self, names: Sequence[str]) -> tuple[DataFrame, Column]:
        """Return the touched keys, and the condition that a row's key, in the columns `names`, is
        one of them.
        """
        own = [f"_touched{at}" for at in range(len(names))]
        keys = self.keys.toDF(*own, *self.keys.columns[len(own) :])
        keys = F.broadcast(keys) if self.number <= _SENT else keys
        same = [
            F.col(quoted(name)).eqNullSafe(F.col(key)) for name, key in zip(names, own, strict=True)
        ]
        return keys, reduce(Column.__and__, same)


@dataclass(frozen=True)
class Spanned:
    """The touched keys, and of each only the rows between LOW and HIGH, at which no run is cut."""

    touched: Touched
    span: Span
    pruning: Pruning

    @property
    def times(self) -> Pruning:
        """The predicate that the starts of all runs satisfy which are read again; none if these
        have no order here.
        """
        return self.pruning.only([self.span.start])

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key is touched and whose time, or start as rows of the result, is
        in the key's span.
        """
        keys, same = self.touched.matching(names)
        # rows of the source have their key in columns of draindown's own, and may have a column
        # named as the start
        at = micros(self.span.time if names[0].startswith("_") else self.span.start)
        return rows.join(keys, same & (at >= F.col(LOW)) & (at <= F.col(HIGH)), "left_semi")


def spanned(
    touched: Touched, span: Span, held: DataFrame, names: Sequence[str], kept: ExitStack
) -> Spanned:
    """Return the span of each touched key: its changed rows, and the runs of the table within a gap
    of them.

    One step is enough: two runs of a key are more than a gap apart, so what lies beyond depends on
    nothing within. `held`: rows of the table, at least those of the touched keys, whose columns
    `names` are the key. The spans are persisted until `kept` closes.
    """
    keys, same = touched.matching(names)
    gap = F.lit(span.gap * 1_000_000)
    start, end = micros(span.start), micros(span.end)
    near = same & (start <= F.col(HIGH) + gap) & (end >= F.col(LOW))
    own = keys.columns[: len(names)]
    runs = held.select(*map(quoted, names), quoted(span.start), quoted(span.end)).join(keys, near)
    # by key before they are joined to the keys: Spark sends keys to the runs only where it keeps no
    # key without one
    ends = runs.groupBy(*own).agg(F.min(start).alias(_FIRST), F.max(end - gap).alias(_LAST))
    ends = ends.toDF(*(f"{name}_" for name in own), _FIRST, _LAST)
    all_keys = touched.keys.toDF(*keys.columns)
    alike = reduce(Column.__and__, [F.col(name).eqNullSafe(F.col(f"{name}_")) for name in own])
    ends = F.broadcast(ends) if touched.number <= _SENT else ends
    found = all_keys.join(ends, alike, "left").select(
        *own, F.least(LOW, _FIRST).alias(LOW), F.greatest(HIGH, _LAST).alias(HIGH)
    )
    kept.enter_context(persisted(found))
    bounds = found.agg(
        *(F.timestamp_micros(one).cast("string") for one in (F.min(LOW), F.max(HIGH)))
    ).first()
    assert bounds is not None  # an aggregate without groups has one row
    # years before 1 and beyond 9999 have a sign
    known = all(text and text[0].isdigit() for text in bounds)
    times: Mapping[str, Sequence[Range]] = {span.start: [(bounds[0], bounds[1])]} if known else {}
    pruning = Pruning(touched.pruning.values, {**touched.pruning.ranges, **times})
    return Spanned(Touched(found, touched.number, touched.pruning), span, pruning)


def micros(name: str) -> Column:
    """Return a time in microseconds since 1970."""
    return F.unix_micros(F.col(quoted(name)).cast("timestamp"))


def pruning_of(keys: DataFrame, names: Sequence[str]) -> tuple[int, Pruning]:
    """Return the number of keys in a frame, and predicates that every key satisfies. `names`: the
    frame's columns.

    A few values are listed. Many become ranges; times become one range a day. Times are in UTC,
    the session's zone. It takes one pass, and another one for a column that may have few values in
    a frame of very many rows.
    """
    measures: list[Column] = []
    for index, name in enumerate(names):
        of_column = _measures(keys, name)
        measures += [column.alias(f"{measure}{index}") for measure, column in of_column.items()]
    numbered = keys.withColumn(
        _ROW, F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_OF_TASK))
    )
    number = F.count("*").alias("all")
    uncollected = F.count_if(~_is_early()).alias("uncollected")
    row = numbered.agg(number, uncollected, *measures).first()
    assert row is not None  # an aggregate without groups has one row
    pruning = Pruning()
    for index, name in enumerate(names):
        measured = {measure: row[f"{measure}{index}"] for measure in _WHAT}
        values = measured["some"]
        may_be_few = values is not None and len(values) <= _MOST_VALUES
        if row["uncollected"] and may_be_few:
            distinct = keys.select(_text(name)).distinct()
            measured["some"] = distinct.limit(_MOST_VALUES + 1).collect()
        own = _pruning(name, keys.schema[name].dataType.typeName(), measured)
        pruning = Pruning({**pruning.values, **own.values}, {**pruning.ranges, **own.ranges})
    return int(row["all"]), pruning


_WHAT = ("some", "days", "low", "high", "odd")
_ROW = "_row"
"""Column: the number of a row among those of its task, from 0."""
_ROW_OF_TASK = (
    1 << 33
) - 1  # the bits in which `monotonically_increasing_id` counts the rows of a task


def _is_early() -> Column:
    """Return whether a row is one of the first of its task, whose values are collected: a set is
    never spilled.
    """
    return F.col(_ROW) < _COLLECTED


def _text(name: str) -> Column:
    return F.col(quoted(name)).cast("string").alias("value")


def _measures(keys: DataFrame, name: str) -> dict[str, Column]:
    """Return, of a column, up to so many values and one more, the days of times, the ends, and what
    has no range.
    """
    column, kind = F.col(quoted(name)), keys.schema[name].dataType.typeName()
    value = F.when(_is_early(), F.struct(_text(name)))  # in a struct, since sets drop NULL
    is_time, is_safe = kind.startswith("timestamp"), bool(text_safe(keys.schema, [name]))
    day = (
        F.floor(F.unix_seconds(column.cast("timestamp")) / _DAY)
        if is_time
        else F.lit(None).cast("bigint")
    )
    odd = column.isNull() | (~F.is_valid_utf8(column) if kind == "string" else F.lit(False))
    ends = column if is_time or kind in _RANGED else F.lit(None).cast("string")
    return {
        "some": F.slice(F.collect_set(value), 1, _MOST_VALUES + 1) if is_safe else F.lit(None),
        "days": F.collect_set(day),
        "low": F.min(ends).cast("string"),
        "high": F.max(ends).cast("string"),
        "odd": F.count_if(odd),
    }


def _pruning(name: str, kind: str, found: Mapping[str, Any]) -> Pruning:
    if found["some"] is not None and len(found["some"]) <= _MOST_VALUES:
        return Pruning(values={name: [one["value"] for one in found["some"]]})
    if found["low"] is None or found["odd"]:  # NULL lies in no range
        return Pruning()
    ranges: list[Range] = [(found["low"], found["high"])]
    with suppress(OverflowError):  # of days beyond the year 9999
        ranges = _by_day(ranges[0], sorted(found["days"])) or ranges
    together = joined(ranges, kind)
    return Pruning(ranges={name: together} if together else {})


def _by_day(ends: Range, days: Sequence[int]) -> list[Range]:
    """Return a range of times for each day, the first from the start of `ends`, the last up to
    their end.
    """
    dates = [(EPOCH + timedelta(days=day)).date().isoformat() for day in days]
    starts = [ends[0], *(f"{one} 00:00:00" for one in dates[1:])]
    return (
        list(zip(starts, [*(f"{one} 23:59:59.999999" for one in dates[:-1]), ends[1]], strict=True))
        if days
        else []
    )


_RANGED = ("byte", "short", "integer", "long", "date", "decimal", "string")
