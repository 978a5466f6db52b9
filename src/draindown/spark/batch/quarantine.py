"""Write the quarantine table: quarantined records with raw text, reason and place, kept until a person
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.lake import directories
from draindown.spark.contract.envelope import encoded
from draindown.spark.contract.origin import located
from draindown.spark.contract.parsing import WHY
from draindown.spark.frames import TEXT, relation
from draindown.spark.sources.place import ENVELOPE, SHAPE, BlockOrigin
from draindown.spark.sql import ARRIVED_AT, ORIGIN
from draindown.spark.targets.delta_target import Writer, write_batch

RAW_LIMIT = 64 * 1024
"""Bytes of a record that the quarantine stores; the rest is only in the input file."""


def identified(refused: DataFrame, blocks: Sequence[BlockOrigin]) -> DataFrame:
    """Return the quarantined rows with `quarantine_id`. Arguments as in `quarantine`."""
    found = located(refused, blocks)
    logs = {one.unit: one.log for one in blocks if one.log}
    if logs:
        known = relation(found.sparkSession, {"_of": TEXT, "_log": TEXT}, list(logs.items()))
        found = found.join(
            F.broadcast(known), F.col(f"{ORIGIN}.input") == F.col("_of"), "left"
        ).drop("_of")
    else:
        found = found.withColumn("_log", F.lit(None).cast("string"))
    return found.withColumn("quarantine_id", id_of(ORIGIN, F.col("_log"))).drop("_log")


def id_of(origin: str, log: Column) -> Column:
    """Return the `quarantine_id` of a record: a hash of its origin, and of the `log` of its unit
    unless that is NULL.

    So a record of a topic that was created again is another one than that which stood at its offset
    before.
    """
    return F.sha2(
        F.concat_ws("\u0001", f"{origin}.input", F.col(f"{origin}.position").cast("string"), log),
        256,
    )


def quarantine(
    writer: Writer,
    refused: DataFrame,
    blocks: Sequence[BlockOrigin],
    run_id: str,
    first_seen: datetime,
    besides: DataFrame | None = None,
    number: int | None = None,
) -> None:
    """Write the batch's quarantined rows. Idempotent: a retry replaces the rows of an earlier attempt.

    `refused` has `_raw`, WHY and PLACE. `blocks`: those of the batch. Rows whose `quarantine_id` is
    in `besides` are excluded. `number`: how many rows are written, if it is known.
    """
    whole = F.is_valid_utf8(F.col("_raw")) & (F.octet_length("_raw") <= RAW_LIMIT)
    head = F.substring(F.col("_raw").cast("binary"), 1, RAW_LIMIT)
    found = identified(refused, blocks)
    if besides is not None:
        found = found.join(besides, "quarantine_id", "left_anti")
    rows = found.withColumns(
        {
            "raw": F.when(whole, F.col("_raw")).otherwise(F.make_valid_utf8(head.cast("string"))),
            "raw_bytes": F.when(~whole, head),
            "raw_length": F.octet_length("_raw"),
            "reason": F.col(f"{WHY}.reason"),
            "field": F.col(f"{WHY}.field"),
            "detail": F.make_valid_utf8(F.col(f"{WHY}.detail")),
        }
    )
    keep(writer, rows, run_id, first_seen, number)


def keep(
    writer: Writer, rows: DataFrame, run_id: str, first_seen: datetime, number: int | None = None
) -> None:
    """Write rows into the quarantine for the writer's batch. Idempotent: a retry replaces an
    earlier attempt's rows.

    `rows` has the columns quarantine_id (for a record, a hash of its origin), `_origin`,
    `_arrived_at`, raw, raw_bytes (only if raw is not UTF-8 or truncated), raw_length (bytes),
    reason, field and detail, and ENVELOPE or SHAPE if the records have one. This function adds
    first_seen, generation, batch, kind, run_id and quarantined_at.
    """
    kept = rows.select(
        "quarantine_id",
        F.col(ORIGIN).alias("origin"),
        F.col(ARRIVED_AT).alias("arrived_at"),
        "raw",
        "raw_bytes",
        F.col("raw_length").cast("long").alias("raw_length"),
        "reason",
        "field",
        "detail",
        F.lit(first_seen).alias("first_seen"),
        F.lit(writer.generation).alias("generation"),
        F.lit(writer.batch).cast("long").alias("batch"),
        F.lit(writer.kind).alias("kind"),
        F.lit(run_id).alias("run_id"),
        F.lit(datetime.now().astimezone()).alias("quarantined_at"),
        _beside(rows).alias("envelope"),
    )
    directories.make(writer.layout.tables.quarantine.path, private=True)
    write_batch(writer, kept, writer.layout.tables.quarantine.path, "quarantine", number=number)


def _beside(rows: DataFrame) -> Column:
    """Return what is kept beside the text of a record; NULL where there is nothing."""
    if ENVELOPE in rows.columns:
        return encoded()
    return F.col(SHAPE) if SHAPE in rows.columns else F.lit(None).cast("string")
