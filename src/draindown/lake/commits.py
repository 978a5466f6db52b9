"""One commit of a Delta table from its log: operation, metrics, writer's metadata, and whether it changed rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FENCE = "draindown_fence"
"""Key in the `userMetadata` of a fence: a commit that makes an earlier driver's commit fail and changes no row."""
# Operations that change no row: Delta writes their files with `dataChange = false`. All others may change rows.
_KEEPS_ROWS = frozenset(
    (
        *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "CREATE TABLE", "ADD COLUMNS", "CHANGE COLUMN"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL"),
    )
)


MERGED = (
    ("numTargetRowsInserted", "num_target_rows_inserted"),
    ("numTargetRowsUpdated", "num_target_rows_updated"),
    ("numTargetRowsDeleted", "num_target_rows_deleted"),
)
"""Metrics of a MERGE: rows inserted, updated and deleted, as Spark and as deltalake name them."""


@dataclass(frozen=True)
class Commit:
    """One commit of a Delta table.

    `timestamp`: milliseconds since 1970. `metrics`: Delta's `operationMetrics`, whose values are often strings.
    `parameters`: Delta's `operationParameters`. `user_metadata`: the commit's `userMetadata`; empty if it has none.
    """

    version: int
    timestamp: int
    operation: str = ""
    user_metadata: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Commit:
        """Return the commit for an entry of deltalake's `history`."""
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
        """The JSON object in `user_metadata`; empty if it is not a JSON object."""
        try:
            found = json.loads(self.user_metadata or "{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_fence(self) -> bool:
        """Whether it is a fence: a WRITE with the key FENCE and without metrics. A write of rows always has metrics."""
        return FENCE in self.note and self.operation == "WRITE" and not self.metrics

    @property
    def changed_rows(self) -> bool:
        """Whether it may have changed rows of the table."""
        return self.operation not in _KEEPS_ROWS and not self.is_fence

    @property
    def restored(self) -> int | None:
        """The version that a RESTORE restored; 0 if it was given as a timestamp. None for any other commit."""
        return int(self.parameters.get("version") or 0) if self.operation == "RESTORE" else None

    def metric(self, name: str) -> int:
        """Return one of its metrics; 0 if the log does not have it."""
        return int(self.metrics.get(name) or 0)

    @property
    def rows_written(self) -> int:
        """Rows that a WRITE wrote, by the name that Spark or deltalake gives their number."""
        return self.metric("numOutputRows") or self.metric("num_added_rows")

    @property
    def rows_changed(self) -> tuple[int, int, int]:
        """Rows inserted, updated and deleted, from Delta's metrics. An operation other than MERGE only inserts."""
        if self.operation != "MERGE":
            return self.rows_written, 0, 0
        inserted, updated, deleted = (max(map(self.metric, names)) for names in MERGED)
        return inserted, updated, deleted


def standing_restores(newest_first: Iterable[Commit]) -> Iterator[Commit]:
    """Yield the RESTOREs by which the table has the rows that it has, newest first.

    One that a later RESTORE took back, by a version before it, is left out: its effect is undone. Each of those that
    are yielded goes back further than the one before.
    """
    at: int | None = None  # the version whose rows the table has, as far as the commits were read
    for commit in newest_first:
        if commit.restored is not None and (at is None or commit.version <= at):
            at = commit.restored
            yield commit
