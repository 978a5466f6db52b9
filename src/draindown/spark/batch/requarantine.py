"""Quarantine for batches that read input again: each quarantined row is in the quarantine once.

A row that is refused again is counted, and its quarantine row stays unchanged. A row that is
accepted this time is released when its batch is committed. The rows to release are recorded before
the MERGE, so that a crash after the MERGE can't leave them open.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.flow import quarantine as decided
from draindown.flow.release_intent import Pending, note
from draindown.sources.slices import Unit
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sources.place import BlockOrigin
from draindown.spark.targets.delta_target import Writer


def concerns(writer: Writer) -> bool:
    """Return whether the writer's batches may read input again: a replay of input, or a generation
    after the first.
    """
    return writer.kind.startswith("replay:") or (writer.kind == "drain" and writer.generation > 1)


def quarantine(
    writer: Writer,
    bad: DataFrame,
    blocks: Sequence[BlockOrigin],
    units: Sequence[Unit],
    run_id: str,
    first_seen: datetime,
) -> int | None:
    """Write the rows of `bad` that no other batch refused, as `quarantine.quarantine` does. Return
    their number.

    None if nothing had to be written. Also records which quarantined rows of `read`, the input, are
    accepted now.
    """
    held = _held(writer, bad, units)
    ids = quarantine_writer.identified(bad, blocks).select("quarantine_id")
    _note(
        writer, run_id, held.join(ids, "quarantine_id", "left_anti") if held is not None else None
    )
    fresh = ids.count() - (
        0 if held is None else ids.join(held, "quarantine_id", "left_semi").count()
    )
    if not fresh and not writer.holds(writer.layout.tables.quarantine.path, "quarantine"):
        return None
    quarantine_writer.quarantine(writer, bad, blocks, run_id, first_seen, besides=held)
    return fresh


def _held(writer: Writer, bad: DataFrame, units: Sequence[Unit]) -> DataFrame | None:
    """Return the quarantine ids of rows of `units` that other batches refused. None if there is no
    quarantine table.
    """
    if not writer.layout.tables.quarantine.exists:
        return None
    mine = (
        (F.col("generation") == writer.generation)
        & (F.col("batch") == writer.batch)
        & (F.col("kind") == writer.kind)
    )
    first = writer.flow.source.counts_from
    ranges = [
        (unit.name, unit.log or None, unit.start + first, unit.until + first) for unit in units
    ]
    read = relation(
        bad.sparkSession, {"_name": TEXT, "_log": TEXT, "_first": NUMBER, "_end": NUMBER}, ranges
    )
    among = (
        (F.col("origin.input") == F.col("_name"))
        & (F.col("origin.position") >= F.col("_first"))
        & (F.col("origin.position") < F.col("_end"))
        & (F.col("quarantine_id") == quarantine_writer.id_of("origin", F.col("_log")))
    )
    rows = bad.sparkSession.read.format("delta").load(writer.layout.tables.quarantine.path)
    return (
        rows.where(~mine)
        .join(F.broadcast(read), among, "left_semi")
        .select("quarantine_id")
        .distinct()
    )


def _note(writer: Writer, run_id: str, accepted: DataFrame | None) -> None:
    found = [] if accepted is None else [row["quarantine_id"] for row in accepted.collect()]
    known = decided.released(writer.layout, found)
    ids = tuple(sorted(one for one in found if one not in known))
    # overwrite the record of an earlier attempt: this attempt may accept other rows
    if ids or writer.layout.replaying.exists:
        note(writer.layout, Pending(writer.app("rows"), writer.batch, run_id, ids, read_again=True))
