"""Tables as a source: published versions in, slices of versions and buckets of keys out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError, TransientError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.table_source import TableSource
from draindown.lake.home import FlowHome, table_of_unit, table_unit
from draindown.lake.table import Table
from draindown.sources import intake
from draindown.sources.port import Forecast, Look, Progress
from draindown.sources.slices import FIRST, Slice, Unit
from draindown.sources.tables import late
from draindown.sources.tables.derivation import CHANGED, derivation_changed
from draindown.sources.tables.division import Division, divided, extents
from draindown.sources.tables.followed import Followed, Piece
from draindown.sources.tables.pinning import OWN, Rows, TablesPinning

ROWS = 2_000_000
"""Rows of the sources that one batch compares: more of them are bucketed by key."""


class Tables:
    """The `Source` of a derived flow. Looks at each table's log and published version once.

    A slice has a unit of each table, also of one without changes: its rows are read at that
    version.
    """

    unit = "commit"
    named = None
    perishable = None

    def __init__(self, source: TableSource, layout: FlowHome, root: Path, run_id: str) -> None:  # noqa: ARG002
        self._source, self._layout = source, layout

    @property
    def following(self) -> Tables:
        """Return itself: it reads what other flows publish."""
        return self

    @cached_property
    def tables(self) -> list[Followed]:
        """The tables, in the order of the flow."""
        return [Followed(one, self._layout) for one in self._source.read]

    def out_of_reach(self) -> tuple[str, str] | None:
        """Return nothing: a table that does not exist yet is waited for."""
        return None

    def look(self, state: FlowHome, generation: int, first: int, now: datetime) -> Look:
        """Compare the published versions with the newest slice. Raises like `refuse_lost`."""
        is_void = self.is_void(state, generation)
        newest = None if is_void else _newest(state, generation)
        waiting = intake.Waiting() if is_void else intake.waiting(state, generation, first)
        new, rest = self._new(newest, now), unfinished(newest)
        oldest = [] if waiting.oldest is None else [waiting.oldest]
        told = zip(self.tables, new, strict=False)
        reasons = [table.told(piece) for table, piece in told if piece.commits]
        if waiting.slices:
            reasons.append(f"{count(waiting.slices, 'slice')} pinned and yet to be processed")
        if rest:
            reasons.append(f"{count(len(rest), 'slice')} of a range of versions yet to be pinned")
        size = sum(piece.bytes for piece in new)
        return Look(
            unit=self.unit,
            units=sum(piece.commits for piece in new) + waiting.slices + len(rest),
            bytes=size + waiting.bytes,
            oldest=min(
                oldest + [piece.at.timestamp() for piece in new if piece.commits], default=None
            ),
            findings=self._findings(newest),
            pinned=Forecast(waiting.slices, waiting.unpacked),
            reasons=reasons,
            forecast=lambda _: Forecast(
                len(rest) + (self._division(new).buckets if new else 0), size
            ),
        )

    def _findings(self, newest: Slice | None) -> list[Finding]:
        return (
            [table.finding() for table in self.tables if not table.is_ready]
            if newest is None
            else []
        )

    def _new(self, newest: Slice | None, now: datetime) -> list[Piece]:
        """Return the versions of each table that no slice has; nothing if no row of any changed
        since the newest one.

        All rows are compared again where one of the tables was rebuilt. Where the newest slice is
        old, the versions are returned although no row changed.
        """
        if newest is None:
            return self._fill(now) if all(one.is_ready for one in self.tables) else []
        units = self._followed(newest)
        decided = newest.units[0].row["decided"], late.newest(self._layout)
        if decided[1] < decided[0]:
            raise _decisions_gone(self._layout, str(self._source), decided)
        changes = [table.changes(unit) for table, unit in units]
        if any(one.rebuilt for one in changes):
            return self._fill(now, [unit for _, unit in units])
        new = [
            table.since(unit, found, now)
            for (table, unit), found in zip(units, changes, strict=True)
        ]
        if not any(one.rows for one in changes):
            # a decision alone is one thing to read, and so is a table that is outrun
            alone = decided[0] != decided[1]
            due = [
                not at if alone else table.is_outrun(unit, now)
                for at, (table, unit) in enumerate(units)
            ]
            new = (
                [replace(one, commits=int(is_due)) for one, is_due in zip(new, due, strict=True)]
                if any(due)
                else []
            )
        return [replace(one, decided=decided) for one in new]

    def _fill(self, now: datetime, units: Sequence[Unit | None] = ()) -> list[Piece]:
        decided = 0, late.newest(self._layout)
        pairs = zip_longest(self.tables, units)
        return [replace(table.fill(now, unit), decided=decided) for table, unit in pairs]

    def refuse_miscounted(
        self, number: int, units: Sequence[Unit], read: Mapping[str, int]
    ) -> None:
        """Not called: a derived batch reads changes, and holds them against its own account."""

    def refuse_lost(self, state: FlowHome, generation: int, first: int) -> None:  # noqa: ARG002
        """Refuse to continue on another table, or for another derivation.

        Raises TerminalError `source-replaced`, `derivation-changed`.
        """
        newest = None if self.is_void(state, generation) else _newest(state, generation)
        if newest is not None:
            self._followed(newest)

    def is_void(self, state: FlowHome, generation: int) -> bool:
        """Return whether all slices were pinned for another derivation, such as one that Spark
        refused.

        The fill with which a generation begins can be pinned again until a batch of it is in the
        table.
        """
        newest = _newest(state, generation)
        if newest is None or self._as_pinned(newest.units) is None:
            return False
        return state.tables.target.last(state.app_id(generation, "rows")) is None

    def _followed(self, newest: Slice) -> list[tuple[Followed, Unit]]:
        """Return each table with its unit of the newest slice. Raises like `refuse_lost`."""
        self._refuse_other(newest.units)
        units = zip(self.tables, by_table(self._source, newest.units), strict=True)
        return [(table, table.same(unit)) for table, unit in units if unit is not None]

    def _as_pinned(self, units: Sequence[Unit]) -> str | None:
        """Return in words what the flow derives otherwise than when units were pinned; None if
        nothing is other.
        """
        if any(unit.row["derivation"] != self._source.derivation for unit in units):
            return CHANGED
        read, now = (
            {table_of_unit(unit.name) for unit in units},
            {one.table for one in self._source.read},
        )
        # the digest of one table under its own names does not say which
        return (
            None
            if read == now
            else f"it was computed from {_listed(read)}, and now its source is {_listed(now)}"
        )

    def _refuse_other(self, units: Sequence[Unit]) -> None:
        if found := self._as_pinned(units):
            raise derivation_changed(self._layout, self._source, "go on with", found)

    def pin(
        self,
        generation: int,
        now: datetime,
        progress: Progress | None = None,  # noqa: ARG002
    ) -> TablesPinning:
        """Begin to pin what was published since the newest slice."""
        intake.create(self._layout, generation, OWN)
        newest = _newest(self._layout, generation)
        new = self._new(newest, now)
        left = [*unfinished(newest), *self.slices_of(new)]
        if left:  # before they are pinned, so that no maintenance comes between
            rows = {table_of_unit(row["input"]): row for row in left[0]}
            for table in self.tables:
                table.register(rows[table.table])
        return TablesPinning(self._layout, generation, left, now)

    def read_up_to(self, generation: int, first: int) -> None:
        """Tell the flows of the tables what this one needs from now on, so that they keep no more.

        A rebuild has documents of its own: the live table still needs what it needed before.
        """
        done = (
            next(intake.slices(self._layout, generation, first - 1), None)
            if first > FIRST
            else None
        )
        for table, unit in zip(
            self.tables, by_table(self._source, done.units if done else ()), strict=True
        ):
            if unit is not None:
                table.advance(unit)

    def slices_of(self, pieces: Sequence[Piece]) -> list[Rows]:
        """Return the slices of the pieces of all tables, one per bucket; none without pieces."""
        division = self._division(pieces) if pieces else Division(parts=(0,))
        return [
            [
                self._row(table, piece, bucket, division)
                for table, piece in zip(self.tables, pieces, strict=True)
            ]
            for bucket in range(division.buckets)
        ]

    def _division(self, pieces: Sequence[Piece]) -> Division:
        """Return how the keys of all pieces are divided: those of a fill by the files, if that
        helps.
        """
        total, fill = (
            sum(piece.rows for piece in pieces),
            any(piece.start is None for piece in pieces),
        )
        if not fill or total <= ROWS:
            return divided({}, total, ROWS)
        sought = self._source.sought
        wanted = [
            {name for own in sought.values() if (name := own[at])} for at in range(len(pieces))
        ]
        files = [
            table.files(piece.until, own)
            for table, piece, own in zip(self.tables, pieces, wanted, strict=True)
        ]
        candidates = {
            key: [one for some, name in zip(files, own, strict=True) for one in extents(some, name)]
            for key, own in sought.items()
        }
        return divided(candidates, total, ROWS)

    def _row(
        self, table: Followed, piece: Piece, bucket: int, division: Division
    ) -> dict[str, Any]:
        buckets = division.buckets
        return {
            "input": table_unit(table.table),
            "start": -1 if piece.start is None else piece.start,
            "until": piece.until,
            "bytes": piece.bytes // buckets,
            "unpacked": piece.bytes // buckets,
            "records": None,
            "arrived_at": piece.at,
            "table_id": table.id,
            "derivation": self._source.derivation,
            "fill": piece.start is None,
            "changes": piece.changes,
            "rows": piece.rows,
            "bucket": bucket,
            "buckets": buckets,
            "decided_from": piece.decided[0],
            "decided": piece.decided[1],
            "division": str(division),
            "committed_ms": table.committed_ms(piece.until),
        }

    def missing(self, units: Iterable[Unit]) -> dict[str, Finding]:  # noqa: ARG002
        """Return nothing: a new generation compares the whole table, and reads no slice again."""
        return {}

    def asked_again(self, asked: Collection[str], generation: int, first: int) -> list[str]:
        """Return no names. Refuse a replay by name, and one between two buckets of a range, at two
        versions.

        Raises TerminalError `bad-range`, TransientError `range-unfinished`.
        """
        layout = self._layout
        tried = (
            f"compute again what slices of flow {layout.flow} of pipeline {layout.pipeline} touched"
        )
        if asked:
            again = f"draindown replay {layout.pipeline}/{layout.flow} --from 2026-01-01 --to 2026-01-02"
            raise TerminalError(
                "bad-range",
                tried=tried,
                found=f"{', '.join(asked)}: a derived flow reads versions of tables, and replays what was pinned in a "
                "range of time",
                changed="nothing",
                next=again,
            )
        if part := part_way(layout, generation, first - 1):
            raise TransientError(
                "range-unfinished",
                tried=tried,
                found=f"{part[0]} of {part[1]} buckets of a range of versions are in the table: its keys are at two "
                "versions of the sources, and a replay reads one",
                changed="nothing",
                next=f"draindown run {layout.pipeline}/{layout.flow}   # does the other buckets, then try again",
            )
        return []

    def refuse_changed(self, units: Sequence[Unit]) -> None:
        """Check that tables and derivation are those that were pinned.

        Raises TerminalError `source-replaced`, `derivation-changed`.
        """
        self._refuse_other(units)
        named = {table.table: table for table in self.tables}
        for unit in units:
            table = named[table_of_unit(unit.name)]
            log = Table(table.path)
            if not log.exists or log.id != unit.row["table_id"]:
                raise table.lost("it is another table than the one that was pinned")

    def leaving_out(self, units: Iterable[str]) -> str:  # noqa: ARG002
        """Return the command that compares the whole table with its source."""
        return f"draindown reset {self._layout.pipeline}/{self._layout.flow}"


def _decisions_gone(layout: FlowHome, source: str, decided: tuple[int, int]) -> TerminalError:
    reset = f"draindown reset {layout.pipeline}/{layout.flow}"
    return TerminalError(
        "source-replaced",
        tried=f"follow {source} for flow {layout.flow} of pipeline {layout.pipeline}",
        found=f"{layout.tables.late_decisions.path}: "
        f"late rows were counted by decisions up to number {decided[0]}, and it ends at number {decided[1]}",
        changed="nothing",
        next=[
            f"restore {layout.tables.late_decisions.path} from a copy, as a whole",
            f"{reset}   # compares the whole table with its source; rows whose decisions are gone are late again",
        ],
    )


def _listed(tables: Iterable[str]) -> str:
    return " and ".join(sorted(tables))


def unfinished(newest: Slice | None) -> list[Rows]:
    """Return the slices that complete the range of the newest one, if a crash came between them;
    else none.
    """
    if newest is None:
        return []
    first, own = newest.units[0].row, ("slice", "first_seen")
    rows = [
        {name: value for name, value in unit.row.items() if name not in own}
        for unit in newest.units
    ]
    return [
        [row | {"bucket": bucket} for row in rows]
        for bucket in range(first["bucket"] + 1, first["buckets"])
    ]


def by_table(source: TableSource, units: Iterable[Unit]) -> list[Unit | None]:
    """Return the units of a slice in the order of the source's tables; None for a table that the
    slice has not.
    """
    found = {table_of_unit(unit.name): unit for unit in units}
    return [found.get(one.table) for one in source.read]


def part_way(layout: FlowHome, generation: int, number: int) -> tuple[int, int] | None:
    """Return how many buckets of a range are done, and of how many, once slice `number` is done;
    None if all are.

    In between the table equals its query for some keys at one version, and for the others at an
    earlier one.
    """
    found = next(intake.slices(layout, generation, number), None)
    if found is None or found.number != number:
        return None
    row = found.units[0].row
    done, of = row["bucket"] + 1, row["buckets"]
    return (done, of) if done < of else None


def _newest(layout: FlowHome, generation: int) -> Slice | None:
    """Return the newest slice; None before the first."""
    number = intake.newest(layout, generation)
    return next(intake.slices(layout, generation, number), None) if number else None
