"""The refused rows of a batch: new ones go to the quarantine, those that stand there already stay as they are."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.batch import requarantine
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.contract.parsing import WHY
from draindown.spark.sources.readers import PLACE, offsets
from draindown.spark.targets.delta_target import written


def keep_refused(batch: Batch, frame: DataFrame, counted: Counted, row: BatchRow) -> None:
    """Write the refused rows of the parsed `frame` to the quarantine, each once, and report the step `quarantined`.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    if batch.kind == "quarantine":  # refused again: its row in the quarantine stays open
        batch.keep_open([line["_id"] for line in frame.where(F.col(WHY).isNotNull()).select("_id").collect()])
    elif requarantine.concerns(batch.writer):
        bad = frame.where(F.col(WHY).isNotNull()).select("_raw", WHY, *PLACE)
        files = [file.path for file in batch.files]
        fresh = requarantine.quarantine(
            batch.writer, bad, offsets(counted.blocks), files, batch.run_id, batch.first_seen
        )
        if fresh is not None:
            written(row, batch.writer.layout.quarantine, fresh, "quarantined for the first time")
    elif row.quarantined or batch.writer.holds(batch.writer.layout.quarantine, "quarantine"):
        bad = frame.where(F.col(WHY).isNotNull()).select("_raw", WHY, *PLACE)
        quarantine_writer.quarantine(batch.writer, bad, offsets(counted.blocks), batch.run_id, batch.first_seen)
        written(row, batch.writer.layout.quarantine, row.quarantined, "quarantined")
    batch.reached("quarantined")
