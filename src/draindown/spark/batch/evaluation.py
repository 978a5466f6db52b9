"""Evaluate a batch's records: parsed, transformed, persisted and counted in one pass.

Where the transform fails on a row, Spark ends the whole pass. Then the batch is evaluated once
more, so that such rows are refused alone; a batch on which nothing fails costs nothing more.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from draindown.base.errors import DraindownError
from draindown.flow.schema_drift import Known
from draindown.spark import cluster
from draindown.spark.batch import counting
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.batch.required_columns import (
    refuse_missing_columns,
    refuse_missing_values,
    without_raw,
)
from draindown.spark.causes import of_lost_executors, of_memory
from draindown.spark.contract import guarded_transform, transform_errors, transforms, unreadable
from draindown.spark.contract.parsing import parse
from draindown.spark.contract.records import records_of
from draindown.spark.contract.transforms import Transform
from draindown.spark.frames import persisted
from draindown.spark.session import configured


def evaluated(
    spark: SparkSession, batch: Batch, known: Known, kept: ExitStack
) -> tuple[DataFrame, Counted]:
    """Return the batch's rows, persisted until `kept` ends, and their counts.

    Raises TerminalError `transform-failed`, `executors-lack-python`, `file-unreadable`, and the
    errors of reading.
    """
    transform = batch.transform
    try:
        return _counted(spark, batch, known, kept)
    except (PySparkException, Py4JError) as error:
        cluster.refuse_other_python(error, batch.writer.flow.transform or "")
        if of_memory(error) or of_lost_executors(error):  # no row of its own fails
            raise
        if transform is None:
            with unreadable.named(spark, batch.writer.flow, batch.writer.layout, batch.input):
                raise
        return _second(spark, batch, known, kept, transform, error)


def _counted(
    spark: SparkSession, batch: Batch, known: Known, kept: ExitStack
) -> tuple[DataFrame, Counted]:
    parsed = _parsed(spark, batch, known)
    frame = parsed
    if batch.transform is not None:
        frame = transforms.apply(parsed, batch.transform, batch.writer.flow.transform or "")
    refuse_missing_columns(batch, frame)
    return _persisted(parsed, refuse_missing_values(frame, batch), batch, kept)


def _persisted(
    parsed: DataFrame, frame: DataFrame, batch: Batch, kept: ExitStack
) -> tuple[DataFrame, Counted]:
    """Return the frame, persisted until `kept` ends, and its counts. A frame that can't be counted
    is not kept.
    """
    with ExitStack() as attempt:
        attempt.enter_context(persisted(frame))
        counted = counting.count_batch(parsed, frame, batch)
        kept.push(attempt.pop_all())
    return frame, counted


def _parsed(spark: SparkSession, batch: Batch, known: Known, *, all_raw: bool = False) -> DataFrame:
    flow = batch.writer.flow
    many = batch.counted >= batch.tuning.looked_at
    reads = [
        replace(read, many=many)
        for read in batch.input.read(spark, flow, batch.writer.layout.spool)
    ]
    return parse(spark, flow, records_of(reads, flow, known), batch.first_seen, all_raw=all_raw)


def _second(
    spark: SparkSession,
    batch: Batch,
    known: Known,
    kept: ExitStack,
    transform: Transform,
    first: Exception,
) -> tuple[DataFrame, Counted]:
    """Evaluate the batch with rows that the transform can't take refused. `first`: the error
    without that.
    """
    with configured(spark, guarded_transform.SETTINGS):
        parsed = _parsed(spark, batch, known, all_raw=True)
        guarded = guarded_transform.apply_guarded(parsed, transform)
        if guarded is not None:
            frame = without_raw(refuse_missing_values(guarded, batch), batch)
            with suppress(PySparkException, Py4JError):
                return _persisted(parsed, frame, batch, kept)
        raise _failed(spark, batch, parsed, transform, first)


def _failed(
    spark: SparkSession, batch: Batch, parsed: DataFrame, transform: Transform, first: Exception
) -> Exception:
    """Return the error to raise: that of a unit which can't be read, else `transform-failed`, else
    `first` itself.
    """
    flow = batch.writer.flow
    try:
        with unreadable.named(spark, flow, batch.writer.layout, batch.input):
            parsed.write.format("noop").mode("overwrite").save()
    except DraindownError as known:
        return known
    except (PySparkException, Py4JError):
        return first
    error = transform_errors.failed(
        flow.transform or "", transform, first, *guarded_transform.culprit(parsed, transform)
    )
    error.__cause__ = first
    return error
