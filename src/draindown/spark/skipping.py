"""Whether a batch's keys still tell which files of the target it concerns, and what would bring that back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from draindown import ledger_table, tables
from draindown.layout import FlowLayout
from draindown.report import Finding
from draindown.spec import FlowSpec

_MANY = 64  # files: all of a smaller table are read in a moment
_MOST = 0.5  # of the table's files; a batch that looks into more is not told by its keys where to look
_WASTED = 0.75  # of the files looked into, in which nothing was changed; a batch that changes most files needs them all
_TOUCHED = ("numTargetFilesRemoved", "numTargetDeletionVectorsAdded", "numTargetDeletionVectorsUpdated")


@dataclass
class Skipping:
    """Looks at the first batch of a drain, if the table is large. It looked into what Delta says it would read."""

    layout: FlowLayout
    flow: FlowSpec
    batch: int | None = None
    files: int = 0
    looked_into: int = 0

    def look(self, batch: int, held: DataFrame | None) -> None:
        """`held`: the rows of the target among which the batch looks for its keys; None if the target has no rows."""
        if self.batch is not None or held is None:
            return
        self.batch, self.files = batch, tables.file_count(self.layout.table)
        if self.files >= _MANY:
            self.looked_into = len(held.inputFiles())

    def findings(self) -> list[Finding]:
        """That pruning is lost, if it is, and which layout would restore it. Call it after the batch."""
        if self.looked_into <= _MOST * self.files or not (advice := self._advice()):
            return []
        changed = self._changed()
        if changed is None or changed > (1 - _WASTED) * self.looked_into:
            return []
        detail = (
            f"batch {self.batch} looked for its keys in {self.looked_into} of {self.files} files and changed rows in "
            f"{changed}; every run costs as much as the table is large"
        )
        return [Finding(kind="pruning-lost", subject=self.layout.table_name, detail=detail, next=advice)]

    def _changed(self) -> int | None:
        newest = ledger_table.commits(self.layout, 1)
        metrics: Mapping[str, Any] = newest[0].get("operationMetrics") or {} if newest else {}
        return sum(int(metrics.get(name, 0)) for name in _TOUCHED) if "numTargetFilesRemoved" in metrics else None

    def _advice(self) -> str:
        goal = self.flow.target
        rebuild = f"then: draindown rebuild {self.layout.pipeline} --flow {self.layout.flow}"
        untold = [name for name in goal.partition_by if name not in goal.keys]
        if untold:
            names = ", ".join(untold)
            return f"make {names} one of `keys`, or have the transform derive it from the keys alone, {rebuild}"
        if not goal.partition_by:
            return f"partition by a column that is one of `keys` and has few values per batch, such as a day, {rebuild}"
        return ""  # its keys do tell the partitions; the batch is about most of them
