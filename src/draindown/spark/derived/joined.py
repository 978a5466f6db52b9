"""Joins: pairs of rows of two tables, recomputed per key and bucket of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.join import Join
from draindown.config.table_source import SourceTable
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.derived.pairs import owned, paired
from draindown.spark.derived.scope import WHOLE, Bucket, KeyRange, micros
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning, Range

_SECOND = 1_000_000
_TIMES = ("_left_time", "_right_time")


@dataclass(frozen=True)
class _Side(KeyedTable):
    """One of the two tables. `columns`: those of `on`, without the time.

    Attributes:
        time: the column with a row's time; empty for a join without a bound.
        first, last: seconds from a row's time to the earliest and the latest left time that it
            matches.
        length: seconds of a bucket.
        is_kept: whether a row without a key or a time is in the result.
    """

    time: str = ""
    first: int = 0
    last: int = 0
    length: int = 1
    is_kept: bool = False

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return each row once for each bucket with left times that it matches."""
        names = key_names(self)
        own = [one.alias(name) for one, name in zip(self.home(), names, strict=True)]
        found = rows.where(self.belongs()).select("*", *own)
        if not self.time or self.first == self.last:
            return found
        both = F.array(*(self._start(offset) for offset in (self.first, self.last)))
        return found.withColumn(names[-1], F.explode(F.array_distinct(both)))

    def home(self) -> Sequence[Column]:
        """Return the key columns, and the bucket of the earliest left time that a row matches."""
        return [*super().home(), *([self._start(self.first)] if self.time else [])]

    def _start(self, offset: int) -> Column:
        """Return the start of the bucket that a row's time is in, `offset` seconds away from it."""
        at = micros(self.time) + offset * _SECOND
        return F.timestamp_micros(at - F.pmod(at, F.lit(self.length * _SECOND)))

    def places(self, bucket: Bucket) -> Column:
        """Count the bucket's keys from the first to the last left time that a row matches."""
        if not self.time:
            return F.when(self.belongs(), bucket.has(self.home()).cast("int")).otherwise(0)
        step = F.lit(self.length * _SECOND).cast("bigint")
        first, last = (
            F.floor((micros(self.time) + one * _SECOND) / step) for one in (self.first, self.last)
        )
        number = (last - first).cast("int") + 1
        if bucket != WHOLE:
            starts = F.transform(
                F.sequence(F.lit(0), F.coalesce(number, F.lit(1)) - 1),
                lambda at: (first + at) * step,
            )
            keys = super().home()
            number = F.size(
                F.filter(starts, lambda start: bucket.has([*keys, F.timestamp_micros(start)]))
            )
        return F.when(self.belongs(), F.coalesce(number, F.lit(1))).otherwise(0)

    def near(self, own: KeyRange) -> Column:
        """Return the condition that a key is in the range; of buckets, that a left time may be in
        one of it.
        """
        if own.at < len(self.columns):
            return own.between(super().home()[own.at])
        at = F.timestamp_micros(micros(self.time) + (self.first + self.length) * _SECOND)
        return own.between(at, f"{2 * self.length} seconds")

    def belongs(self) -> Column:
        """Return whether a row has a key and a time, or is kept without them."""
        if self.is_kept:
            return F.lit(True)
        names = [*self.columns, *([self.time] if self.time else [])]
        return reduce(Column.__and__, [F.col(quoted(name)).isNotNull() for name in names])

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the same predicates on the key columns, and the times that may match left times of
        the buckets.
        """
        own = dict(zip(self.scope_keys, self.columns, strict=False))
        values = {own[name]: some for name, some in keys.values.items() if name in own}
        ranges = {own[name]: some for name, some in keys.ranges.items() if name in own}
        spans = [self._span(one) for one in keys.ranges.get(Join.BUCKET, ())] if self.time else []
        known = [one for one in spans if one is not None]
        return Pruning(
            values, {**ranges, **({self.time: known} if known and len(known) == len(spans) else {})}
        )

    def _span(self, starts: Range) -> Range | None:
        """Return the times that match a left time in buckets that start in a range; None beyond the
        years 1 to 9999.
        """
        try:
            low, high = map(datetime.fromisoformat, starts)
            return str(low - timedelta(seconds=self.last)), str(
                high + timedelta(seconds=self.length - self.first)
            )
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True)
class Joined(WholeScopes):
    """The kind `join`. The scope is a key and a bucket of left times: a left row is in one, a right
    row in two.
    """

    spec: Join
    tables: Sequence[SourceTable]

    @property
    def relations(self) -> Sequence[KeyedTable]:
        """The two tables, in the order of the file."""
        return [self._side(side, one) for side, one in enumerate(self.tables)]

    def _side(self, side: int, table: SourceTable) -> KeyedTable:
        spec = self.spec
        low, high = spec.bound if side else (0, 0)
        return _Side(
            table.table,
            spec.scope_keys,
            spec.own(side),
            table.row_keys,
            own=owned(spec, side),
            time=spec.times[side] if spec.times else "",
            first=-high,
            last=-low,
            length=spec.bucket,
            is_kept=spec.is_outer and not side,
        )

    def wrong(self, row: BatchRow) -> list[str]:
        """Return whether keys were counted that no image touched. A key of right rows alone is not
        in the table.

        With times this can't be told of a bucket: a right row is counted in that of its first key
        alone, and touches keys in others.
        """
        is_counted = row.used > 0 or bool(self.spec.times)
        return (
            ["keys were recomputed that no image touched"]
            if row.recomputed and not is_counted
            else []
        )

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Pair the rows of each scope whose times are within the bound."""
        spec, names = self.spec, key_names(self)
        left, right = keyed
        if not spec.times:
            return paired(spec, left, right, names)
        left, right = (
            rows.withColumn(name, micros(time))
            for rows, name, time in zip((left, right), _TIMES, spec.times, strict=True)
        )
        low, high = (F.lit(one * _SECOND) for one in spec.bound)
        apart = F.col(_TIMES[1]) - F.col(_TIMES[0])
        return paired(
            spec,
            left,
            right,
            names,
            apart.between(low, high),
            {Join.BUCKET: F.col(names[-1])},
            _TIMES,
        )
