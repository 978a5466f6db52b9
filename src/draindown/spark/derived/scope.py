"""The keys that a derive batch recomputes: those that changes touch, or all of one bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning, Range, joined, text_safe

_SENT = 500_000  # touched keys; more of them are not broadcast
_MOST_VALUES = 200
_DAY = 86_400


@dataclass(frozen=True)
class Bucket:
    """Bucket `number` of `of`, by the hash of a key."""

    number: int
    of: int

    def has(self, key: Sequence[Column]) -> Column:
        """Return the condition that a key is in the bucket."""
        return F.lit(True) if self.of == 1 else F.pmod(F.xxhash64(*key), F.lit(self.of)) == self.number


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
class Touched:
    """The keys that changes touch. `keys`: one row per key, `number` of them; persisted by the caller."""

    keys: DataFrame
    number: int
    pruning: Pruning

    def within(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return the rows whose key is touched. NULL equals NULL."""
        keys = self.keys.toDF(*(f"_touched{at}" for at in range(len(names))))
        keys = F.broadcast(keys) if self.number <= _SENT else keys
        pairs = zip(names, keys.columns, strict=True)
        same = [F.col(quoted(name)).eqNullSafe(F.col(own)) for name, own in pairs]
        return rows.join(keys, reduce(Column.__and__, same), "left_semi")


def pruning_of(keys: DataFrame, names: Sequence[str]) -> Pruning:
    """Return predicates on `names` that a frame of keys satisfies. Its columns are these names.

    Few values are listed; many become ranges, a day of times each at least. Times are in UTC, the session's zone.
    """
    found = Pruning()
    for name in names:
        one = _values(keys, name) or _ranges(keys, name)
        found = Pruning({**found.values, **one.values}, {**found.ranges, **one.ranges})
    return found


def _values(keys: DataFrame, name: str) -> Pruning | None:
    if not text_safe(keys.schema, [name]):
        return None
    rows = keys.select(F.col(quoted(name)).cast("string")).distinct().limit(_MOST_VALUES + 1).collect()
    return Pruning(values={name: [row[0] for row in rows]}) if len(rows) <= _MOST_VALUES else None


def _ranges(keys: DataFrame, name: str) -> Pruning:
    column, kind = F.col(quoted(name)), keys.schema[name].dataType.typeName()
    if kind not in ("timestamp", "timestamp_ntz", *_RANGED):
        return Pruning()
    odd = ~F.is_valid_utf8(column) if kind == "string" else F.lit(False)
    by = F.floor(F.unix_seconds(column.cast("timestamp")) / _DAY) if kind.startswith("timestamp") else F.lit(0)
    ends = (F.min(column).cast("string").alias("low"), F.max(column).cast("string").alias("high"))
    rows = keys.groupBy(by.alias("by")).agg(*ends, F.count_if(column.isNull() | odd).alias("odd")).collect()
    ranges: list[Range] = [(row["low"], row["high"]) for row in rows if row["low"] is not None]
    if not ranges or any(row["odd"] for row in rows):  # NULL lies in no range
        return Pruning()
    together = joined(ranges, kind)
    return Pruning(ranges={name: together}) if together else Pruning()


_RANGED = ("byte", "short", "integer", "long", "date", "decimal", "string")
