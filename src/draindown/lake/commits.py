"""One commit of a Delta table from its log: operation, metrics, writer's metadata, and whether it
changed rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

FENCE = "draindown_fence"
"""Key in the `userMetadata` of a fence: a commit that makes an earlier driver's commit fail and
changes no row.
"""
# Operations that change no row: Delta writes their files with `dataChange = false`. All others may
# change rows.
_KEEPS_ROWS = frozenset(
    (
        *(
            "OPTIMIZE",
            "REORG",
            "VACUUM START",
            "VACUUM END",
            "CREATE TABLE",
            "ADD COLUMNS",
            "CHANGE COLUMN",
        ),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL"),
        *(
            "ADD COLUMN",
            "CHANGE COLUMNS",
            "DROP COLUMNS",
            "RENAME COLUMN",
            "REPLACE COLUMNS",
            "UPDATE SCHEMA",
        ),
        *(
            "UPDATE COLUMN METADATA",
            "UPDATE FIELD METADATA",
            "UPDATE TABLE METADATA",
            "ADD CONSTRAINT",
        ),
        *("DROP CONSTRAINT", "ADD FEATURE", "DROP FEATURE", "CLUSTER BY", "COMPUTE STATS"),
        *(
            "ROW TRACKING BACKFILL",
            "ROW TRACKING UNBACKFILL",
            "REMOVE COLUMN MAPPING",
            "DOMAIN METADATA CLEANUP",
        ),
        *("Deletion Vector Tombstones", "OPTIMIZE CHECKPOINT", "REORG TABLE UPGRADE UNIFORM"),
    )
)


MERGED = (
    ("numTargetRowsInserted", "num_target_rows_inserted"),
    ("numTargetRowsUpdated", "num_target_rows_updated"),
    ("numTargetRowsDeleted", "num_target_rows_deleted"),
)
"""Metrics of a MERGE: rows inserted, updated and deleted, as Spark and as deltalake name them."""
_OTHERS = (
    ("numOutputRows", "num_added_rows"),
    ("numUpdatedRows", "num_updated_rows"),
    ("numDeletedRows", "num_deleted_rows"),
)
"""Metrics of other operations, likewise. Either engine writes all of those that it counts."""
_REPLACE = ("CREATE OR REPLACE", "REPLACE TABLE", "CLONE", "TRUNCATE")


@dataclass(frozen=True)
class Commit:
    """One commit of a Delta table.

    `timestamp`: milliseconds since 1970. `metrics`: Delta's `operationMetrics`, whose values are
    often strings. `parameters`: Delta's `operationParameters`. `user_metadata`: the commit's
    `userMetadata`; empty if it has none. `engine`: what wrote it, with its version; empty if it
    does not say.
    """

    version: int
    timestamp: int
    operation: str = ""
    user_metadata: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""

    @classmethod
    def of(cls, entry: Mapping[str, Any], version: int) -> Commit:
        """Return the commit of a version for an entry of deltalake's `history`."""
        return cls(
            version=version,
            timestamp=int(entry.get("timestamp") or 0),
            operation=str(entry.get("operation") or ""),
            user_metadata=str(entry.get("userMetadata") or ""),
            metrics=entry.get("operationMetrics") or {},
            parameters=entry.get("operationParameters") or {},
            engine=str(entry.get("engineInfo") or entry.get("clientVersion") or ""),
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
        """Whether it is a fence: a WRITE with the key FENCE and without metrics. A write of rows
        always has metrics.
        """
        return FENCE in self.note and self.operation == "WRITE" and not self.metrics

    @property
    def changed_rows(self) -> bool:
        """Whether it may have changed rows of the table."""
        return self.operation not in _KEEPS_ROWS and not self.is_fence

    @property
    def restored(self) -> int | None:
        """The version that a RESTORE restored; 0 if it was given as a timestamp. None for any other
        commit.
        """
        return int(self.parameters.get("version") or 0) if self.operation == "RESTORE" else None

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE restored; None if it was given as a timestamp, or for any
        other commit.
        """
        version = self.parameters.get("version") if self.operation == "RESTORE" else None
        return int(version) if version is not None and str(version).isdecimal() else None

    def metric(self, name: str) -> int:
        """Return one of its metrics; 0 if the log does not have it."""
        return int(self.metrics.get(name) or 0)

    @property
    def rows_written(self) -> int:
        """Rows that a WRITE wrote, by the name that Spark or deltalake gives their number."""
        return self.metric("numOutputRows") or self.metric("num_added_rows")

    @property
    def rows_changed(self) -> tuple[int, int, int]:
        """Rows inserted, updated and deleted, from Delta's metrics. An operation other than MERGE
        only inserts.
        """
        if self.operation != "MERGE":
            return self.rows_written, 0, 0
        inserted, updated, deleted = (max(map(self.metric, names)) for names in MERGED)
        return inserted, updated, deleted

    @property
    def told_rows(self) -> tuple[int | None, int | None, int | None]:
        """Rows inserted, updated and deleted as the metrics tell; None where they do not."""
        inserted, updated, deleted = (
            self._told(names) for names in (MERGED if self._merges else _OTHERS)
        )
        return inserted, updated, deleted

    @property
    def _merges(self) -> bool:
        return self.operation == "MERGE"

    def _told(self, names: Iterable[str]) -> int | None:
        numbers = [self.metric(name) for name in names if self.metrics.get(name) is not None]
        return max(numbers, default=None)

    @property
    def number_changed(self) -> int:
        """Number of rows that it changed. A commit whose metrics do not tell counts as 1."""
        numbers = [number for number in self.told_rows if number is not None]
        return sum(numbers) if numbers else 1

    @property
    def replaces(self) -> str:
        """Why it changes the whole table, in words; empty if it does not. Metrics do not count the
        rows it removes.
        """
        if self.operation == "RESTORE":
            return f"version {self.version} restored version {self.restored}"
        if (
            self.operation == "WRITE"
            and str(self.parameters.get("mode", "")).lower() == "overwrite"
        ):
            return f"version {self.version} overwrote it"
        if self.operation.startswith(_REPLACE):
            return f"version {self.version} replaced it ({self.operation})"
        return ""

    @property
    def moved_rows(self) -> bool:
        """Whether it changed rows, as far as its metrics tell. The first commit of a table replaces
        nothing.
        """
        return self.changed_rows and (
            (self.version > 0 and self.replaces != "") or self.number_changed > 0
        )


def standing_restores(newest_first: Iterable[Commit]) -> Iterator[Commit]:
    """Yield the RESTOREs by which the table has the rows that it has, newest first.

    One that a later RESTORE took back, by a version before it, is left out: its effect is undone.
    Each of those that are yielded goes back further than the one before.
    """
    at: int | None = None  # the version whose rows the table has, as far as the commits were read
    for commit in newest_first:
        if commit.restored is not None and (at is None or commit.version <= at):
            at = commit.restored
            yield commit
