"""Detect lost file skipping in the MERGE and suggest a layout that restores it."""

from __future__ import annotations

from dataclasses import dataclass, field

from draindown.base.findings import Finding
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.ledger import target_log
from draindown.ledger.rows import BatchRow
from draindown.spark.targets.delta_target import Held
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import Tuning

_MOST = 0.5  # share of the table's files; if a batch reads more, file skipping does not work
_NEEDED = 0.25  # share of the files read; if a batch changes more of them, it has to read most of them anyway
_TOUCHED = (
    "numTargetFilesRemoved",
    "numTargetDeletionVectorsAdded",
    "numTargetDeletionVectorsUpdated",
)


@dataclass
class Skipping:
    """Checks the first batch of a drain for lost file skipping, if the table is large.

    Attributes:
        batch: the batch that was checked; None before.
        files: files of the target; 0 if it is not large.
        looked_into: files that the batch reads, from the input files of Delta's plan.
        told_by: the file-skipping predicates of that batch.
    """

    layout: FlowHome
    flow: FlowSpec
    tuning: Tuning
    batch: int | None = None
    files: int = 0
    looked_into: int = 0
    told_by: Pruning = field(default_factory=Pruning)

    def look(self, batch: int, held: Held | None, pruning: Pruning) -> None:
        """Count the files that the batch reads. No-op after the first batch, or if the target is
        empty.

        `held`: the candidate rows of the target, selected by `pruning`.
        """
        if self.batch is not None or held is None:
            return
        self.batch, self.told_by = batch, pruning
        size = sum(file["size_bytes"] for file in held.every)
        if len(held.every) >= self.tuning.many_files and size >= self.tuning.large:
            self.files, self.looked_into = len(held.every), len(held.rows._jdf.inputFiles())

    def findings(self, row: BatchRow) -> list[Finding]:
        """Return the finding `pruning-lost` with the layout that would restore file skipping, or an
        empty list.

        `row` is the ledger row of the batch that was checked; the batch must be done.
        """
        if self.looked_into <= _MOST * self.files or not (advice := self._advice()):
            return []
        changed = self._changed(row)
        if changed > _NEEDED * self.looked_into:
            return []
        detail = (
            f"batch {self.batch} looked for its keys in {self.looked_into} of {self.files} files and changed rows in "
            f"{changed}; every run costs as much as the table is large"
        )
        return [
            Finding(kind="pruning-lost", subject=self.layout.table_name, detail=detail, next=advice)
        ]

    def _changed(self, row: BatchRow) -> int:
        if not row.inserted + row.updated + row.deleted:
            return 0
        return sum(map(target_log.last_commit(self.layout.tables.target.path).metric, _TOUCHED))

    def _advice(self) -> str:
        goal = self.flow.target
        rebuild = f"then: draindown rebuild {self.layout.pipeline}/{self.layout.flow}"
        told = self.told_by
        if many := [name for name in goal.partition_by if name in told.ranges]:
            return f"partition by something coarser than {', '.join(many)}, of which a batch has too many, {rebuild}"
        missing = [name for name in goal.partition_by if name not in told.values]
        if missing:
            made = f"have the transform make {', '.join(missing)} of columns in `keys` alone, by no UDF"
            return f"{made}; if it was changed, rows may lie elsewhere; {rebuild}"
        if not goal.partition_by:
            return (
                "add what never changes for a row and is alike in a batch, such as the day it was made, to `keys` and "
                f"`partition_by`, {rebuild}"
            )
        return ""  # the predicates name the partitions; the batch has keys in most of them
