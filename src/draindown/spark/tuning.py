"""Spark settings of a batch, chosen by its size and that of its target, with the thresholds they
depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from draindown.spark.session import INTERPRETED

PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE = "spark.sql.adaptive.enabled"
COPY_ON_WRITE = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
ONE_FILE = {PARTITIONS: "1"}
"""One shuffle partition, so that the MERGE writes one file. Set from the comparison on, whose
partitions it reuses.
"""
HASH_BOUND = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
PARTITION_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
COMPRESSION = "spark.sql.sources.fileCompressionFactor"


@dataclass(frozen=True)
class Size:
    """Rows (or lines) and bytes of a batch or table."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class Tuning:
    """The thresholds. In all methods a size of None means that the target has no rows to compare
    with.

    - `little`: a batch with fewer lines runs interpreted, without code generation.
    - `little_held`: from so many rows of target and tombstones on, comparison and MERGE are
      compiled anyway.
    - `looked_at`: from so many lines on, the first lines of a batch are looked at before it is read
      (`plain_json`).
    - `sent`: the keys of a batch with more records are not broadcast.
    - `much_more`: if the candidate target rows exceed this multiple of the batch, its keys are
      broadcast instead of sort-merge joining the target.
    - `hashed_share`: a batch of at most this fraction (1/n) of the heap may be the build side of a
      shuffled hash join in the MERGE; a hash table is larger than its rows and does not spill.
    - `shuffled`: bytes of batch and target per shuffle partition.
    - `copied`: copy-on-write rewrites at most so many target rows per row of the batch.
    - `row_bytes`: bytes of a row in memory, of a table whose files are smaller than such rows.
    - `named_values`: a pruning predicate lists at most so many values of a column; beyond that it
      uses ranges.
    - `many_files`, `large`: files and bytes from which on lost file skipping is reported; a smaller
      table is read in a moment.
    - `kept_every`: rows of a segment after which a processor keeps a state, if not
      `processors.fold.KEPT_EVERY`.
    - `keys_descending`: a processor folds the keys of a partition from the greatest to the least.
      The result does not depend on it, unless the class keeps something from key to key, which a
      drill makes visible this way.
    """

    little: int = 50_000
    little_held: int = 150_000
    looked_at: int = 300_000
    sent: int = 500_000
    much_more: int = 4
    hashed_share: int = 64
    shuffled: int = 64 * 1024**2
    copied: int = 100
    row_bytes: int = 64
    named_values: int = 200
    many_files: int = 64
    large: int = 1024**3
    kept_every: int | None = None
    keys_descending: bool = False

    def evaluation(self, lines: int, held: int = 0) -> Mapping[str, str]:
        """Return the settings for code generation. `held`: rows of target and tombstones to compare
        the batch with.
        """
        return INTERPRETED if lines < self.little and held < self.little_held else {}

    def is_small_beside(self, held: Size | None, records: int) -> bool:
        """Return whether to broadcast the batch's keys instead of sort-merge joining the target."""
        if held is None or records > self.sent:
            return False
        return held.rows >= max(self.little_held, self.much_more * records)

    def joining(self, batch_bytes: int, heap: int, partition_size: str) -> Mapping[str, str]:
        """Return the settings that let the MERGE use a shuffled hash join with a small batch as the
        build side.

        Sizes in bytes. A broadcast join is not possible, because the MERGE's outer join keeps
        unmatched rows of the batch. Spark honours the threshold only if it is not below the
        advisory partition size, and builds the hash table of the smaller side.
        """
        return {HASH_BOUND: partition_size} if batch_bytes <= heap // self.hashed_share else {}

    def shuffling(self, weight: int, tasks: int, partitions: int) -> Mapping[str, str]:
        """Return the number of shuffle partitions for comparison and MERGE, if the session's
        `partitions` are too few.

        `weight`: bytes of batch and target; `tasks`: upper bound, the tasks that can run at once.
        """
        wanted = min(ceil(weight / self.shuffled), tasks)
        return {PARTITIONS: str(wanted)} if wanted > partitions else {}

    def adapting(self, weight: int) -> Mapping[str, str]:
        """Return the setting that plans a light comparison once.

        Spark lists a Delta table's files at each new plan, and renders each as text, with the plans
        of all that is persisted, whether or not there is a UI. `weight`: bytes of what is compared.
        """
        return {ADAPTIVE: "false"} if weight < self.shuffled else {}

    def estimating(self, *tables: Size | None) -> Mapping[str, str]:
        """Return the setting that scales Spark's size estimates up to `row_bytes` a row, for tables
        with smaller files.

        Spark broadcasts the side of a join that it estimates to be small. Ten million rows with few
        distinct values were 4 MB of files, and overflowed a heap of 2 GB when they were broadcast.
        """
        shares = (
            one.rows * self.row_bytes / one.bytes for one in tables if one is not None and one.bytes
        )
        factor = max(shares, default=1.0)
        return {COMPRESSION: f"{factor:.1f}"} if factor > 1 else {}

    def writing(self, held: Size | None, batch: Size, most: int) -> Mapping[str, str]:
        """Return the settings for copy-on-write if the target is small, and for a single file if
        the batch is too.

        Rewriting a small target costs less than deletion vectors and small files would cost all its
        readers.

        `batch`: records, and bytes of the input files; `most`: bytes of target that may be
        rewritten.
        """
        if held is not None and (held.bytes > most or held.rows > self.copied * batch.rows):
            return {}
        little = batch.rows < self.little and 0 < batch.bytes <= most
        return COPY_ON_WRITE | (ONE_FILE if little else {})


TUNING = Tuning()
"""The defaults, chosen by measurement (docs/performance.md)."""
