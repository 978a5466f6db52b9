"""The change of a derive batch: what differs from the table, as it is written and as sinks get
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.sinks.port import FATE as SENT_FATE
from draindown.spark.derived.difference import DELETE, FATE, INSERT, UPDATE
from draindown.spark.derived.touched import Work
from draindown.spark.sql import quoted
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Clauses, Held


@dataclass(frozen=True)
class Difference:
    """The change of a derive batch: the rows that differ from the table, with their fate.

    `kept`: what its kind keeps beside the table of the scopes; None: nothing, or what is there
    stays.
    """

    work: Work
    acts: DataFrame
    row: BatchRow
    held: Held | None
    kept: DataFrame | None = None

    def remember(self) -> None:
        """Keep what spares later batches work, of kinds that keep something: the sources have the
        rows.
        """
        memory = self.work.resolved.kind.memory
        if memory is not None:
            spark, batch = self.acts.sparkSession, self.work.batch
            memory.keep(spark, batch.writer, self.work.scope, self.kept, batch.changed_at)

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return the rows that differ. NULL equals NULL in keys."""
        fate = F.when(F.col(FATE) == DELETE, "delete").otherwise("upsert")
        rows = self.acts.withColumn(SENT_FATE, fate)
        if not was or self.held is None:
            return rows.withColumns({name: F.lit(None).cast("boolean") for name in was})
        own = [F.col(quoted(key)).alias(f"_held_{at}") for at, key in enumerate(self.work.row_keys)]
        before = self.held.rows.select(*own, *[judged.alias(name) for name, judged in was.items()])
        same = [
            F.col(quoted(key)).eqNullSafe(F.col(f"_held_{at}"))
            for at, key in enumerate(self.work.row_keys)
        ]
        return rows.join(before, reduce(Column.__and__, same), "left").drop(
            *[f"_held_{at}" for at in range(len(own))]
        )

    def write(self, row: BatchRow) -> None:
        """Commit the difference, or an empty commit with the ledger row if there is none."""
        writer, metadata = self.work.batch.writer, row.as_metadata()
        if self.held is not None and row.applied:
            on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in self.work.row_keys)
            delta_target.merge(writer, self.acts, on, _clauses(row), self.held.pruning, metadata)
            return
        rows = self.acts if row.inserted else self.acts.where(F.lit(False))
        delta_target.append(writer, rows.drop(FATE), metadata)


def _clauses(row: BatchRow) -> Clauses:
    """Return the MERGE clauses that the batch needs. There is no sequence to guard: `until` only
    grows.
    """
    needed = {DELETE: row.deleted, UPDATE: row.updated, INSERT: row.inserted}
    said = {fate: f"s.{FATE} = '{fate}'" if number else None for fate, number in needed.items()}
    return Clauses(said[DELETE], said[UPDATE], said[INSERT])
