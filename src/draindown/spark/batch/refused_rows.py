"""Write the quarantined rows of a batch to the quarantine, except those that the quarantine already
contains.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.ledger.target_log import verify_written
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.batch import requarantine
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.contract.parsing import WHY
from draindown.spark.sources.place import ARRIVED, ENVELOPE, PLACE, SHAPE


def keep_refused(batch: Batch, frame: DataFrame, counted: Counted, row: BatchRow) -> None:
    """Write the quarantined rows of the parsed `frame` to the quarantine, each once.

    Raises TerminalError `ledger-does-not-add-up` if the number of rows written differs from the
    batch's count.
    """
    if batch.kind == "release":  # a row that is refused again stays open in the quarantine
        still = frame.where(F.col(WHY).isNotNull()).select("_unit", "_id").collect()
        batch.keep_open([(batch.input.name(line["_unit"]), line["_id"]) for line in still])
    elif requarantine.concerns(batch.writer):
        blocks = batch.origins(counted)
        bad, units = _refused(frame), batch.input.units
        fresh = requarantine.quarantine(
            batch.writer, bad, blocks, units, batch.run_id, batch.first_seen
        )
        if fresh is not None:
            verify_written(
                row,
                batch.writer.layout.tables.quarantine.path,
                fresh,
                "quarantined for the first time",
            )
    elif row.quarantined or batch.writer.holds(
        batch.writer.layout.tables.quarantine.path, "quarantine"
    ):
        blocks = batch.origins(counted)
        quarantine_writer.quarantine(
            batch.writer,
            _refused(frame),
            blocks,
            batch.run_id,
            batch.first_seen,
            number=row.quarantined,
        )
        verify_written(
            row, batch.writer.layout.tables.quarantine.path, row.quarantined, "quarantined"
        )


def _refused(frame: DataFrame) -> DataFrame:
    own = [name for name in (ENVELOPE, SHAPE, ARRIVED) if name in frame.columns]
    return frame.where(F.col(WHY).isNotNull()).select("_raw", WHY, *own, *PLACE)
