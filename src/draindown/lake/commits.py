"""One commit of a Delta table as its log tells it: what was done, by whom, and whether it changed rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FENCE = "draindown_fence"
"""Key in the `userMetadata` of a commit that keeps an earlier driver from committing, and changes no row."""
# These operations change no row: Delta marks the files that they write as no change of data. Anything else counts.
_KEEPS_ROWS = frozenset(
    (
        *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "CREATE TABLE", "ADD COLUMNS", "CHANGE COLUMN"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL"),
    )
)


@dataclass(frozen=True)
class Commit:
    """One commit. `timestamp` is in milliseconds since 1970; `metrics` are Delta's `operationMetrics`, often as text.

    `user_metadata` is the text that its writer gave it; empty where it gave none.
    """

    version: int
    timestamp: int
    operation: str = ""
    user_metadata: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Commit:
        """The commit that an entry of deltalake's `history` describes."""
        return cls(
            version=int(entry["version"]),
            timestamp=int(entry.get("timestamp") or 0),
            operation=str(entry.get("operation") or ""),
            user_metadata=str(entry.get("userMetadata") or ""),
            metrics=entry.get("operationMetrics") or {},
            parameters=entry.get("operationParameters") or {},
        )

    @property
    def note(self) -> Mapping[str, Any]:
        """The JSON object in `user_metadata`; empty where it holds none."""
        try:
            found = json.loads(self.user_metadata or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_fence(self) -> bool:
        """Whether it is a fence: a marked write without metrics, which every write of rows has."""
        return FENCE in self.note and self.operation == "WRITE" and not self.metrics

    @property
    def changed_rows(self) -> bool:
        """Whether it may have changed rows of the table."""
        return self.operation not in _KEEPS_ROWS and not self.is_fence

    @property
    def restored(self) -> int | None:
        """The version that a RESTORE brought back, 0 where it was named by time; None for any other commit."""
        return int(self.parameters.get("version") or 0) if self.operation == "RESTORE" else None

    def metric(self, name: str) -> int:
        """One of its metrics; 0 where the log doesn't have it."""
        return int(self.metrics.get(name) or 0)

    @property
    def rows_written(self) -> int:
        """Rows that a WRITE wrote."""
        return self.metric("numOutputRows")

    @property
    def rows_changed(self) -> tuple[int, int, int]:
        """Rows inserted, updated and deleted, as Delta counted them. A write other than a MERGE only inserts."""
        if self.operation != "MERGE":
            return self.rows_written, 0, 0
        done = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
        inserted, updated, deleted = map(self.metric, done)
        return inserted, updated, deleted
