"""Spark settings of one batch, by its tuning and by what it weighs in memory."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from draindown.spark import usage
from draindown.spark.batch.model import Batch
from draindown.spark.session import heap_bytes
from draindown.spark.tuning import PARTITION_SIZE, PARTITIONS, Size


def evaluation(batch: Batch, held: int = 0) -> Mapping[str, str]:
    """Return whether the plans of the batch are interpreted; `held`: rows of the target to compare it with."""
    return batch.tuning.evaluation(sum(file.counted for file in batch.files), held)


def shuffling(batch: Batch, spark: SparkSession, held: Size | None) -> Mapping[str, str]:
    """Return the number of shuffle partitions for the persisted batch and the rows of the target beside it."""
    weight = usage.persisted(spark).bytes + (held.bytes if held else 0)
    return batch.tuning.shuffling(weight, spark.sparkContext.defaultParallelism, int(str(spark.conf.get(PARTITIONS))))


def joining(batch: Batch, spark: SparkSession) -> Mapping[str, str]:
    """Return how the MERGE joins the persisted batch to a target that is much larger."""
    return batch.tuning.joining(usage.persisted(spark).bytes, heap_bytes(spark), str(spark.conf.get(PARTITION_SIZE)))
