"""What a batch that reads input again does about rows that were refused before: they stand in the quarantine once.

A row that is refused again is left as it was, and counted; one that is let through now is released, once its batch is
committed. What will be released is written down before the MERGE, so that a crash after it can't leave it open.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.flow import quarantine as decided
from draindown.flow.release_intent import Pending, note
from draindown.lake.table_log import log_of
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.targets.delta_target import Writer


def concerns(writer: Writer) -> bool:
    """Whether the writer's batches may read what was read before."""
    return writer.kind.startswith("replay:") or (writer.kind == "source" and writer.generation > 1)


def quarantine(
    writer: Writer,
    bad: DataFrame,
    places: Sequence[tuple[str, int, int]],
    files: Sequence[str],
    run_id: str,
    first_seen: datetime,
) -> int | None:
    """Write the rows of `bad` that were never refused before, as `refused.quarantine` does; returns how many.

    None where nothing had to be written. Notes which rows of `files` (the batch's) are let through this time.
    """
    held = _held(writer, bad, files)
    ids = quarantine_writer.identified(bad, places).select("quarantine_id")
    _note(writer, run_id, held.join(ids, "quarantine_id", "left_anti") if held is not None else None)
    fresh = ids.count() - (0 if held is None else ids.join(held, "quarantine_id", "left_semi").count())
    if not fresh and not writer.holds(writer.layout.quarantine, "quarantine"):
        return None
    quarantine_writer.quarantine(writer, bad, places, run_id, first_seen, besides=held)
    return fresh


def _held(writer: Writer, bad: DataFrame, files: Sequence[str]) -> DataFrame | None:
    """Ids of the rows of these files that other batches refused."""
    if not log_of(writer.layout, writer.layout.quarantine).exists:
        return None
    mine = (
        (F.col("generation") == writer.generation) & (F.col("batch") == writer.batch) & (F.col("kind") == writer.kind)
    )
    rows = bad.sparkSession.read.format("delta").load(writer.layout.quarantine)
    return rows.where(F.col("file").isin(list(files)) & ~mine).select("quarantine_id").distinct()


def _note(writer: Writer, run_id: str, accepted: DataFrame | None) -> None:
    found = [] if accepted is None else [row["quarantine_id"] for row in accepted.collect()]
    known = decided.released(writer.layout, found)
    ids = tuple(sorted(one for one in found if one not in known))
    # an earlier attempt's note must not outlive it: this one may decide otherwise
    if ids or Path(writer.layout.replaying).exists():
        note(writer.layout, Pending(writer.app("rows"), writer.batch, run_id, ids, read_again=True))
