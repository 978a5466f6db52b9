"""Process one batch, from input to ledger row. The order of the steps makes a crash between any two of them safe.

read raw → parse → count (one pass over the persisted batch) → drift (refuse or record) → raw records → inputs →
quarantine → resolve with the target's strategy → side tables → the target's commit, with the ledger row as
`userMetadata` → ledger table
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.flow import schema_drift as flow_schema_drift
from draindown.flow.schema_drift import Known
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.spark.batch import counting, schema_drift
from draindown.spark.batch.evaluation import evaluated
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.batch.raw import keep_raw
from draindown.spark.batch.refused_rows import keep_refused
from draindown.spark.contract.parsing import KEPT, WHY
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sources.place import ARRIVED, PLACE
from draindown.spark.sources.spool import emptied
from draindown.spark.sql import quoted
from draindown.spark.targets import delta_target
from draindown.spark.targets.commit import close
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.registry import strategy_of
from draindown.spark.targets.strategy import Accepted


def process(spark: SparkSession, batch: Batch) -> BatchRow:
    """Apply one batch and return its ledger row. Idempotent: no-op if the target already contains the batch.

    Raises TerminalError `ledger-does-not-add-up`, `lines-differ`, `drift-refused`, `file-unreadable`, and the errors of
    reading and merging.
    """
    with emptied(batch.writer.layout.spool):
        return _done_before(batch) if batch.writer.is_done() else _process(spark, batch)


def _process(spark: SparkSession, batch: Batch) -> BatchRow:
    strategy = strategy_of(batch.writer.flow)
    with configured(spark, _settings(batch)), ExitStack() as kept:
        with configured(spark, batch.tuning.evaluation(batch.counted)):
            known = _known(spark, batch.writer)
            frame, counted = evaluated(spark, batch, known, kept)
            batch.input.refuse_miscounted(counted.blocks)
            batch.was_read()
            batch.reached("read")
            found = schema_drift.look(batch, frame, counted)
            row = counting.ledger_row(batch, counted)
            keep_raw(batch, frame)
            if batch.kind != "quarantine":
                ledger_inputs.record(batch.writer.layout, row, counting.inputs(batch, counted))
            keep_refused(batch, frame, counted, row)
            flow_schema_drift.remember(batch.writer.layout, found.sightings)
            good = found.spread(frame.where(F.col(WHY).isNull() & ~F.col("_blank")))
            accepted = _accepted(batch, good, counted, counted.accepted, found.columns)
            delta_target.prepare(spark, batch.writer, strategy.stored(accepted).schema)
        return _apply(batch, accepted, row)


def _apply(batch: Batch, accepted: Accepted, row: BatchRow) -> BatchRow:
    with strategy_of(batch.writer.flow).resolve(accepted, row) as change:
        change.remember()
        batch.reached("remembered")
        change.write()
        return close(batch.writer.layout, change.row, batch.reached)


def _accepted(batch: Batch, good: DataFrame, counted: Counted, number: int, added: Sequence[str]) -> Accepted:
    names = [name for name in good.columns if name not in KEPT or name in (*PLACE, ARRIVED, "_rescued", "_delete")]
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
    columns = delta_target.held_columns(spark, writer) if writer.flow.drift.new == "add" else {}
    return flow_schema_drift.known(writer.layout, writer.flow, columns)


def restore(spark: SparkSession, batch: Batch, rows: DataFrame) -> BatchRow:
    """Write withdrawn rows back to the target unchanged, and return the ledger row. Idempotent.

    `rows` has the target's columns and skips the contract. Sequence and tombstones are compared as in any batch. Raises
    as `process` does.
    """
    if batch.writer.is_done():
        return _done_before(batch)
    with configured(spark, _settings(batch)), persisted(rows):
        counted, number = Counted((), Pruning(), None), rows.count()
        row = replace(counting.ledger_row(batch, counted), records=number)
        batch.keep_open(())
        batch.reached("quarantined")
        good = rows.withColumn("_delete", F.lit(False))
        added = delta_target.added_columns(spark, batch.writer)
        return _apply(batch, _accepted(batch, good, counted, number, added), row)


def _done_before(batch: Batch) -> BatchRow:
    ledger_table.heal(batch.writer.layout)
    return ledger_table.row_of(batch.writer.layout, batch.writer.generation, batch.writer.batch, batch.kind)


def _settings(batch: Batch) -> dict[str, str]:
    return {**batch.input.settings, "spark.sql.session.timeZone": batch.writer.flow.source.timezone}
