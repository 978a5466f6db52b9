"""How the plans of a batch run, by how much there is of it: bounds, and the Spark settings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from draindown.spark.session import INTERPRETED

PARTITIONS = "spark.sql.shuffle.partitions"
COPY_ON_WRITE = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
ONE_FILE = {PARTITIONS: "1"}
"""Of the comparison on, whose rows the MERGE takes in the same partitions."""
HASH_BOUND = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
PARTITION_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


@dataclass(frozen=True)
class Size:
    """How large something is: its rows or lines, and their bytes."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class Tuning:
    """The bounds. A size of None stands for a table that holds nothing for the batch to meet.

    `little`: lines below which a batch is interpreted rather than compiled; `little_held`: rows of target and
    tombstones from which on comparison and MERGE are compiled all the same; `sent`: records of a batch whose keys fit
    into memory once more, to be broadcast; `much_more`: times the records of a batch from which on the target is not
    sorted, but its rows looked up by the broadcast keys; `hashed_share`: of the heap, for a batch that the MERGE may
    hash (a hash table takes more than its rows, and never spills); `shuffled`: bytes of batch and target for which a
    shuffle gets a partition; `copied`: rows of small files that are written anew for one of the batch, at most;
    `named_values`: values of a column by which files of the target are chosen, where there are more their ranges do;
    `many_files`, `large`: files and bytes of a table of which it is told when keys don't choose its files, as all of a
    smaller one is read in a moment.
    """

    little: int = 50_000
    little_held: int = 150_000
    sent: int = 500_000
    much_more: int = 4
    hashed_share: int = 64
    shuffled: int = 64 * 1024**2
    copied: int = 100
    named_values: int = 200
    many_files: int = 64
    large: int = 1024**3

    def evaluation(self, lines: int, held: int = 0) -> Mapping[str, str]:
        """Whether plans are interpreted; `held`: rows of target and tombstones to compare the batch with."""
        return INTERPRETED if lines < self.little and held < self.little_held else {}

    def is_small_beside(self, held: Size | None, records: int) -> bool:
        """Whether the batch is so much smaller than the target that its keys are looked up where they lie."""
        if held is None or records > self.sent:
            return False
        return held.rows >= max(self.little_held, self.much_more * records)

    def joining(self, batch_bytes: int, heap: int, partition_size: str) -> Mapping[str, str]:
        """How the MERGE joins a batch that is small beside its target: a light one is hashed, the target not sorted.

        Spark broadcasts no side whose unmatched rows a join keeps, and heeds the bound only if it is no lower than the
        advisory size of a partition. Of two sides under it, the lighter one is hashed.
        """
        return {HASH_BOUND: partition_size} if batch_bytes <= heap // self.hashed_share else {}

    def shuffling(self, weight: int, tasks: int, partitions: int) -> Mapping[str, str]:
        """Into how many partitions comparison and MERGE shuffle so many bytes of batch and target: more than
        `partitions`, which the session says, only if tasks can take them.
        """
        wanted = min(ceil(weight / self.shuffled), tasks)
        return {PARTITIONS: str(wanted)} if wanted > partitions else {}

    def writing(self, held: Size | None, batch: Size, most: int) -> Mapping[str, str]:
        """How the MERGE writes: marks and small files beside small ones cost every reader more than a copy costs now.

        `batch`: its records, and the bytes of its files; `most`: bytes of target that are written anew.
        """
        if held is not None and (held.bytes > most or held.rows > self.copied * batch.rows):
            return {}
        little = batch.rows < self.little and 0 < batch.bytes <= most
        return COPY_ON_WRITE | (ONE_FILE if little else {})


TUNING = Tuning()
"""As measured."""
