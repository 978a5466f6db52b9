"""Tombstones: the side table of deleted keys and the sequence of each delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.lake.table_log import TableLog, identifier, literal
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets.delta_target import Held, Writer, held_rows, write_batch
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.resolution import DELETES, FATE

FEW_HELD = 10_000
"""Most tombstones of a table that are read without Spark."""


def append(writer: Writer, fated: DataFrame, changed_at: datetime, number: int) -> None:
    """Append the batch's `number` deletes: keys, sequence, `_generation`, `_batch`, `_kind`, `_changed_at`. Idempotent.

    The underscore avoids clashes: a key may be called `batch`, but no column of a flow begins with an underscore.
    """
    deletes = fated.where(F.col(FATE).isin(*DELETES)).select(
        *[F.col(quoted(name)) for name in writer.flow.target.essential],
        F.lit(writer.generation).alias("_generation"),
        F.lit(writer.batch).cast("long").alias("_batch"),
        F.lit(writer.kind).alias("_kind"),
        F.lit(changed_at).alias(CHANGED_AT),
    )
    write_batch(writer, deletes, writer.layout.tombstones, "tombstones", own="_", number=number)


def held(spark: SparkSession, writer: Writer, pruning: Pruning) -> Held | None:
    """Return the tombstones of other batches that match `pruning`. None if the table is absent or empty,
    or its statistics exclude all of them.

    Tombstones that an earlier attempt of this batch wrote are excluded.
    """
    found = held_rows(spark, writer.layout.tombstones, pruning.only(writer.flow.target.keys))
    if found is None or found.is_apart:
        return None
    if _number(found.every) <= FEW_HELD:
        return replace(found, rows=_read(spark, writer))
    mine = (
        (F.col("_generation") == writer.generation)
        & (F.col("_batch") == writer.batch)
        & (F.col("_kind") == writer.kind)
    )
    return replace(found, rows=found.rows.where(~mine))


def _number(files: Sequence[Mapping[str, Any]]) -> float:
    """Return the number of rows in these files; infinite if the log does not say it of one."""
    return sum(float("inf") if file.get("num_records") is None else file["num_records"] for file in files)


def _read(spark: SparkSession, writer: Writer) -> DataFrame:
    """Return the tombstones of other batches, read by this process. Spark would list the table's files in a job."""
    mine = f"_generation = {writer.generation} and _batch = {writer.batch} and _kind = {literal(writer.kind)}"
    names = ", ".join(map(identifier, writer.flow.target.essential))
    return spark.createDataFrame(TableLog(writer.layout.tombstones).query(f"select {names} from t where not ({mine})"))
