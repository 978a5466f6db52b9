"""The files of a Delta table's log, for what deltalake does not tell: which commits the log still
has, and what each one did to the data files.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from draindown.lake.store import Entry
from draindown.lake.stores import store_of

_COMMIT = re.compile(r"\d{20}\.json")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint.*\.parquet")


@dataclass(frozen=True)
class DeltaLog:
    """The log of the table at `table`, which need not exist."""

    table: str

    @property
    def home(self) -> str:
        """Directory of the log."""
        return f"{self.table}/_delta_log"

    def commits(self, after: int = -1) -> dict[int, Entry]:
        """Return the commits with a greater number than `after` that the log still has,
        ascending.
        """
        greater = self._key(after) if after >= 0 else None
        found = store_of(self.home).list(f"{self.home}/0", greater)
        return {int(entry.name[:20]): entry for entry in found if _COMMIT.fullmatch(entry.name)}

    def newest(self, most: int) -> dict[int, Entry]:
        """Return the newest commits, ascending. Looks only at those from the newest checkpoint on."""
        found = self.commits(self._last_checkpoint() - most)
        return dict(list((found or self.commits()).items())[-most:])

    def _last_checkpoint(self) -> int:
        """Return the version of the newest checkpoint as the log's hint has it; 0 without one."""
        hint = store_of(self.home).read(f"{self.home}/_last_checkpoint")
        with suppress(ValueError, LookupError, TypeError):
            return int(json.loads(hint[0])["version"]) if hint else 0
        return 0

    def checkpoints(self) -> list[Entry]:
        """Return the Parquet files of the checkpoints, ascending."""
        found = store_of(self.home).list(f"{self.home}/0")
        return [entry for entry in found if _CHECKPOINT.fullmatch(entry.name)]

    def commit(self, number: int) -> Entry | None:
        """Return the file of a commit, or None if the log has it no more."""
        return next(store_of(self.home).list(self._key(number)), None)

    def content(self, number: int) -> bytes | None:
        """Return a commit as it was written; None if the log has it no more."""
        found = store_of(self.home).read(self._key(number))
        return None if found is None else found[0]

    def lines(self, number: int) -> list[bytes]:
        """Return the actions of a commit as lines of JSON; none if the log has it no more."""
        content = self.content(number) or b""
        return [line for line in content.splitlines() if line.strip()]

    def actions(self, number: int) -> list[dict[str, Any]]:
        """Return the actions of a commit; none if the log has it no more. Raises ValueError if the
        commit is torn.
        """
        return [json.loads(line) for line in self.lines(number)]

    def _key(self, number: int) -> str:
        return f"{self.home}/{number:020}.json"
