"""Spark settings of one batch, chosen by the weight of the batch and of the target."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from pyspark.sql import SparkSession

from draindown.ledger.rows import BatchRow
from draindown.spark import usage
from draindown.spark.batch.model import Batch
from draindown.spark.session import INTERPRETED, heap_bytes
from draindown.spark.targets.delta_target import Held

_LITTLE = 50_000
"""Lines below which a batch is interpreted rather than compiled."""
_LITTLE_HELD = 150_000
"""Rows of target and tombstones to compare it with, from which on comparison and MERGE are compiled all the same."""
_COPIED = 100
"""Rows of little files that are written anew for one that a batch brings, at most."""
_COPY_ON_WRITE = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
_PARTITIONS = "spark.sql.shuffle.partitions"
_ONE_FILE = {_PARTITIONS: "1"}
"""Of the comparison on, whose rows the MERGE takes in the same partitions."""
_SHUFFLED = 64 * 1024**2
"""Bytes of batch and target for which a shuffle of theirs gets a partition, as adaptive execution would have it."""
_SENT = 500_000
"""Records of a batch whose keys are held in memory once more, to be sent to a table that is much larger."""
_MUCH_MORE = 4
"""Times the batch's records. So many rows of the target are not sorted to be compared: the keys are sent to them."""
_HASHED_SHARE = 64
"""Of the heap, for a batch that the MERGE may hash: what lies in a hash table takes more, and never spills."""
_HASH_BOUND = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
_PARTITION_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


def evaluation(batch: Batch, held: int = 0) -> Mapping[str, str]:
    """How the batch's plans are run: `held` rows of target and tombstones are as much to work on as its own lines."""
    little = sum(file.counted for file in batch.files) < _LITTLE and held < _LITTLE_HELD
    return INTERPRETED if little else {}


def is_small_beside(held: Held | None, row: BatchRow) -> bool:
    """Whether the batch is so much smaller than the target that its keys are looked up where they lie."""
    if held is None or row.records > _SENT:
        return False
    return held.number >= max(_LITTLE_HELD, _MUCH_MORE * row.records)


def joining(spark: SparkSession, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """How the MERGE joins, once the batch is persisted: a light one is hashed, so that the target is not sorted.

    Spark broadcasts no side whose unmatched rows a join keeps, and heeds the bound only if it is no lower than the
    advisory size. Of two sides under it the lighter one is hashed.
    """
    if not is_small_beside(held, row) or usage.persisted(spark).bytes > heap_bytes(spark) // _HASHED_SHARE:
        return {}
    return {_HASH_BOUND: str(spark.conf.get(_PARTITION_SIZE))}


def shuffling(spark: SparkSession, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """Into how many partitions comparison and MERGE shuffle: more than the session says only if tasks can take them."""
    if is_small_beside(held, row):  # no row of the target is shuffled but those that change
        return {}
    weight = usage.persisted(spark).bytes + (held.bytes if held else 0)
    wanted = min(ceil(weight / _SHUFFLED), spark.sparkContext.defaultParallelism)
    return {_PARTITIONS: str(wanted)} if wanted > int(str(spark.conf.get(_PARTITIONS))) else {}


def writing(batch: Batch, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """How the MERGE writes: marks and small files beside little ones cost every reader more than a copy costs now."""
    most = batch.writer.flow.maintenance.copy_on_write
    if held is not None and (held.bytes > most or held.number > _COPIED * row.records):
        return {}
    little = row.records < _LITTLE and 0 < row.bytes <= most
    return _COPY_ON_WRITE | (_ONE_FILE if little else {})
