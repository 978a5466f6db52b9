"""Histories: one row per run of events of a key with equal tracked columns. The kind `history`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.history import History
from draindown.config.ranking import total_order
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.sql import quoted, try_eval
from draindown.spark.targets import folding


@dataclass(frozen=True)
class Histories(WholeScopes):
    """The kind `history`. The scope is a value of the keys, whose events are all read again."""

    spec: History
    table: str

    @property
    def relations(self) -> Sequence[KeyedTable]:
        """The one source, of which only rows with a sequence belong to a scope."""
        return [
            KeyedTable(self.table, self.scope_keys, self.scope_keys, needed=self.spec.sequence_by)
        ]

    def wrong(self, row: BatchRow) -> list[str]:
        """A key that changes touch has events now, or had some: where none deletes, it is in the
        table.
        """
        missing = row.empty and self.spec.apply_as_deletes is None
        return [f"{row.empty} touched keys without rows are not in the table"] if missing else []

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Return the runs of each key. Columns: keys, start, end, then the others of the source in
        its order.
        """
        (rows,), spec = keyed, self.spec
        names = [name for name in rows.columns if name not in key_names(self)]
        others = [name for name in names if name not in self.scope_keys]
        content = [
            one.column for one in total_order(spec, names) if one.column not in spec.sequence_by
        ]
        ascending = [F.col(quoted(name)).asc_nulls_first() for name in content]
        at = folding.sequence(spec.sequence_by).alias(folding.AT)
        events = rows.select(*map(quoted, names), at, self._deletes(rows).alias(folding.GONE))
        counted = folding.counting(events, self.scope_keys, ascending)
        ended = folding.bounded(
            counted, self.scope_keys, [F.col(quoted(name)) for name in spec.tracked(names)]
        )
        kept = ended.where(~F.col(folding.GONE) & F.col(folding.ENDS))
        return kept.select(*map(quoted, (*self.scope_keys, *spec.made, *others)))

    def _deletes(self, rows: DataFrame) -> Column:
        said = self.spec.apply_as_deletes
        return (
            F.lit(False)
            if said is None
            else F.coalesce(try_eval(rows.sparkSession, said), F.lit(False))
        )
