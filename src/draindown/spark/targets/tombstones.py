"""Tombstones: the side table of deleted keys and the sequence of each delete."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets.delta_target import Held, Writer, held_rows, write_batch
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.resolution import DELETES, FATE


def append(writer: Writer, fated: DataFrame, changed_at: datetime) -> None:
    """Append the batch's deletes: keys, sequence, `_generation`, `_batch`, `_kind`, `_changed_at`. Idempotent.

    The underscore avoids clashes: a key may be called `batch`, but no column of a flow begins with an underscore.
    """
    deletes = fated.where(F.col(FATE).isin(*DELETES)).select(
        *[F.col(quoted(name)) for name in writer.flow.target.essential],
        F.lit(writer.generation).alias("_generation"),
        F.lit(writer.batch).cast("long").alias("_batch"),
        F.lit(writer.kind).alias("_kind"),
        F.lit(changed_at).alias(CHANGED_AT),
    )
    write_batch(writer, deletes, writer.layout.tombstones, "tombstones", own="_")


def held(spark: SparkSession, writer: Writer, pruning: Pruning) -> Held | None:
    """Return the tombstones of other batches that match `pruning`. None if the table is absent or empty.

    Tombstones that an earlier attempt of this batch wrote are excluded.
    """
    found = held_rows(spark, writer.layout.tombstones, pruning.only(writer.flow.target.keys))
    if found is None:
        return None
    mine = (
        (F.col("_generation") == writer.generation)
        & (F.col("_batch") == writer.batch)
        & (F.col("_kind") == writer.kind)
    )
    return replace(found, rows=found.rows.where(~mine))
