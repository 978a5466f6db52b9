"""Histories: one row per run of events of a key with equal tracked columns. The kind `history`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from draindown.ledger.rows import BatchRow
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.sql import quoted, try_eval
from draindown.spec.history import History
from draindown.spec.ranking import total_order

_AT, _GONE, _TRACKED = "_at", "_gone", "_tracked"
_BEGINS, _ENDS = "_begins", "_ends"


@dataclass(frozen=True)
class Histories(WholeScopes):
    """The kind `history`. The scope is a value of the keys, whose events are all read again."""

    spec: History
    table: str

    @property
    def relations(self) -> Sequence[KeyedTable]:
        """The one source, of which only rows with a sequence belong to a scope."""
        return [KeyedTable(self.table, self.scope_keys, self.scope_keys, needed=self.spec.sequence_by)]

    def wrong(self, row: BatchRow) -> list[str]:
        """A key that changes touch has events now, or had some: where none deletes, it is in the table."""
        missing = row.absent and self.spec.apply_as_deletes is None
        return [f"{row.absent} touched keys without rows are not in the table"] if missing else []

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the runs of each key. Columns: keys, start, end, then the others of the source in its order."""
        (rows,), spec = keyed, self.spec
        names = [name for name in rows.columns if name not in key_names(self)]
        others = [name for name in names if name not in self.scope_keys]
        events = rows.select(*map(quoted, names), self._sequence().alias(_AT), self._deletes(rows).alias(_GONE))
        ended = self._bounded(self._counting(events, names), spec.tracked(names))
        kept = ended.where(~F.col(_GONE) & F.col(_ENDS))
        return kept.select(*map(quoted, (*self.scope_keys, *spec.made, *others)))

    def _counting(self, events: DataFrame, names: Sequence[str]) -> DataFrame:
        """Return of events with the same key and sequence the one that counts: a delete, or the greatest."""
        content = [one.column for one in total_order(self.spec, names) if one.column not in self.spec.sequence_by]
        within = self._by.orderBy(_AT, _GONE, *(F.col(quoted(name)).asc_nulls_first() for name in content))
        same = F.lead(_AT).over(within).eqNullSafe(F.col(_AT))
        return events.withColumn("_lost", same).where("not _lost").drop("_lost")

    def _bounded(self, events: DataFrame, tracked: Sequence[str]) -> DataFrame:
        """Return events with `__START_AT` of their run, and `_ends`: whether another run or nothing follows.

        Of the last event of a run `__END_AT` is the sequence of the next event, which begins another run or deletes.
        """
        within = self._by.orderBy(_AT)
        was_gone, before = F.lag(_GONE).over(within), F.lag(_TRACKED).over(within)
        differs = F.coalesce(was_gone, F.lit(True)) | ~before.eqNullSafe(F.col(_TRACKED))
        so_far = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        start = F.last(F.when(F.col(_BEGINS), F.col(_AT)), ignorenulls=True).over(so_far)
        follows = F.lead(F.col(_BEGINS) | F.col(_GONE)).over(within)
        compared = events.withColumn(_TRACKED, F.struct(*map(quoted, tracked)) if tracked else F.lit(True))
        begun = compared.withColumn(_BEGINS, ~F.col(_GONE) & differs)
        return begun.withColumns(
            {
                self.spec.START: start,
                self.spec.END: F.lead(_AT).over(within),
                _ENDS: F.coalesce(follows, F.lit(True)),
            }
        )

    @property
    def _by(self) -> WindowSpec:
        return Window.partitionBy(*map(quoted, self.scope_keys))

    def _sequence(self) -> Column:
        names = [F.col(quoted(name)) for name in self.spec.sequence_by]
        return names[0] if len(names) == 1 else F.struct(*names)

    def _deletes(self, rows: DataFrame) -> Column:
        said = self.spec.apply_as_deletes
        return F.lit(False) if said is None else F.coalesce(try_eval(rows.sparkSession, said), F.lit(False))
