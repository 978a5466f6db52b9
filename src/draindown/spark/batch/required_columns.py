"""Refuse rows whose keys, sequence or partition the table can't hold, after the transform."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from draindown.base.errors import TerminalError
from draindown.flow.hints import NULLED
from draindown.spark.batch.model import Batch
from draindown.spark.contract.parsing import KEPT, WHY
from draindown.spark.sql import quoted
from draindown.spark.targets.partition_values import stored_as_null, unnameable, unstorable

_SHOWN = 100


def refuse_missing_columns(batch: Batch, frame: DataFrame) -> None:
    """Check that the frame has the key, sequence and partition columns. Raises TerminalError
    `column-missing`.
    """
    flow = batch.writer.flow
    needed = [*flow.target.essential, *flow.target.partition_by]
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        origin = flow.transform or "the contract"
        given = [name for name in frame.columns if name not in KEPT]
        raise TerminalError(
            "column-missing",
            tried=f"find the target's columns in what {origin} gives",
            found=f"no {', '.join(missing)} among {', '.join(given)}",
            next=f"draindown run {batch.writer.layout.pipeline}   # once it gives them",
        )


def refuse_missing_values(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return `frame` with a reason on rows whose key, sequence or partition the table can't hold.

    A key or sequence must be there, in UTF-8: file skipping uses statistics and literals in UTF-8,
    so a row with another key could not be matched. A text that Delta would store as another
    partition is refused, too, and so is one that no directory can be named by. A delete stores no
    partition: there such a text is NULL.
    """
    goal = batch.writer.flow.target
    texts = {field.name for field in frame.schema if isinstance(field.dataType, StringType)}
    partitions = [name for name in goal.partition_by if name in texts]
    nulled = NULLED if batch.writer.flow.transform else None
    reasons = [_of_essential(name, texts, nulled) for name in goal.essential]
    reasons += [_of_partition(name, goal.essential) for name in partitions]
    if not reasons:
        return frame
    found = F.coalesce(*reasons)
    frame = frame.withColumn(WHY, F.coalesce(F.col(WHY), F.when(~F.col("_blank"), found)))
    frame = without_raw(frame, batch)
    emptied = {
        name: _emptied(F.col(quoted(name)), name)
        for name in partitions
        if name not in goal.essential
    }
    return frame.withColumns(emptied) if emptied and goal.essential else frame


def without_raw(frame: DataFrame, batch: Batch) -> DataFrame:
    """Drop the raw text of accepted rows, to save memory, unless the flow keeps it."""
    if batch.writer.flow.source.raw_for is not None:
        return frame
    return frame.withColumn("_raw", F.when(F.col(WHY).isNotNull(), F.col("_raw")))


def _of_essential(name: str, texts: Collection[str], nulled: str | None) -> Column:
    value = F.col(quoted(name))
    absent = F.when(value.isNull(), _reason("not_null", name, nulled))
    return (
        absent.when(~F.is_valid_utf8(value), _reason("type", name, "not valid UTF-8"))
        if name in texts
        else absent
    )


def _of_partition(name: str, essential: Collection[str]) -> Column:
    value = F.col(quoted(name))
    meant = F.lit(True) if name in essential else ~F.col("_delete")
    shown = F.concat(F.lit("'"), F.substring(value, 1, _SHOWN), F.lit("' "))
    null = F.concat(shown, F.lit("is no value of a partition: Delta stores it as NULL"))
    long = F.concat(shown, F.lit("is no value of a partition: no directory can bear its name"))
    return F.when(meant & stored_as_null(value), _reason("partition", name, null)).when(
        meant & unnameable(name, value), _reason("partition", name, long)
    )


def _emptied(value: Column, name: str) -> Column:
    return F.when(~F.col("_delete") | ~unstorable(name, value), value)


def _reason(reason: str, field: str, detail: str | Column | None = None) -> Column:
    detail = detail if isinstance(detail, Column) else F.lit(detail).cast("string")
    return F.struct(
        F.lit(reason).alias("reason"), F.lit(field).alias("field"), detail.alias("detail")
    )
