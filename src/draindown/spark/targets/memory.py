"""The table beside a target with changes that none of its rows shows: tombstones, or hidden events of a history."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.spark.sql import CHANGED_AT
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Held, Writer, held_rows, write_batch
from draindown.spark.targets.pruning import Pruning


def append(writer: Writer, rows: DataFrame, changed_at: datetime) -> None:
    """Append what the batch remembers, with `_generation`, `_batch`, `_kind` and `_changed_at`. Idempotent.

    The underscore avoids clashes: a key may be called `batch`, but no column of a flow begins with an underscore.
    """
    marked = rows.withColumns(
        {
            "_generation": F.lit(writer.generation),
            "_batch": F.lit(writer.batch).cast("long"),
            "_kind": F.lit(writer.kind),
            CHANGED_AT: F.lit(changed_at),
        }
    )
    memory = writer.flow.target.kind.memory
    path = writer.layout.memory(memory)
    if memory == "hidden":  # it has the target's columns, which may have become more
        delta_target.widen(rows.sparkSession, path, marked.schema)
    write_batch(writer, marked, path, memory, own="_")


def held(spark: SparkSession, writer: Writer, pruning: Pruning) -> Held | None:
    """Return what other batches remember that matches `pruning`. None if the table is absent or empty.

    What an earlier attempt of this batch wrote is excluded.
    """
    goal = writer.flow.target
    found = held_rows(spark, writer.layout.memory(goal.kind.memory), pruning.only(goal.keys))
    if found is None:
        return None
    mine = (
        (F.col("_generation") == writer.generation)
        & (F.col("_batch") == writer.batch)
        & (F.col("_kind") == writer.kind)
    )
    return replace(found, rows=found.rows.where(~mine))
