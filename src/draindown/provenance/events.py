"""What became of the records of a key with a history: which of its rows each of them begins, is in,
or ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draindown.config.names import END_AT, START_AT
from draindown.provenance.deletes import Deletes, deletes_of
from draindown.provenance.fates import Contents, Ends, Judged, Known, shown
from draindown.provenance.judging import Asked, of_key
from draindown.provenance.model import Fate, Place
from draindown.provenance.records import Names, Values
from draindown.provenance.scan import Found

Row = Mapping[str, Any]
_IS_HIDDEN = "_delete"
"""A column that hidden events have, and rows have not."""


@dataclass(frozen=True)
class Events:
    """The events of a key that count, by sequence: the content of each, or None for a delete."""

    by_sequence: Mapping[Values, Row | None]

    @classmethod
    def of(cls, rows: Iterable[Row], hidden: Iterable[Row], order: Names) -> Events:
        """Return the events of a key's rows and hidden events. A row holds its newest event, and a
        delete by its end.

        Of hidden events of one sequence the newest counts, and a row's event before them: a greater
        one came later.
        """
        found: dict[Values, Row | None] = {}
        for one in sorted(hidden, key=lambda one: one["_changed_at"]):
            at = tuple(one[name] for name in order)
            if not (at in found and found[at] is None):
                found[at] = None if one["_delete"] else one
        rows = list(rows)
        starts = {bound(row, START_AT) for row in rows}
        found |= {
            end: None
            for row in rows
            if (end := bound(row, END_AT)) is not None and end not in starts
        }
        return cls(found | {tuple(row[name] for name in order): row for row in rows})


class Historical:
    """Of histories."""

    def judge(self, asked: Asked) -> Judge:
        """Return what tells which rows of the history each record is in."""
        rows, hidden = (
            of_key(asked.flow, path, asked.key)
            for path in (asked.layout.tables.target.path, asked.layout.tables.hidden.path)
        )
        events = Events.of(rows, hidden, tuple(asked.flow.target.sequence_by))
        return Judge(events, deletes_of(asked.flow), only=not asked.every)

    def said(self, records: Sequence[Place]) -> str:
        """Return which records begin and end the row."""
        by: dict[str, list[str]] = {}
        for one in records:
            if one.fate in ("applied", "deleted"):
                by.setdefault(one.why.rpartition(": ")[2], []).append(f"{one.input}:{one.position}")
        begins, ends, inner = (by.get(f"{what} the row", []) for what in ("begins", "ends", "in"))
        said = (
            f"begins with the record at {begins[0]}"
            if begins
            else "the record that it begins with can't be read"
        )
        said += f"; {len(inner)} more in it" if inner else ""
        return said + (f"; ends with that at {ends[0]}" if ends else "")


@dataclass(frozen=True)
class Judge:
    """Tells the fates of the records of one key beside one of its rows, or beside none.

    `deletes`: whether a record deletes its key; None if that can't be told. `only`: leave out
    records of other rows.
    """

    events: Events
    deletes: Deletes
    only: bool
    _told: set[Values] = field(default_factory=set)

    def __call__(self, known: Known, how: Contents, ends: Ends) -> Judged:
        """Yield the accepted records of one batch, with their sequences, in order."""
        for one, at in sorted(
            known, key=lambda pair: (pair[1], pair[0].unit.name, pair[0].record.position)
        ):
            place = self._place(at, ends.row)
            if place or not self.only:
                yield one, *self._fate(one, at, place, how, ends), at

    def _fate(
        self, one: Found, at: Values, place: str, how: Contents, ends: Ends
    ) -> tuple[Fate, str]:
        words, deletes = shown(how.order, at), self.deletes(one)
        if at not in self.events.by_sequence:
            out = at in ends.withheld
            return (
                ("withdrawn", f"{words}: the gate withdrew it")
                if out
                else ("unclear", f"{words}: no event is known")
            )
        event = self.events.by_sequence[at]
        # it stays among them when it is withdrawn
        if at in ends.withheld and event is not None and _IS_HIDDEN in event:
            return "withdrawn", f"{words}: the gate withdrew it"
        if event is None and deletes is False:
            return "superseded", f"{words}: a delete has the same sequence"
        if event is not None and (deletes or not how.same(one, event)):
            return "superseded", f"{words}: less by its content than the event that counts"
        if at in self._told:
            return "duplicate", f"{words}: the same change again"
        self._told.add(at)
        if event is None:
            return "deleted", f"{words}: {place or 'deletes the key'}"
        return "applied", f"{words}: {place or 'in another row of the key'}"

    @staticmethod
    def _place(at: Values, row: Row | None) -> str:
        if row is None:
            return ""
        start, end = bound(row, START_AT), bound(row, END_AT)
        assert start is not None, "a row of a history has a start"
        if at == start:
            return "begins the row"
        if at == end:
            return "ends the row"
        return "in the row" if start < at and (end is None or at < end) else ""


def bound(row: Row, name: str) -> Values | None:
    """Return start or end of a row as a tuple of the sequence's columns."""
    at = row[name]
    return None if at is None else tuple(at.values()) if isinstance(at, dict) else (at,)
