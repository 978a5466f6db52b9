"""The first rows of each scope in a total order: the kinds `deduplicate` and `top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from draindown.config.ranking import Deduplicate, Order, Top, total_order
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.derived.standing import StandingTable
from draindown.spark.sql import quoted

_PLACE = "_place"


@dataclass(frozen=True)
class _Ranked(WholeScopes):
    """What both kinds share: one source, whose rows belong to the scope that their columns name."""

    spec: Deduplicate | Top
    table: str

    @property
    def relations(self) -> Sequence[StandingTable]:
        """The one source."""
        return [StandingTable(self.table, self.spec.scope_keys, self.spec.scope_keys)]

    @property
    def absorbs(self) -> bool:
        """Yes: a row that others come before is not among the first ones when more rows come."""
        return True

    def wrong(self, row: BatchRow) -> list[str]:
        """A scope that changes touch has rows now, or had some, and so is in the table."""
        return [f"{row.empty} touched keys without rows are not in the table"] if row.empty else []

    def _placed(self, keyed: Sequence[DataFrame], by: Iterable[Order], name: str) -> DataFrame:
        """Return the source's rows with their number, from 1, in the total order within their
        scope.
        """
        (rows,) = keyed
        rows = rows.drop(*key_names(self))
        within = Window.partitionBy(*map(quoted, self.scope_keys)).orderBy(*map(_sorted, by))
        return rows.withColumn(name, F.row_number().over(within))


@dataclass(frozen=True)
class FirstPerKey(_Ranked):
    """The kind `deduplicate`. Columns: the keys, then the others of the source in its order."""

    spec: Deduplicate

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the least row of each key, or the greatest."""
        names = [name for name in keyed[0].columns if name not in key_names(self)]
        placed = self._placed(
            keyed, total_order(self.spec, names, descending=self.spec.keep == "last"), _PLACE
        )
        others = [name for name in names if name not in self.spec.keys]
        return placed.where(F.col(_PLACE) == 1).select(*map(quoted, (*self.spec.keys, *others)))


@dataclass(frozen=True)
class TopOfGroup(_Ranked):
    """The kind `top`. Columns: the group, `position`, `rank` where ties are kept, then the others
    of the source.
    """

    spec: Top

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the first rows of each group."""
        spec, names = self.spec, [name for name in keyed[0].columns if name not in key_names(self)]
        placed = self._placed(keyed, total_order(spec, names), spec.POSITION)
        last = spec.POSITION
        if spec.with_ties:
            within = Window.partitionBy(*map(quoted, spec.group_by)).orderBy(
                *map(_sorted, spec.order)
            )
            placed, last = placed.withColumn(spec.RANK, F.rank().over(within)), spec.RANK
        others = [name for name in names if name not in spec.group_by]
        return placed.where(F.col(last) <= spec.rows).select(
            *map(quoted, (*spec.group_by, *spec.made, *others))
        )


def _sorted(one: Order) -> Column:
    column = F.col(quoted(one.column))
    return column.desc_nulls_last() if one.descending else column.asc_nulls_last()
