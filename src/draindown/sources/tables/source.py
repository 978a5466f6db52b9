"""A table as a source: published versions in, slices of versions and buckets of keys out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.port import Forecast, Look, NothingLost, Progress, ReadInOrder, Taken
from draindown.sources.slices import FIRST, Slice, Unit
from draindown.sources.tables import late, registered
from draindown.sources.tables.registered import Reader
from draindown.sources.tables.upstream import Upstream
from draindown.spec.derived import TableSource

OWN = pa.schema(
    [
        *(("table_id", pa.string()), ("derivation", pa.string()), ("fill", pa.bool_())),
        *(("changes", pa.bool_()), ("rows", pa.int64()), ("bucket", pa.int64()), ("buckets", pa.int64())),
        *(("decided_from", pa.int64()), ("decided", pa.int64())),
    ]
)
"""Columns of the intake beside those of `Unit`, whose `start` is exclusive, and -1 for a fill, which reads all."""
ROWS = 2_000_000
"""Most rows of the source that one batch compares: more of them are bucketed by key."""


@dataclass(frozen=True)
class Piece:
    """The versions that the next slices pin. `start`: None for a fill. `rows`: rows that changed, or all of a fill.

    `decided`: numbers of decisions about late rows: up to the first counted before, up to the second count from here.
    """

    start: int | None
    until: int
    rows: int
    bytes: int
    changes: bool
    commits: int
    at: datetime
    decided: tuple[int, int] = (0, 0)

    @property
    def buckets(self) -> int:
        """The number of slices that they make."""
        return max(1, ceil(self.rows / ROWS))


class Tables(ReadInOrder, NothingLost):
    """The `Source` of a table. Looks at its log and its published version once."""

    unit = "commit"

    def __init__(self, source: TableSource, layout: FlowLayout, root: Path, run_id: str) -> None:  # noqa: ARG002
        self._source, self._layout = source, layout
        self._upstream = Upstream(layout, source.table, source.written_by)

    def out_of_reach(self) -> tuple[str, str] | None:
        """Return nothing: a table that does not exist yet is waited for."""
        return None

    def look(self, state: FlowLayout, generation: int, first: int, now: datetime) -> Look:
        """Compare the published version with the newest slice. Raises like `refuse_lost`."""
        newest = _newest(state, generation)
        waiting, new, rest = intake.waiting(state, generation, first), self._new(newest, now), unfinished(newest)
        oldest = [] if waiting.oldest is None else [waiting.oldest]
        reasons = [] if new is None else [self._told(new)]
        if waiting.slices:
            reasons.append(f"{count(waiting.slices, 'slice')} pinned and yet to be processed")
        if rest:
            reasons.append(f"{count(len(rest), 'slice')} of a range of versions yet to be pinned")
        return Look(
            unit=self.unit,
            units=(new.commits if new else 0) + waiting.units + len(rest),
            bytes=(new.bytes if new else 0) + waiting.bytes,
            oldest=min(oldest + ([new.at.timestamp()] if new else []), default=None),
            findings=self._findings(newest),
            pinned=Forecast(waiting.slices, waiting.unpacked),
            reasons=reasons,
            forecast=lambda _: Forecast(len(rest) + (new.buckets if new else 0), new.bytes if new else 0),
        )

    def _told(self, new: Piece) -> str:
        name = self._source.table
        if new.start is None:
            return f"all {count(new.rows, 'row')} of table {name} to compare, at version {new.until}"
        if new.start == new.until:
            return "late rows were applied, and are yet to be counted"
        commits, rows = count(new.commits, "commit"), count(new.rows, "row")
        return f"{commits} of table {name} since version {new.start}, {rows} changed"

    def _findings(self, newest: Unit | None) -> list[Finding]:
        if newest is not None or self._upstream.has_feed:
            return []
        run = f"draindown run {self._layout.pipeline} --flow {self._source.written_by}"
        what = "has published nothing yet" if self._upstream.pointer is None else "has no change feed yet"
        detail = f"{what}: this flow waits for the next run of flow {self._source.written_by}"
        return [Finding(kind="waiting", subject=f"table {self._source.table}", detail=detail, next=run)]

    def _new(self, newest: Unit | None, now: datetime) -> Piece | None:
        """Return the versions that no slice has; None if no row changed since the newest slice, that of `newest`."""
        found = self._upstream
        if newest is not None:
            self._refuse_other(newest)
        if found.pointer is None:
            return None
        until = found.pointer.version
        if newest is None:
            return self._fill(until, now) if found.has_feed else None
        decided = newest.row["decided"], late.newest(self._layout)
        if decided[1] < decided[0]:
            raise self._lost("decisions about its late rows are gone, by which rows were counted")
        if until <= newest.until:
            return None if decided[0] == decided[1] else _of_decisions(newest, now, decided)
        changes = found.between(newest.until, until)
        if changes.lost:
            raise self._lost(changes.lost)
        if changes.rebuilt:
            return self._fill(until, now)
        if not changes.rows:
            return None if decided[0] == decided[1] else _of_decisions(newest, now, decided)
        at = changes.oldest or now
        number = len(changes.commits)
        return Piece(newest.until, until, changes.rows, changes.bytes, not changes.only_inserts, number, at, decided)

    def _fill(self, until: int, now: datetime) -> Piece:
        files = self._upstream.log.at(until).files()
        rows = sum(file.get("num_records") or 0 for file in files)
        decided = 0, late.newest(self._layout)
        return Piece(None, until, rows, sum(file["size_bytes"] for file in files), True, 1, now, decided)

    def refuse_miscounted(self, number: int, units: Sequence[Unit], read: Mapping[str, int]) -> None:
        """Not called: a derived batch reads changes, and holds them against its own account."""

    def refuse_lost(self, state: FlowLayout, generation: int, first: int) -> None:  # noqa: ARG002
        """Refuse to continue on another table, or for another derivation.

        Raises TerminalError `source-replaced`, `derivation-changed`.
        """
        newest = _newest(state, generation)
        if newest is not None:
            self._refuse_other(newest)

    def _refuse_other(self, newest: Unit) -> None:
        log = self._upstream.log
        if not log.exists:
            raise self._lost("it is gone")
        if log.id != newest.row["table_id"]:
            raise self._lost("it is another table than the one that was read: it was made anew")
        if log.version < newest.until:
            raise self._lost(f"it ends at version {log.version}, and version {newest.until} was read")
        if newest.row["derivation"] != self._source.derivation:
            layout = self._layout
            raise TerminalError(
                "derivation-changed",
                tried=f"go on with flow {layout.flow} of pipeline {layout.pipeline}",
                found="its derivation or its columns are not those that the table was computed by",
                changed="nothing",
                next=[
                    f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table",
                    f"put them back as they were, then: draindown run {layout.pipeline}",
                ],
            )

    def _lost(self, why: str) -> TerminalError:
        layout = self._layout
        return TerminalError(
            "source-replaced",
            tried=f"follow table {self._source.table} for flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"{self._upstream.path}: {why}",
            changed="nothing",
            next=f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table with its source",
        )

    def pin(self, generation: int, now: datetime, progress: Progress | None = None) -> TablesPinning:  # noqa: ARG002
        """Begin to pin what was published since the newest slice."""
        intake.create(self._layout, generation, OWN)
        newest = _newest(self._layout, generation)
        new = self._new(newest, now)
        left = [*unfinished(newest), *(self.rows_of(new) if new else [])]
        if left:  # before they are pinned, so that no maintenance comes between
            registered.register(self._upstream.layout, self._reader(Unit.of(left[0]), is_read=False))
        return TablesPinning(self._layout, generation, left, now)

    def read_up_to(self, generation: int, first: int) -> None:
        """Tell the source's flow what this one needs from now on, so that it keeps no more."""
        done = next(intake.slices(self._layout, generation, first - 1), None) if first > FIRST else None
        if done is not None and self._upstream.log.exists:
            (unit,) = done.units
            is_read = unit.row["bucket"] + 1 == unit.row["buckets"]
            registered.advance(self._upstream.layout, self._reader(unit, is_read=is_read))

    def _reader(self, unit: Unit, *, is_read: bool) -> Reader:
        """Return what this flow needs of the source, once a unit is read or while it waits to be."""
        begun, fill = not is_read, bool(unit.row["fill"])
        version = unit.until if is_read or fill else unit.start
        layout = self._layout
        return Reader(layout.pipeline, layout.flow, unit.row["table_id"], version, snapshot=begun and fill)

    def rows_of(self, piece: Piece) -> list[dict[str, Any]]:
        """Return the units of a piece, one per bucket."""
        log, at = self._upstream.log, piece.at
        return [
            {
                "unit": self._upstream.path,
                "start": -1 if piece.start is None else piece.start,
                "until": piece.until,
                "bytes": piece.bytes // piece.buckets,
                "unpacked": piece.bytes // piece.buckets,
                "records": None,
                "arrived_at": at,
                "table_id": log.id,
                "derivation": self._source.derivation,
                "fill": piece.start is None,
                "changes": piece.changes,
                "rows": piece.rows,
                "bucket": bucket,
                "buckets": piece.buckets,
                "decided_from": piece.decided[0],
                "decided": piece.decided[1],
            }
            for bucket in range(piece.buckets)
        ]

    def missing(self, units: Iterable[Unit]) -> dict[str, Finding]:  # noqa: ARG002
        """Return nothing: a new generation compares the whole table, and reads no slice again."""
        return {}

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        """Check that the table is the one that was pinned. Raises TerminalError `source-replaced`."""
        log = TableLog(self._upstream.path)
        if any(not log.exists or log.id != unit.row["table_id"] for unit in units):
            raise self._lost("it is another table than the one that was pinned")

    def give_up(self, units: Sequence[str], unread: Collection[str], *, by: str, note: str, at: datetime) -> None:
        """Refuse: versions of a table can't be left out. Raises TerminalError `not-parked`."""
        del unread, by, note, at
        raise TerminalError(
            "not-parked",
            tried=f"leave out {', '.join(units)}",
            found="a derived flow reads all versions that its source publishes",
            changed="nothing",
            next=f"draindown plan {self._layout.pipeline} --flow {self._source.written_by}",
        )

    def leaving_out(self, units: Iterable[str]) -> str:  # noqa: ARG002
        """Return the command that compares the whole table with its source."""
        return f"draindown reset {self._layout.pipeline} --flow {self._layout.flow}"


def _of_decisions(newest: Unit, now: datetime, decided: tuple[int, int]) -> Piece:
    """Return a piece without versions: rows that came late are applied, at the version that was read last."""
    return Piece(newest.until, newest.until, 1, 0, False, 1, now, decided)


class TablesPinning:
    """Pins units, a slice for each."""

    def __init__(self, layout: FlowLayout, generation: int, units: list[dict[str, Any]], now: datetime) -> None:
        self._layout, self._generation, self._now, self._left = layout, generation, now, units
        self.taken = Taken()

    def forecast(self, bound: Bound) -> Forecast:  # noqa: ARG002
        """Return the buckets that are left."""
        return Forecast(len(self._left), sum(unit["unpacked"] for unit in self._left))

    def take(self, bound: Bound, most: int | None = None) -> bool:  # noqa: ARG002
        """Pin all buckets, however many: the slices of one range belong together."""
        number = intake.newest(self._layout, self._generation)
        for unit in self._left:
            number += 1
            intake.append(self._layout, self._generation, OWN, [unit], self._now, number)
        self.taken = Taken(self.taken.slices + len(self._left), self.taken.units + len(self._left))
        self._left = []
        return False

    def close(self) -> None:
        """Nothing is open."""


def unfinished(newest: Unit | None) -> list[dict[str, Any]]:
    """Return the units that complete the range of the newest slice, if a crash came between its slices; else none."""
    if newest is None:
        return []
    row = {name: value for name, value in newest.row.items() if name not in ("slice", "first_seen")}
    return [row | {"bucket": bucket} for bucket in range(row["bucket"] + 1, row["buckets"])]


def part_way(layout: FlowLayout, generation: int, number: int) -> tuple[int, int] | None:
    """Return how many buckets of a range are done, and of how many, once slice `number` is done; None if all are.

    In between the table equals its query for some keys at one version, and for the others at an earlier one.
    """
    found = next(intake.slices(layout, generation, number), None)
    if found is None or found.number != number:
        return None
    row = found.units[0].row
    done, of = row["bucket"] + 1, row["buckets"]
    return (done, of) if done < of else None


def _newest(layout: FlowLayout, generation: int) -> Unit | None:
    """Return the unit of the newest slice; None before the first."""
    number = intake.newest(layout, generation)
    found: Slice | None = next(intake.slices(layout, generation, number), None) if number else None
    return None if found is None else found.units[0]
