"""What became of the records of a key whose row is merged column by column: which columns each of
them gave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draindown.config.names import is_own
from draindown.config.partial import SEQUENCES
from draindown.provenance.deletes import Deletes, deletes_of
from draindown.provenance.fates import Contents, Ends, Judged, Known, shown
from draindown.provenance.judging import Asked
from draindown.provenance.model import Fate, Place
from draindown.provenance.records import Names, Values
from draindown.provenance.scan import Found


class Merged:
    """Of rows that are merged column by column."""

    def judge(self, asked: Asked) -> Judge:
        """Return what tells which values of the row each record gave."""
        part, row = asked.flow.target.partial, asked.row
        assert part is not None, "the kind of the target is partial"
        names = asked.flow.columns if row is None else [name for name in row if not is_own(name)]
        return Judge(tuple(part.columns(list(names))), deletes_of(asked.flow))

    def said(self, records: Sequence[Place]) -> str:
        """Return which records the row has values of."""
        gave = [f"{one.input}:{one.position}" for one in records if one.fate == "applied"]
        return (
            f"merged from {', '.join(gave)}"
            if gave
            else "no record behind it is among what can be read"
        )


@dataclass(frozen=True)
class Judge:
    """Tells the fates of the records of one key, as its row shows them now.

    `partial`: the columns of which each has a sequence of its own. `deletes`: whether a record
    deletes its key.
    """

    partial: Names
    deletes: Deletes
    _told: set[tuple[Values, Values | None]] = field(default_factory=set)

    def __call__(self, known: Known, how: Contents, ends: Ends) -> Judged:
        """Yield the accepted records of one batch, with their sequences, in order."""
        for one, at in sorted(
            known, key=lambda pair: (pair[1], pair[0].unit.name, pair[0].record.position)
        ):
            yield one, *self._fate(one, at, how, ends), at

    def _fate(self, one: Found, at: Values, how: Contents, ends: Ends) -> tuple[Fate, str]:
        words, dead = shown(how.order, at), max(ends.deletes.values(), default=None)
        is_delete = self.deletes(one)
        if is_delete or (is_delete is None and at in ends.deletes.values()):
            if at not in ends.deletes.values():
                return "superseded", f"{words}: a newer delete came with it"
            again, fate, said = (
                self._is_told(at, None),
                "deleted",
                f"{words}: clears what is not after it",
            )
        else:
            gave = _given(one, at, self.partial, how, ends.row)
            if not gave and dead is not None and at <= dead:
                return "superseded", f"{words} is not after the delete at {shown(how.order, dead)}"
            if not gave:
                return "superseded", f"{words}: no value of the row is from it now"
            again, fate, said = (
                self._is_told(at, one.record.read(how.content)),
                "applied",
                f"{words}: {', '.join(gave)} of the row",
            )
        return ("duplicate", f"{words}: the same change again") if again else (fate, said)  # type: ignore[return-value]

    def _is_told(self, at: Values, content: Values | None) -> bool:
        """Return whether a record was told with the same sequence and content; None: a delete."""
        mark = at, content
        again = mark in self._told
        self._told.add(mark)
        return again


def _given(
    one: Found, at: Values, partial: Names, how: Contents, row: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return the columns of the row that are of a record, by its sequence and values."""
    if row is None:
        return ()
    when = {name: _values(value) for name, value in dict(row.get(SEQUENCES) or ()).items()}
    read = tuple(name for name in how.content if name in partial and when.get(name) == at)
    values = one.record.read(read)
    own = [
        name
        for name, value in zip(read, values or (), strict=False)
        if value is not None and value == row[name]
    ]
    # what a transform made is not in the record: there the sequence alone tells
    made = [name for name in partial if when.get(name) == at and name not in how.content]
    return (*own, *made, *(how.order if how.of(row) == at else ()))


def _values(at: Any) -> Values:
    return tuple(at.values()) if isinstance(at, dict) else (at,)
