"""Windows: aggregates per window of time and group."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.window import Window
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.averages import exact_measure
from draindown.spark.derived.kind import Direct, WholeScopes, key_names
from draindown.spark.derived.scope import WHOLE, Bucket, KeyRange
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning, Range

_WINDOW = "_window"
_COUNT = re.compile(r"count\s*\(\s*(\*|1)\s*\)", re.IGNORECASE)


@dataclass(frozen=True)
class Windows(WholeScopes, Direct):
    """The kind `window`. A touched key is a window and a group; the rows to read again are those of
    these windows.
    """

    spec: Window

    @property
    def relations(self) -> Sequence[Windows]:
        """The one source, whose rows belong to windows by their time."""
        return [self]

    @property
    def counted(self) -> str | None:
        """The first measure that is `count(*)`."""
        return count_column(self.spec.measures)

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return each row once for each window that it lies in. Spark's `window` drops rows without
        a time.
        """
        windowed = self._windowed(rows)
        values = [F.col(f"{_WINDOW}.start"), *map(_column, self.spec.group_by)]
        return windowed.select(
            "*", *(value.alias(name) for value, name in zip(values, key_names(self), strict=True))
        )

    def _windowed(self, rows: DataFrame) -> DataFrame:
        """Return each row with a time once for each window that it lies in, as _WINDOW: a struct of
        start and end.
        """
        time, spec = _column(self.spec.time), self.spec
        if spec.months is None:
            begin = f"{spec.origin} seconds"
            window = F.window(time, f"{spec.seconds} seconds", f"{spec.step} seconds", begin)
            return rows.select("*", window.alias(_WINDOW))
        kind, first = rows.schema[spec.time].dataType, _first_of(time, spec.months)
        window = F.struct(
            first.cast(kind).alias("start"),
            F.add_months(first, spec.months).cast(kind).alias("end"),
        )
        return rows.where(self.belongs()).select("*", window.alias(_WINDOW))

    def home(self) -> Sequence[Column]:
        """Return the newest window that a row lies in, and its group."""
        # not F.window: it drops rows without a time, which are counted too
        return [F.timestamp_micros(self._newest()), *map(_column, self.spec.group_by)]

    def places(self, bucket: Bucket) -> Column:
        """Count the bucket's windows that begin at most `size` before a row's time."""
        if self.spec.months is not None:
            own = F.lit(True) if bucket == WHOLE else bucket.has(self.home())
            return F.when(self.belongs() & own, 1).otherwise(0)
        newest, groups = self._newest(), list(map(_column, self.spec.group_by))
        # a product of two integers could overflow
        step = F.lit(self.spec.step * 1_000_000).cast("bigint")
        oldest = self._micros() - F.lit(self.spec.seconds * 1_000_000) + 1
        number = F.floor((newest - oldest) / step).cast("int") + 1
        if bucket != WHOLE:
            starts = F.transform(F.sequence(F.lit(0), number - 1), lambda at: newest - at * step)
            number = F.size(
                F.filter(starts, lambda start: bucket.has([F.timestamp_micros(start), *groups]))
            )
        return F.when(self.belongs(), number).otherwise(0)

    def near(self, own: KeyRange) -> Column:
        """Return the condition that a row's group or time is in the range; a time, up to `size`
        after its end.
        """
        if own.at:
            return own.has(self.home())
        return own.between(
            _column(self.spec.time).cast("timestamp"), f"{self.spec.seconds} seconds"
        )

    def _micros(self) -> Column:
        return F.unix_micros(_column(self.spec.time).cast("timestamp"))

    def _newest(self) -> Column:
        """Return the start of the newest window that a row lies in, in microseconds."""
        if self.spec.months is not None:
            first = _first_of(_column(self.spec.time), self.spec.months)
            return F.unix_micros(first.cast("timestamp"))
        micros, origin = self._micros(), F.lit(self.spec.origin * 1_000_000)
        return micros - F.pmod(micros - origin, F.lit(self.spec.step * 1_000_000))

    def belongs(self) -> Column:
        """Return whether a row has a time."""
        return _column(self.spec.time).isNotNull()

    @property
    def computed(self) -> Collection[str]:
        """The measures."""
        return self.spec.measures

    def wrong(self, row: BatchRow) -> list[str]:
        """A window that changes touch has rows now, or had some, and so is in the table."""
        return (
            [f"{row.empty} touched windows without rows are not in the table"] if row.empty else []
        )

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Aggregate per window and group."""
        (rows,), spec = keyed, self.spec
        keys = [
            F.col(own).alias(name) for own, name in zip(key_names(self), spec.keys, strict=True)
        ]
        measures = [
            F.expr(exact_measure(text, rows)).alias(name) for name, text in spec.measures.items()
        ]
        found = rows.groupBy(*keys, F.col(f"{_WINDOW}.end").alias(spec.END)).agg(*measures)
        return found.select(*map(quoted, (*spec.keys, spec.END, *spec.measures)))

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the groups' own predicates, and the times from the first instant of the windows to
        the last.
        """
        groups = keys.only(self.spec.group_by)
        spans = [_span(one, self.spec.seconds) for one in keys.ranges.get(self.spec.START, ())]
        known = [span for span in spans if span is not None]
        times = {self.spec.time: known} if known and len(known) == len(spans) else {}
        return Pruning(groups.values, {**groups.ranges, **times})


def count_column(measures: Mapping[str, str]) -> str | None:
    """Return the first measure that is `count(*)`; None without one."""
    return next((name for name, text in measures.items() if _COUNT.fullmatch(text.strip())), None)


def _first_of(time: Column, months: int) -> Column:
    """Return the first day of the months that a time lies in, counted in so many from January 1970,
    in UTC.
    """
    day = F.to_date(time)
    since = F.pmod((F.year(day) - 1970) * 12 + F.month(day) - 1, F.lit(months))
    return F.add_months(F.trunc(day, "MM"), -since)


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _span(starts: Range, size: int) -> Range | None:
    """Return the times in windows of `size` seconds that start in a range; None beyond the years 1
    to 9999.
    """
    try:
        return starts[0], str(datetime.fromisoformat(starts[1]) + timedelta(seconds=size))
    except (ValueError, OverflowError):
        return None
