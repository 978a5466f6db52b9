"""Upsert: the target holds the newest row per key, by sequence; deleted keys become tombstones.

deduplicate by key → compare with target, tombstones and withdrawn rows → write tombstones → MERGE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.ledger.target_log import verify_written
from draindown.sinks.port import FATE
from draindown.spark.contract.origin import arrived
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets import delta_target, memory, resolution, withheld
from draindown.spark.targets.delta_target import Clauses, Writer
from draindown.spark.targets.neighbourhood import (
    Neighbourhood,
    candidates,
    joining,
    neighbourhood,
    settings,
)
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.strategy import Accepted
from draindown.spark.targets.withdrawn import Withdrawn


class Upsert:
    """The strategy of a target with keys."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """Return the accepted rows with `_arrived_at` and `_changed_at`."""
        return (
            arrived(accepted.rows, accepted.blocks)
            .drop("_delete")
            .withColumn(CHANGED_AT, F.lit(accepted.changed_at))
        )

    @contextmanager
    def resolve(self, accepted: Accepted, row: BatchRow) -> Iterator[Upserted]:
        """Deduplicate by key, compare with the target and count the outcomes."""
        near = neighbourhood(accepted, row)
        with (
            configured(accepted.rows.sparkSession, settings(accepted, row, near)),
            ExitStack() as kept,
        ):
            is_apart = near.held is not None and near.held.is_apart
            rows = None if is_apart else candidates(accepted, near, near.held)
            fated, counts = _fated(accepted, near, rows, kept)
            stamped = fated.withColumn(CHANGED_AT, F.lit(accepted.changed_at))
            yield Upserted(accepted, stamped, _by_fate(row, counts), near.is_large, rows)

    @contextmanager
    def withdrawal(
        self, writer: Writer, rows: DataFrame, row: BatchRow, pruning: Pruning
    ) -> Iterator[Withdrawn]:
        """Delete the rows: no older change of their keys is there."""
        yield Withdrawn(writer, rows, row, pruning)


def _fated(
    accepted: Accepted, near: Neighbourhood, rows: DataFrame | None, kept: ExitStack
) -> tuple[DataFrame, Mapping[str, int]]:
    """Return one row per key with FATE, persisted until `kept` closes, and the number of rows per
    outcome.
    """
    writer, good = accepted.writer, accepted.rows
    goal, spark = writer.flow.target, good.sparkSession
    order = resolution.order(
        delta_target.columns_of(spark, writer.layout.tables.target.path), accepted.added
    )
    winners = resolution.newest(arrived(good, accepted.blocks), goal.keys, goal.sequence_by, order)
    kept_out = withheld.keys(spark, writer, winners.schema, accepted.releases)
    deleted = None if near.memory is None else near.memory.rows
    fated = resolution.compare(winners, rows, deleted, goal.keys, goal.sequence_by, kept_out)
    kept.enter_context(persisted(fated))
    counts = resolution.count(fated)
    if rows is not None and resolution.has_ties(counts):
        fated = resolution.settle_ties(fated, rows, goal.keys, order)
        kept.enter_context(persisted(fated))
        counts = resolution.count(fated)
    return fated, counts


def _by_fate(row: BatchRow, counts: Mapping[str, int]) -> BatchRow:
    return replace(
        row,
        superseded=counts.get("superseded", 0) + counts["_superseded"],
        duplicate=counts.get("duplicate", 0) + counts["_duplicates"],
        inserted=counts.get("insert", 0),
        updated=counts.get("update", 0),
        deleted=counts.get("delete", 0),
        tombstoned=counts.get("remember", 0),
    )


@dataclass(frozen=True)
class Upserted:
    """The change of an upsert batch: one row per key with FATE, persisted.

    `is_large`: the target is much larger than the batch. `held`: the rows that it was compared
    with.
    """

    accepted: Accepted
    fated: DataFrame
    row: BatchRow
    is_large: bool
    held: DataFrame | None = None

    def remember(self) -> None:
        """Append the batch's deletes to the tombstones. Idempotent."""
        writer, deletes = self.accepted.writer, self.row.deleted + self.row.tombstoned
        if deletes or writer.holds(writer.layout.tables.tombstones.path, "tombstones"):
            memory.append(writer, self._deletes(), self.accepted.changed_at, deletes)
            verify_written(self.row, writer.layout.tables.tombstones.path, deletes, "deletes")

    def _deletes(self) -> DataFrame:
        deletes = self.fated.where(F.col(resolution.FATE).isin(*resolution.DELETES))
        return deletes.select(
            *[F.col(quoted(name)) for name in self.accepted.writer.flow.target.essential]
        )

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return inserts, updates and deletes. A remembered delete changes nothing of the table."""
        fate, keys = F.col(resolution.FATE), self.accepted.writer.flow.target.keys
        rows = self.fated.where(fate.isin(*resolution.ACTS, "remember"))
        act = F.when(fate.isin("insert", "update"), "upsert").when(fate == "delete", "delete")
        rows = rows.withColumn(FATE, act).drop("_delete", *resolution.LOSERS)
        if not was or self.held is None:
            return rows.withColumns({name: F.lit(None).cast("boolean") for name in was})
        before = self.held.select(
            *map(quoted, keys), *[judged.alias(name) for name, judged in was.items()]
        )
        return rows.join(before, list(keys), "left")

    def write(self, row: BatchRow) -> None:
        """MERGE the inserts, updates and deletes. If there are none, commit the ledger row with an
        empty append.
        """
        writer, spark = self.accepted.writer, self.fated.sparkSession
        with configured(spark, joining(self.accepted, spark) if self.is_large else {}):
            if row.inserted or row.updated or row.deleted:
                acts = self.fated.where(F.col(resolution.FATE).isin(*resolution.ACTS))
                on = " AND ".join(
                    f"t.{quoted(key)} = s.{quoted(key)}" for key in writer.flow.target.keys
                )
                delta_target.merge(
                    writer, acts, on, self._clauses(), self.accepted.pruning, row.as_metadata()
                )
            else:
                nothing = self.fated.where(F.lit(False)).drop(
                    "_delete", resolution.FATE, *resolution.LOSERS
                )
                delta_target.append(writer, nothing, row.as_metadata())

    def _clauses(self) -> Clauses:
        """Return the MERGE clauses, with the sequence guard repeated in each.

        A row that changed since the comparison is not overwritten with an older one.
        """
        row, sequence = self.row, self.accepted.writer.flow.target.sequence_by
        # For a large table the update clauses stay, even if unused: their separate pass over the
        # target uses a hash join of the batch. An insert-only MERGE would sort the table.
        if not (row.updated or row.deleted or self.is_large):
            return Clauses(insert="NOT s._delete")
        own, held = (
            f"struct({', '.join(f'{a}.{quoted(name)}' for name in sequence)})" for a in "st"
        )
        return Clauses(
            f"s._delete AND {own} >= {held}", f"NOT s._delete AND {own} >= {held}", "NOT s._delete"
        )
