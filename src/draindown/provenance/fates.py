"""What became of the records of one key: which won in its batch, and what lost against it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draindown.ledger.rows import BatchRow
from draindown.ledger.rows import Place as BatchPlace
from draindown.provenance.model import Batch, Fate, Place
from draindown.provenance.records import Names, Values
from draindown.provenance.scan import Found

Known = Sequence[tuple[Found, Values]]
"""Accepted records with their sequences."""
Judged = Iterator[tuple[Found, Fate, str, Values | None]]
Judge = Callable[[Known, "Contents", "Ends"], Judged]


@dataclass(frozen=True)
class Contents:
    """How records of a key compare. `order`: the sequence columns; `content`: columns that a row
    has unchanged.

    `judge`: what tells the fates of accepted records of one batch, where no record replaces another
    one whole.
    """

    order: Names
    content: Names
    judge: Judge | None = None

    def sequence(self, found: Found) -> Values | None:
        """Return the sequence of a record; None if it can't be read."""
        return found.record.read(self.order)

    def same(self, found: Found, row: Mapping[str, Any]) -> bool:
        """Return whether a record has the content of a row."""
        values = found.record.read(self.content)
        return values is not None and values == tuple(row.get(name) for name in self.content)

    def of(self, row: Mapping[str, Any]) -> Values:
        """Return the sequence of a row."""
        return tuple(row[name] for name in self.order)


@dataclass(frozen=True)
class Ends:
    """What is known of a key besides its records.

    `row`: the row of the table, and `by` the batch that wrote it. `deletes`: the sequence at which
    each batch deleted the key. `withheld`: the sequences of rows that the gate withdrew and that
    nobody released.
    """

    row: Mapping[str, Any] | None
    by: BatchPlace | None
    deletes: Mapping[BatchPlace, Values]
    withheld: Sequence[Values]


def places(
    found: Sequence[Found], batches: Mapping[BatchPlace, BatchRow], how: Contents, ends: Ends
) -> list[Place]:
    """Return the records of one key with their fates, by batch, oldest first; those that wait are
    last.
    """
    by_batch: dict[BatchPlace, list[Found]] = defaultdict(list)
    for one in found:
        by_batch[one.place].append(one)
    read = sorted(
        (place for place in by_batch if place in batches), key=lambda one: _turn(batches[one])
    )
    told: list[Place] = []
    newest: tuple[Values, BatchRow] | None = None
    for place in read:
        row = batches[place]
        for one, fate, why, sequence in _in_batch(by_batch[place], how, ends, place, newest):
            told.append(_place(one, fate, why, Batch.of(row)))
            if fate in ("applied", "deleted") and sequence is not None:
                newest = sequence, row
    waiting = (one for place in by_batch if place not in batches for one in by_batch[place])
    return [*told, *(_place(one, "waiting", "no batch has read it yet", None) for one in waiting)]


def _in_batch(
    found: Sequence[Found],
    how: Contents,
    ends: Ends,
    place: BatchPlace,
    newest: tuple[Values, BatchRow] | None,
) -> Iterator[tuple[Found, Fate, str, Values | None]]:
    accepted = [(one, how.sequence(one)) for one in found if one.refused is None]
    yield from (
        (one, "quarantined", refusal(one.refused), None) for one in found if one.refused is not None
    )
    yield from (
        (one, "unclear", "its sequence can't be read from the record", None)
        for one, at in accepted
        if at is None
    )
    known = sorted(
        ((one, at) for one, at in accepted if at is not None),
        key=lambda pair: pair[1],
        reverse=True,
    )
    if not known:
        return
    if how.judge is not None:
        yield from how.judge(known, how, ends)
        return
    won = known[0][1]
    tied = [one for one, at in known if at == won]
    verdict = _verdict(tied, won, how, ends, place, newest)
    yield from ((one, *verdict(one), won) for one in tied)
    for one, at in known[len(tied) :]:
        yield (
            one,
            "superseded",
            f"{shown(how.order, at)} is before {shown(how.order, won)} of the same batch",
            None,
        )


def _verdict(
    tied: Sequence[Found],
    won: Values,
    how: Contents,
    ends: Ends,
    place: BatchPlace,
    newest: tuple[Values, BatchRow] | None,
) -> Callable[[Found], tuple[Fate, str]]:
    """Return what became of records that have the greatest sequence of their batch."""
    at, is_row = shown(how.order, won), ends.row is not None and how.of(ends.row) == won
    if ends.deletes.get(place) == won:
        return _first(
            tied, "deleted", f"deletes the key at {at}", f"the same sequence {at}: the delete wins"
        )
    if is_row and ends.by == place:
        same = [one for one in tied if how.same(one, ends.row or {})]
        chosen = same if same else tied if len(tied) == 1 else []
        if not chosen:
            return lambda _: (
                "unclear",
                f"one of {len(tied)} with {at}: the transform changes what tells them apart",
            )
        return _first(chosen, "applied", "", f"the same sequence {at}, and less by its content")
    if any(won <= out for out in ends.withheld):
        return lambda _: ("superseded", f"{at} is not after the row that the gate withdrew")
    if newest is not None and won <= newest[0]:
        before, batch = newest
        if won < before:
            return lambda _: (
                "superseded",
                f"{at} is before {shown(how.order, before)} of batch {batch.batch}",
            )
        return lambda _: (
            "duplicate",
            f"{at} is that of batch {batch.batch}: the same change again, or less by content",
        )
    return _first(
        tied[:1], "applied", "a later batch replaced or deleted it", f"the same sequence {at}"
    )


def _first(
    chosen: Sequence[Found], fate: Fate, why: str, less: str
) -> Callable[[Found], tuple[Fate, str]]:
    """Return the verdict that the first of `chosen` won, the others are the same change again, and
    all else lost.
    """
    first = min(chosen, key=lambda one: (one.unit.name, one.record.position))
    equal = {id(one) for one in chosen}

    def verdict(one: Found) -> tuple[Fate, str]:
        if one is first:
            return fate, why
        return ("duplicate", "the same change again") if id(one) in equal else ("superseded", less)

    return verdict


def refusal(row: Mapping[str, Any] | None) -> str:
    """Return why a record was refused, in words, with the id by which commands name it."""
    if row is None:
        return ""
    about = ":".join(part for part in (row["reason"], row["field"]) if part)
    detail = f" ({row['detail']})" if row["detail"] else ""
    return f"{about}{detail}; id {row['quarantine_id'][:12]}, {row['state']}"


def shown(names: Names, values: Values) -> str:
    """Return a sequence in words."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def _turn(row: BatchRow) -> tuple[int, int, int]:
    return row.generation, row.table_version, row.batch


def _place(one: Found, fate: Fate, why: str, batch: Batch | None) -> Place:
    raw = one.record.raw.decode("utf-8", "backslashreplace")
    return Place(one.unit.name, one.record.position, raw, fate, why, batch)


def at_origin(one: Found) -> Place:
    """Return the record at a place of which a table without keys has no row."""
    refused = one.refused is not None
    return _place(one, "quarantined" if refused else "waiting", refusal(one.refused), None)
