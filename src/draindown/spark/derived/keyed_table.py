"""The relation of a source table that has the columns of the scopes: each row belongs to the scope
of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.spark.derived.kind import Direct, key_names
from draindown.spark.derived.scope import Bucket, KeyRange
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning


@dataclass(frozen=True)
class KeyedTable(Direct):
    """A source whose columns are the keys of the scopes: a row belongs to one scope.

    Attributes:
        name: that by which the query reads it.
        scope_keys: the keys of the result's scopes.
        columns: the table's own columns that are these keys, in the same order.
        row_keys: the table's columns by which no two of its rows are the same; empty if that is not
            known.
        own: draindown's own columns that the result depends on.
        needed: columns without which a row belongs to no scope.
    """

    name: str
    scope_keys: Sequence[str]
    columns: Sequence[str]
    row_keys: Sequence[str] = ()
    own: Sequence[str] = ()
    needed: Sequence[str] = ()

    @property
    def keys_by_column(self) -> Mapping[str, str]:
        """The result's keys by the table's own columns."""
        return dict(zip(self.columns, self.scope_keys, strict=True))

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return the rows that belong to a scope, with their own key columns."""
        rows = rows.where(self.belongs()) if self.needed else rows
        return rows.select(
            "*", *(key.alias(name) for key, name in zip(self.home(), key_names(self), strict=True))
        )

    def home(self) -> Sequence[Column]:
        """Return the key columns."""
        return [F.col(quoted(name)) for name in self.columns]

    def places(self, bucket: Bucket) -> Column:
        """Return 1 for rows that belong to a scope whose key is in the bucket."""
        return F.when(self.belongs(), bucket.has(self.home()).cast("int")).otherwise(0)

    def near(self, own: KeyRange) -> Column:
        """Return the condition that a row's key is in the range."""
        return own.has(self.home())

    def belongs(self) -> Column:
        """Return whether a row has all columns that it needs."""
        return reduce(
            Column.__and__, [F.col(quoted(name)).isNotNull() for name in self.needed], F.lit(True)
        )

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the same predicates, on the table's own key columns."""
        own = dict(zip(self.scope_keys, self.columns, strict=True))
        return Pruning(
            {own[name]: values for name, values in keys.values.items()},
            {own[name]: ranges for name, ranges in keys.ranges.items()},
        )


@dataclass(frozen=True)
class TimedTable(KeyedTable):
    """A source whose rows are found by their time too. `start`: the result's column with the start
    of a run of rows.
    """

    time: str = ""
    start: str = ""

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the same predicates on the table's own key columns, and the times of the runs."""
        own, times = super().source_pruning(keys.only(self.scope_keys)), keys.ranges.get(self.start)
        return Pruning(own.values, {**own.ranges, **({self.time: times} if times else {})})
