"""One table that a derived flow follows: what is new in it, and what its own flow must keep for the
reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.table_source import SourceTable
from draindown.lake.home import FlowHome
from draindown.sources.slices import Unit
from draindown.sources.tables import registered
from draindown.sources.tables.registered import Reader
from draindown.sources.tables.upstream import Changes, Upstream

RENEWED = timedelta(days=30)
"""Age at which the version of the newest slice is given up for a later one, though no row changed
in between.

Delta's cleanup of the log knows no readers: 90 days on, nobody could tell that the commits in
between changed no row.
"""


@dataclass(frozen=True)
class Piece:
    """The versions of one table that the next slices pin.

    `start`: None for a fill. `rows`: rows that changed, or all of a fill. `changes`: whether some
    were updated or deleted. `commits`: 0 if no row changed, so that the table is only read; where
    nothing else calls for the slice, 1. `decided`: numbers of decisions about late rows: up to the
    first counted before, up to the second count from here.
    """

    start: int | None
    until: int
    rows: int
    bytes: int
    changes: bool
    commits: int
    at: datetime
    decided: tuple[int, int] = (0, 0)


class Followed:
    """A source table of a flow, looked at once."""

    def __init__(self, table: SourceTable, layout: FlowHome) -> None:
        self._table, self._layout = table, layout
        self.name, self.table, self.flow = (
            str(table),
            table.table,
            (table.pipeline or layout.pipeline, table.written_by),
        )
        self._upstream = Upstream(layout, table.table, *self.flow)

    @property
    def path(self) -> str:
        """The table."""
        return self._upstream.path

    @property
    def is_ready(self) -> bool:
        """Whether a version was published whose later changes can be read."""
        return self._upstream.has_feed

    def finding(self) -> Finding:
        """Return what is waited for while the table is not ready."""
        pipeline, flow = self.flow
        writer = flow if pipeline == self._layout.pipeline else f"{flow} of pipeline {pipeline}"
        what = (
            "has published nothing yet"
            if self._upstream.pointer is None
            else "has no change feed yet"
        )
        detail = f"{what}: this flow waits for the next run of flow {writer}"
        run = f"draindown run {pipeline}/{flow}"
        return Finding(kind="waiting", subject=f"table {self.name}", detail=detail, next=run)

    def changes(self, newest: Unit) -> Changes:
        """Return what was published since the newest slice. Raises TerminalError
        `source-replaced`.
        """
        until = self._until(newest)
        found = self._upstream.between(newest.until, until) if until > newest.until else Changes(())
        lost = found.lost or self._other_commit(newest)
        if lost:
            raise self.lost(lost)
        return found

    def _other_commit(self, newest: Unit) -> str:
        """Return why the version of the newest slice is not the one that was read; empty if it is,
        or nobody knows.
        """
        read, now = newest.row["committed_ms"], self.committed_ms(newest.until)
        if read is None or now is None or now <= read:  # one that was made again is later
            return ""
        return f"version {newest.until} is another commit than the one that was read: it was put back from a copy"

    def is_outrun(self, newest: Unit, now: datetime) -> bool:
        """Return whether the newest slice has a version as old as RENEWED, and a later one was
        published.
        """
        if self._until(newest) == newest.until:
            return False
        read = newest.row["committed_ms"] or self.committed_ms(newest.until)
        return read is None or now - datetime.fromtimestamp(read / 1000, UTC) >= RENEWED

    def _until(self, newest: Unit | None) -> int:
        """Return the version to read: the published one, but none that is older than the newest
        slice has.
        """
        pointer = self._upstream.pointer
        return max(pointer.version if pointer else 0, newest.until if newest else 0)

    def since(self, newest: Unit, changes: Changes, now: datetime) -> Piece:
        """Return the piece of `changes` since the newest slice."""
        some, at, number = not changes.only_inserts, changes.oldest or now, len(changes.commits)
        return Piece(
            newest.until, self._until(newest), changes.rows, changes.bytes, some, number, at
        )

    def readable(self, unit: Unit) -> int:
        """Return the newest published version with the rows that the table had at a unit's `until`.

        Compaction rewrites files and changes no row; files of the version before it go with the
        next VACUUM.
        """
        until = self._until(unit)
        found = self._upstream.between(unit.until, until)
        if found.lost:
            return unit.until
        return min((commit.version - 1 for commit in found.commits), default=until)

    def fill(self, now: datetime, newest: Unit | None = None) -> Piece:
        """Return the whole table as a piece."""
        until = self._until(newest)
        files = self.files(until)
        rows = sum(file.get("num_records") or 0 for file in files)
        return Piece(None, until, rows, sum(file["size_bytes"] for file in files), True, 1, now)

    def files(self, version: int, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return the table's files at a version, as `Table.files` does."""
        return self._upstream.log.at(version).files(columns)

    def told(self, new: Piece) -> str:
        """Return in words what a piece holds."""
        if new.start is None:
            return f"all {count(new.rows, 'row')} of table {self.name} to compare, at version {new.until}"
        if not new.rows and new.decided[0] != new.decided[1]:
            return "late rows were released, and are yet to be counted"
        if not new.rows:
            return (
                f"version {new.start} of table {self.name} is more than {RENEWED.days} days old: the flow goes on to "
                f"version {new.until}, before the log of the commits in between is gone. They changed no row"
            )
        commits, rows = count(new.commits, "commit"), count(new.rows, "row")
        return f"{commits} of table {self.name} since version {new.start}, {rows} changed"

    def same(self, newest: Unit) -> Unit:
        """Return the unit of the newest slice if the table is the one that it pins.

        Raises TerminalError `source-replaced`.
        """
        log = self._upstream.log
        if not log.exists:
            raise self.lost("it is gone")
        if log.id != newest.row["table_id"]:
            raise self.lost("it is another table than the one that was read: it was made anew")
        if log.version < newest.until:  # perhaps another driver pinned it since the log was opened
            self._upstream.reopen()
            log = self._upstream.log
        if log.version < newest.until:
            raise self.lost(
                f"it ends at version {log.version}, and version {newest.until} was read"
            )
        return newest

    def committed_ms(self, version: int) -> int | None:
        """Return when a version was committed, by the table's log; None if the log has no such
        commit any more.
        """
        log = self._upstream.log
        return next(
            (
                one.timestamp
                for one in log.commits(log.version - version + 1)
                if one.version == version
            ),
            None,
        )

    def lost(self, why: str) -> TerminalError:
        """Return the error for a table that can't be followed."""
        layout = self._layout
        return TerminalError(
            "source-replaced",
            tried=f"follow table {self.name} for flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"{self.path}: {why}",
            changed="nothing",
            next=f"draindown reset {layout.pipeline}/{layout.flow}   # compares the whole table with its source",
        )

    def register(self, row: Mapping[str, Any]) -> None:
        """Tell the table's flow what is about to be pinned."""
        registered.register(self._upstream.layout, self._reader(Unit.of(row), is_read=False))

    def advance(self, unit: Unit) -> None:
        """Tell the table's flow what is needed from now on, once the slice of a unit is read."""
        if self._upstream.log.exists:
            is_read = unit.row["bucket"] + 1 == unit.row["buckets"]
            registered.advance(self._upstream.layout, self._reader(unit, is_read=is_read))

    def _reader(self, unit: Unit, *, is_read: bool) -> Reader:
        """Return what the flow needs of the table, once a unit is read or while it waits to be.

        While a unit waits whose table has no changes, the rows of its version are read all the
        same.
        """
        layout, whole = self._layout, bool(unit.row["fill"] or not unit.row["rows"])
        version = unit.until if is_read or whole else unit.start
        snapshot = whole and not is_read
        return Reader(
            layout.pipeline,
            layout.flow,
            unit.row["table_id"],
            version,
            snapshot=snapshot,
            staged=layout.staged,
        )

    @cached_property
    def id(self) -> str:
        """Delta's id of the table."""
        return self._upstream.log.id
