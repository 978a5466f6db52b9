"""A reader who looks at tables all the time, and remembers each state it saw."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from deltalake import DeltaTable, QueryBuilder

Fingerprint = tuple[int, int, int, int]
_SQL = "select count(*), count(distinct id), coalesce(sum(seq), 0), coalesce(sum(a), 0) from t"


def fingerprint(table: DeltaTable) -> Fingerprint:
    """Rows, keys and two sums: no two states of a test's table share them."""
    [batch] = [b for b in QueryBuilder().register("t", table).execute(_SQL) if b.num_rows]
    return tuple(int(column[0].as_py()) for column in batch.columns)  # type: ignore[return-value]


def whole(path: str) -> list[Fingerprint]:
    """The state after each version of a table that was never disturbed, oldest first."""
    versions = range(DeltaTable(path).version() + 1)
    return [fingerprint(DeltaTable(path, version=version)) for version in versions]


class Reader:
    """Polls tables from a thread of its own while it is entered."""

    def __init__(self, *paths: str) -> None:
        self._paths, self._done = paths, threading.Event()
        self.seen: dict[str, dict[int, Fingerprint]] = {path: {} for path in paths}
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self.look()

    def _poll(self) -> None:
        while not self._done.wait(0.05):
            self.look()

    def look(self) -> None:
        """Look at every table once."""
        for path in self._paths:
            if any(Path(path, "_delta_log").glob("*.json")):
                try:
                    self._look(path)
                except Exception as error:  # noqa: BLE001 - whatever a reader meets is a finding
                    self.errors.append(f"{type(error).__name__}: {str(error)[:200]}")

    def _look(self, path: str) -> None:
        table = DeltaTable(path)
        if table.version() not in self.seen[path]:
            self.seen[path][table.version()] = fingerprint(table)

    def torn(self, path: str, states: Sequence[Fingerprint]) -> list[str]:
        """What was seen there that is no whole state, or came after a later one."""
        found = [f"a reader failed: {error}" for error in self.errors]
        at = 0
        for version, state in sorted(self.seen[path].items()):
            if state not in states[at:]:
                found.append(f"a reader saw {state} in version {version}, which is no whole state")
            else:
                at = states.index(state, at)
        return found
