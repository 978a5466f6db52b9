"""The batches of a landing flow: how one is read, what it writes beside its target, and how its
rows are resolved.

The order of the steps is that of `targets.batch.apply`:

verify the input → read → parse → count (one pass over the persisted batch) → verify again → drift
(refuse or find) → raw records → inputs → quarantine → drift seen first → resolve with the target's
strategy → tombstones → commit → ledger
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.flow import schema_drift as flow_schema_drift
from draindown.flow.schema_drift import Known
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger.rows import BatchRow
from draindown.spark.batch import counting, schema_drift
from draindown.spark.batch.evaluation import evaluated
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.batch.raw import keep_raw, keeps_raw
from draindown.spark.batch.refused_rows import keep_refused
from draindown.spark.contract.parsing import KEPT, WHY
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sources.place import ARRIVED, PLACE
from draindown.spark.sources.spool import emptied
from draindown.spark.sql import quoted
from draindown.spark.targets import delta_target
from draindown.spark.targets.batch import SideWrite, apply
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.registry import strategy_of
from draindown.spark.targets.strategy import Accepted, Change


def process(spark: SparkSession, batch: Batch) -> BatchRow:
    """Apply one batch and return its ledger row. Idempotent: no-op if the target already contains
    the batch.

    Raises TerminalError `ledger-does-not-add-up`, `lines-differ`, `drift-failed`,
    `file-unreadable`, and the errors of reading and merging.
    """
    with emptied(batch.writer.layout.spool):
        return apply(spark, batch, lambda kept: _read(spark, batch, kept))


def _read(spark: SparkSession, batch: Batch, kept: ExitStack) -> Landed:
    """Read the input through the contract, persist it, and count it in one pass."""
    batch.verify()
    kept.enter_context(configured(spark, _settings(batch)))
    with configured(spark, batch.tuning.evaluation(batch.counted)):
        frame, counted = evaluated(spark, batch, _known(spark, batch.writer), kept)
        batch.input.refuse_miscounted(counted.blocks)
        batch.verify()
        found = schema_drift.look(batch, frame, counted)
    return Landed(batch, frame, counted, counting.ledger_row(batch, counted), found)


@dataclass(frozen=True)
class Landed:
    """The work of a batch whose records went through the contract. `found`: its drift."""

    batch: Batch
    frame: DataFrame
    counted: Counted
    row: BatchRow
    found: schema_drift.Found

    @property
    def settings(self) -> Mapping[str, str]:
        """Those for code generation."""
        return self.batch.tuning.evaluation(self.batch.counted)

    @property
    def side_writes(self) -> list[SideWrite]:
        """Raw records, inputs, quarantined rows, and drift that is seen for the first time."""
        batch, layout, row = self.batch, self.batch.writer.layout, self.row
        inputs, sightings = counting.inputs(batch, self.counted), self.found.sightings
        writes = (
            [SideWrite("kept", lambda: keep_raw(batch, self.frame))] if keeps_raw(batch) else []
        )
        if batch.kind != "release":
            writes.append(SideWrite("inputs", lambda: ledger_inputs.record(layout, row, inputs)))
        refused = SideWrite(
            "quarantined", lambda: keep_refused(batch, self.frame, self.counted, row)
        )
        return [
            *writes,
            refused,
            SideWrite("drift", lambda: flow_schema_drift.remember(layout, sightings)),
        ]

    def resolve(self) -> AbstractContextManager[Change]:
        """Compute the outcome of each accepted row by the target's strategy."""
        batch, counted = self.batch, self.counted
        good = self.found.spread(self.frame.where(F.col(WHY).isNull() & ~F.col("_blank")))
        accepted = _accepted(batch, good, counted, counted.accepted, self.found.columns)
        strategy = strategy_of(batch.writer.flow)
        delta_target.prepare(
            good.sparkSession, batch.writer, strategy.stored(accepted).schema, counted.computed
        )
        return strategy.resolve(accepted, self.row)


def _accepted(
    batch: Batch, good: DataFrame, counted: Counted, number: int, added: Sequence[str]
) -> Accepted:
    names = [
        name
        for name in good.columns
        if name not in KEPT or name in (*PLACE, ARRIVED, "_rescued_data", "_delete")
    ]
    return Accepted(
        writer=batch.writer,
        rows=good.select(*[F.col(quoted(name)) for name in names]),
        blocks=batch.origins(counted),
        number=number,
        lines=batch.counted,
        pruning=counted.pruning,
        changed_at=batch.changed_at,
        tuning=batch.tuning,
        added=added,
        releases=batch.releases,
        compared=batch.compared,
    )


def _known(spark: SparkSession, writer: Writer) -> Known:
    columns = (
        delta_target.held_columns(spark, writer) if writer.flow.drift.new_columns == "add" else {}
    )
    return flow_schema_drift.known(writer.layout, writer.flow, columns)


def restore(spark: SparkSession, batch: Batch, rows: DataFrame) -> BatchRow:
    """Write withdrawn rows back to the target unchanged, and return the ledger row. Idempotent.

    `rows` has the target's columns and skips the contract. Sequence and tombstones are compared as
    in any batch. Raises as `process` does.
    """

    def read(kept: ExitStack) -> Restored:
        kept.enter_context(configured(spark, _settings(batch)))
        kept.enter_context(persisted(rows))
        counted, number = Counted((), Pruning(), None), rows.count()
        good = rows.withColumn("_delete", F.lit(False))
        accepted = _accepted(
            batch, good, counted, number, delta_target.added_columns(spark, batch.writer)
        )
        return Restored(
            batch, accepted, replace(counting.ledger_row(batch, counted), records=number)
        )

    return apply(spark, batch, read)


@dataclass(frozen=True)
class Restored:
    """The work of a batch of withdrawn rows, which skip the contract."""

    batch: Batch
    accepted: Accepted
    row: BatchRow
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def side_writes(self) -> list[SideWrite]:
        """None of the rows is refused again."""
        return [SideWrite("quarantined", lambda: self.batch.keep_open(()))]

    def resolve(self) -> AbstractContextManager[Change]:
        """Compare sequence and tombstones as for any batch."""
        return strategy_of(self.batch.writer.flow).resolve(self.accepted, self.row)


def _settings(batch: Batch) -> dict[str, str]:
    return {**batch.input.settings, "spark.sql.session.timeZone": batch.writer.flow.source.timezone}
