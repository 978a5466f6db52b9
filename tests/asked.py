"""Rows that ask a history, at random: what happens to both in a step, and what a plain loop over
the events answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

START = datetime(2026, 3, 1, tzinfo=UTC)


class Event(NamedTuple):
    """What a history is folded from. Column `v` is tracked, `u` is not."""

    at: datetime
    seq: int
    v: str
    u: int
    gone: bool


class Run(NamedTuple):
    """A row of the history."""

    cell: int
    k: str
    start: Any
    end: Any
    v: str
    u: int


class Asking(NamedTuple):
    """A row of the table that asks."""

    cell: int
    k: str | None
    at: datetime | None
    id: int
    n: int


Events = dict[str, dict[tuple[datetime, int], Event]]


@dataclass
class Cell:
    """One step of both tables: before, after, and the images of what changed between, +1 for one
    that is.
    """

    before: tuple[Sequence[Asking], Sequence[Run]]
    after: tuple[Sequence[Asking], Sequence[Run]]
    answers: tuple[
        Mapping[tuple[int, int], tuple[Any, ...]], Mapping[tuple[int, int], tuple[Any, ...]]
    ]
    left: list[tuple[Asking, int]] = field(default_factory=list)
    right: list[tuple[Run, int]] = field(default_factory=list)


def cells(draw: Random, histories: int, *, two: bool) -> Iterator[Cell]:
    """Yield the steps of some histories, each with a number of its own. `two`: the sequence has two
    columns.
    """
    number = 0
    for _ in range(histories):
        rows, events = list[Asking](), Events()
        for _ in range(draw.randint(1, 4)):
            rows, runs = [one._replace(cell=number) for one in rows], _runs(number, events, two=two)
            cell = Cell((rows, runs), ([], []), (_answers(rows, events), {}))
            rows = list(rows)
            for _ in range(draw.choice((0, 0, 1, 2, 4))):
                _ask(draw, number, rows, cell.left)
            for _ in range(draw.choice((0, 1, 1, 2, 4))):
                was = Counter(runs)
                _happen(draw, events, two=two)
                runs = _runs(number, events, two=two)
                cell.right += [(one, -1) for one in (was - Counter(runs))] + [
                    (one, 1) for one in Counter(runs) - was
                ]
            cell.after, cell.answers = (rows, runs), (cell.answers[0], _answers(rows, events))
            yield cell
            number += 1


def _ask(draw: Random, number: int, rows: list[Asking], changes: list[tuple[Asking, int]]) -> None:
    """Insert, update or delete a row; an update may move its time, its key, or neither."""
    what = draw.random() if rows else 0.0
    if what < 0.5:
        known = {row.id for row in rows}
        new = next(one for one in range(100) if one not in known)
        rows.append(_asking(draw, number, new))
        changes.append((rows[-1], 1))
        return
    old = rows.pop(draw.randrange(len(rows)))
    changes.append((old, -1))
    if what < 0.85:
        new_row = _asking(draw, number, old.id)
        rows.append(
            draw.choice(
                (
                    new_row,
                    old._replace(n=new_row.n),
                    old._replace(at=new_row.at),
                    old._replace(k=new_row.k),
                )
            )
        )
        changes.append((rows[-1], 1))


def _asking(draw: Random, number: int, name: int) -> Asking:
    at = (
        None
        if draw.random() < 0.1
        else _time(draw) + timedelta(microseconds=draw.choice((0, 0, 0, 1, -1)))
    )
    return Asking(
        number, draw.choice((None, "a", "a", "a", "b", "c")), at, name, draw.randint(1, 3)
    )


def _happen(draw: Random, events: Events, *, two: bool) -> None:
    """Add an event anywhere in the order of its key's, late ones too; or take one back."""
    own = events.setdefault(draw.choice("aab"), {})
    if own and draw.random() < 0.25:
        del own[draw.choice(list(own))]
        return
    at, seq = _time(draw), draw.randint(1, 3) if two else 0
    own[at, seq] = Event(at, seq, draw.choice("xxy"), draw.randint(1, 2), draw.random() < 0.2)


def _time(draw: Random) -> datetime:
    return START + timedelta(minutes=draw.randint(0, 8))


def _folded(own: Mapping[tuple[datetime, int], Event]) -> list[list[Event]]:
    """The events of a key by run, in order; a delete is a run of its own."""
    found: list[list[Event]] = []
    for _, event in sorted(own.items()):
        if found and not event.gone and not found[-1][-1].gone and found[-1][-1].v == event.v:
            found[-1].append(event)
        else:
            found.append([event])
    return found


def _runs(number: int, events: Events, *, two: bool) -> list[Run]:
    def place(event: Event) -> Any:
        return (event.at, event.seq) if two else event.at

    rows = []
    for k, own in events.items():
        runs = _folded(own)
        for at, run in enumerate(runs):
            end = place(runs[at + 1][0]) if at + 1 < len(runs) else None
            if not run[0].gone:
                rows.append(Run(number, k, place(run[0]), end, run[-1].v, run[-1].u))
    return rows


def _answers(rows: Sequence[Asking], events: Events) -> dict[tuple[int, int], tuple[Any, ...]]:
    """What all events up to a row's time say of its key then: by row, whether there is an answer,
    and v and u of it.
    """
    found = {}
    for row in rows:
        answer: tuple[Any, ...] = (False, None, None)
        for run in _folded(events.get(row.k or "", {})):
            if row.at is not None and run[0].at <= row.at:
                answer = (False, None, None) if run[0].gone else (True, run[-1].v, run[-1].u)
        found[row.cell, row.id] = answer
    return found
