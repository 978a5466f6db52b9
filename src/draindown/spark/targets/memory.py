"""The table beside a target with changes that none of its rows shows: tombstones, or hidden events
of a history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.lake.table import Table, identifier, literal
from draindown.spark.sql import CHANGED_AT
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Held, Writer, held_rows, write_batch
from draindown.spark.targets.pruning import Pruning

FEW_HELD = 10_000
"""Most tombstones of a table that are read without Spark."""


def append(
    writer: Writer, rows: DataFrame, changed_at: datetime, number: int | None = None
) -> None:
    """Append what the batch remembers, with `_generation`, `_batch`, `_kind` and `_changed_at`.
    Idempotent.

    `number`: how many rows there are, if it is known.
    The underscore avoids clashes: a key may be called `batch`, but no column of a flow begins with
    an underscore.
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
    path = writer.layout.tables.memory(memory).path
    if memory == "hidden":  # it has the target's columns, which may have become more
        delta_target.widen(rows.sparkSession, path, marked.schema)
    write_batch(writer, marked, path, memory, own="_", number=number)


def held(spark: SparkSession, writer: Writer, pruning: Pruning) -> Held | None:
    """Return what other batches remember that matches `pruning`. None if the table is absent or
    empty, or its statistics exclude all tombstones.

    What an earlier attempt of this batch wrote is excluded.
    """
    goal = writer.flow.target
    log = writer.layout.tables.memory(goal.kind.memory)
    found = held_rows(spark, log, pruning.only(goal.keys), beside=True)
    if found is None or (found.is_apart and goal.kind.memory == "tombstones"):
        return None
    if goal.kind.memory == "tombstones" and _number(found.every) <= FEW_HELD:
        return replace(found, rows=_read(spark, writer, log, found.rows))
    mine = (
        (F.col("_generation") == writer.generation)
        & (F.col("_batch") == writer.batch)
        & (F.col("_kind") == writer.kind)
    )
    return replace(found, rows=found.rows.where(~mine))


def _number(files: Sequence[Mapping[str, Any]]) -> float:
    """Return the number of rows in these files; infinite if the log does not say it of one."""
    return sum(
        float("inf") if file.get("num_records") is None else file["num_records"] for file in files
    )


def _read(spark: SparkSession, writer: Writer, log: Table, held: DataFrame) -> DataFrame:
    """Return the tombstones of other batches, read by this process. Spark would list the table's
    files in a job.

    They have the types that Spark reads: of Arrow's alone it would take a time without a zone for
    one of the session's.
    """
    mine = f"_generation = {writer.generation} and _batch = {writer.batch} and _kind = {literal(writer.kind)}"
    names = ", ".join(map(identifier, writer.flow.target.essential))
    found = log.query(f"select {names} from t where not ({mine})")
    schema = held.schema
    return spark.createDataFrame(
        found, StructType([schema[name] for name in writer.flow.target.essential])
    )
