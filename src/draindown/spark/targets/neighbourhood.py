"""What a batch is compared with, and the session settings that follow from its size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from draindown.ledger.rows import BatchRow
from draindown.spark import usage
from draindown.spark.cluster import workers
from draindown.spark.targets import delta_target, memory, resolution
from draindown.spark.targets.delta_target import Held
from draindown.spark.targets.strategy import Accepted
from draindown.spark.tuning import PARTITION_SIZE, PARTITIONS, Size


@dataclass(frozen=True)
class Neighbourhood:
    """The rows that the batch is compared with.

    `held`, `memory`: candidate rows of the target and of the table beside it; None if there are
    none. `is_large`: the candidate rows exceed the batch by so much that the batch's keys are
    broadcast instead of shuffling the target.
    """

    held: Held | None
    memory: Held | None
    is_large: bool

    @property
    def rows(self) -> int:
        """Candidate rows of both tables."""
        return sum(one.number for one in (self.held, self.memory) if one is not None)

    @property
    def size(self) -> Size | None:
        """Candidate rows and bytes of the target alone; None if there are none."""
        return None if self.held is None else self.held.size


def neighbourhood(accepted: Accepted, row: BatchRow) -> Neighbourhood:
    """Return what the batch is compared with, at the tables' current versions."""
    spark, writer = accepted.rows.sparkSession, accepted.writer
    held = delta_target.held_rows(spark, writer.target, accepted.pruning)
    accepted.compared(held, accepted.pruning)
    found = Neighbourhood(held, memory.held(spark, writer, accepted.pruning), False)
    return replace(found, is_large=accepted.tuning.is_small_beside(found.size, row.records))


def settings(accepted: Accepted, row: BatchRow, near: Neighbourhood) -> dict[str, str]:
    """Return the session settings for the comparison and the MERGE: evaluation, plans, estimates,
    write.
    """
    tuning, spark = accepted.tuning, accepted.rows.sparkSession
    found = dict(tuning.evaluation(accepted.lines, near.rows))
    if not near.is_large:
        found |= _planning(accepted, spark, near)
    found |= tuning.estimating(near.size, None if near.memory is None else near.memory.size)
    most = accepted.writer.flow.maintenance.copy_on_write
    return found | dict(tuning.writing(near.size, Size(row.records, row.bytes), most))


def _planning(accepted: Accepted, spark: SparkSession, near: Neighbourhood) -> Mapping[str, str]:
    """Return the settings of shuffles and of adaptive execution, by the weight of the batch and its
    candidate rows.

    Adaptive execution is decided by estimated row sizes too, because files may be much smaller.
    """
    tuning, batch = accepted.tuning, usage.persisted(spark).bytes
    weight, tasks = (
        batch + (near.size.bytes if near.size else 0),
        spark.sparkContext.defaultParallelism,
    )
    found = dict(tuning.shuffling(weight, tasks, int(str(spark.conf.get(PARTITIONS)))))
    return found | dict(tuning.adapting(max(weight, batch + near.rows * tuning.row_bytes)))


def joining(accepted: Accepted, spark: SparkSession) -> Mapping[str, str]:
    """Return the join settings of a MERGE whose target is much larger than the persisted batch."""
    weight = usage.persisted(spark).bytes
    return accepted.tuning.joining(weight, workers(spark).heap, str(spark.conf.get(PARTITION_SIZE)))


def candidates(accepted: Accepted, near: Neighbourhood, held: Held | None) -> DataFrame | None:
    """Return the rows of one of the tables that the batch is compared with; None if there are
    none.
    """
    rows = None if held is None else held.rows
    if rows is None or not near.is_large:
        return rows
    return resolution.among(rows, accepted.rows, accepted.writer.flow.target.keys)
