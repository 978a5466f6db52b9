"""Refuse rows whose keys or sequence are missing after the transform."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from draindown.base.errors import TerminalError
from draindown.flow.hints import EMPTIED, NULLED
from draindown.spark.batch.model import Batch
from draindown.spark.contract.parsing import KEPT, WHY
from draindown.spark.sql import quoted


def refuse_missing_columns(batch: Batch, frame: DataFrame) -> None:
    """Check that the frame has the key, sequence and partition columns. Raises TerminalError `column-missing`."""
    goal = batch.writer.flow.target
    needed = [*goal.essential, *goal.partition_by]
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise TerminalError(
            "column-missing",
            tried=f"find the target's columns in what {batch.writer.flow.transform or 'the contract'} gives",
            found=f"no {', '.join(missing)} among {', '.join(c for c in frame.columns if c not in KEPT)}",
            next=f"draindown run {batch.writer.layout.pipeline}   # once it gives them",
        )


def refuse_missing_values(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return `frame` with a reason on rows whose key or sequence is NULL, invalid UTF-8 or an empty partition value.

    Delta stores an empty partition value as NULL. A row with an empty partition key could never be matched again, so it
    is refused; an empty string in a partition column that is no key becomes NULL. File skipping uses statistics and
    literals in UTF-8, so a row with another key could not be matched either.
    """
    goal = batch.writer.flow.target
    texts = {field.name for field in frame.schema if isinstance(field.dataType, StringType)}
    text = [name for name in goal.partition_by if name in texts]
    why = F.col(WHY)
    for name in goal.essential:
        value = F.col(quoted(name))
        bad = F.when(value.isNull(), _reason("missing", name, NULLED if batch.writer.flow.transform else None))
        bad = bad.when(value == "", _reason("missing", name, EMPTIED)) if name in text else bad
        bad = bad.when(~F.is_valid_utf8(value), _reason("type", name)) if name in texts else bad
        why = F.coalesce(why, F.when(~F.col("_blank"), bad))
    if goal.essential:
        frame = frame.withColumn(WHY, why)
        if batch.writer.flow.source.raw_for is None:  # drop the raw text of accepted rows, to save memory
            frame = frame.withColumn("_raw", F.when(F.col(WHY).isNotNull(), F.col("_raw")))
    emptied = {name: F.nullif(F.col(quoted(name)), F.lit("")) for name in text if name not in goal.keys}
    return frame.withColumns(emptied) if emptied else frame


def _reason(reason: str, field: str, detail: str | None = None) -> Column:
    return F.struct(
        F.lit(reason).alias("reason"), F.lit(field).alias("field"), F.lit(detail).cast("string").alias("detail")
    )
