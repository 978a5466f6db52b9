"""Keep the raw records of a batch, before any other table of the flow is written."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.sources import raw
from draindown.spark.batch.model import Batch
from draindown.spark.sources.raw import rows
from draindown.spark.targets.delta_target import write_batch


def keep_raw(batch: Batch, frame: DataFrame) -> None:
    """Append what the batch read at its source to the flow's raw records.

    What it read from there is there: an earlier attempt, or an earlier generation, kept it.
    """
    writer = batch.writer
    fresh = [unit for unit in batch.input.units if not unit.kept and unit.until > unit.start]
    if fresh:
        raw.create(writer.layout)
        own = {"generation": F.lit(writer.generation), "batch": F.lit(writer.batch).cast("long")}
        kept = rows(frame, fresh, datetime.now(UTC).date()).withColumns(
            own | {"kind": F.lit(writer.kind)}
        )
        write_batch(writer, kept, writer.layout.tables.raw.path, "raw")


def keeps_raw(batch: Batch) -> bool:
    """Return whether the batch keeps the records that it reads at its source."""
    return batch.kind == "drain" and batch.writer.flow.source.raw_for is not None
