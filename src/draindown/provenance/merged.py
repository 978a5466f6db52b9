"""What became of the records of a key whose row is merged column by column: which columns each of them gave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draindown.provenance.fates import Contents, Ends, shown
from draindown.provenance.model import Fate
from draindown.provenance.records import Names, Values
from draindown.provenance.scan import Found
from draindown.spec.partial import SEQUENCES

Known = Sequence[tuple[Found, Values]]


def fates(partial: Names, known: Known, how: Contents, ends: Ends) -> Iterator[tuple[Found, Fate, str, Values | None]]:
    """Yield accepted records of one batch with their fates, as the row shows them now.

    `partial`: the columns of which each has a sequence of its own. `known`: the records with their sequences.
    """
    dead = max(ends.deletes.values(), default=None)
    told = set[str]()
    for one, at in known:
        words, gave = shown(how.order, at), _given(one, at, partial, how, ends.row)
        mark = f"{at} {gave}"
        if at in ends.deletes.values():
            first = mark not in told
            yield one, "deleted" if first else "duplicate", f"deletes what is not after {words}", at
        elif gave:
            first = mark not in told
            yield one, "applied" if first else "duplicate", f"{words}: {', '.join(gave)} of the row", at
        elif dead is not None and at < dead:
            yield one, "superseded", f"{words} is before the delete at {shown(how.order, dead)}", at
        else:
            yield one, "superseded", f"{words}: no column of the row is from it now", at
        told.add(mark)


def _given(one: Found, at: Values, partial: Names, how: Contents, row: Mapping[str, Any] | None) -> list[str]:
    """Return the columns of the row that are of a record, by its sequence and values."""
    if row is None:
        return []
    when = {name: _values(value) for name, value in dict(row.get(SEQUENCES) or ()).items()}
    read = [name for name in how.content if name in partial and when.get(name) == at]
    values = one.record.read(tuple(read))
    own = [name for name, value in zip(read, values or (), strict=False) if value is not None and value == row[name]]
    # what a transform made is not in the record: there the sequence alone tells
    made = [name for name in partial if when.get(name) == at and name not in how.content]
    return [*own, *made, *(how.order if how.of(row) == at else ())]


def _values(at: Any) -> Values:
    return tuple(at.values()) if isinstance(at, dict) else (at,)
