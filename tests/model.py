"""The result that every test of the drain is held against: what a set of changes means, folded in
plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = str | int | float | None


@dataclass(frozen=True)
class Change:
    """One good row: its key, its place in the order of the key's changes, and its columns in the
    table's order.

    `withheld`: it stands for a row that a person keeps out, whatever its content is.
    """

    key: tuple[Value, ...]
    sequence: int
    delete: bool = False
    content: Mapping[str, Value] = field(default_factory=dict)
    withheld: bool = False
    arrived: int = 0
    """When it arrived; no part of its rank."""

    @property
    def rank(self) -> tuple[object, ...]:
        """A delete wins at equal sequence, then a withheld row, then the greater content by column,
        NULL smallest.
        """
        content = () if self.delete else tuple((v is not None, v) for v in self.content.values())
        return self.sequence, self.delete, self.withheld, content

    @property
    def is_live(self) -> bool:
        """Whether the table holds it, once it is the newest of its key."""
        return not self.delete and not self.withheld


def newest(changes: Iterable[Change]) -> Change | None:
    """The one that stands of the changes of a key."""
    return max(changes, key=lambda change: change.rank, default=None)


def fate(change: Change, before: Iterable[Change]) -> str:
    """What becomes of the newest row of a key in a batch, given every change of that key before the
    batch.
    """
    held = newest(before)
    if held is None or change.rank > held.rank:
        live = held is not None and held.is_live
        return (
            ("delete" if live else "remember")
            if change.delete
            else ("update" if live else "insert")
        )
    return "duplicate" if change.rank == held.rank else "superseded"


def arrivals(batches: Iterable[Iterable[Change]]) -> dict[tuple[Value, ...], int]:
    """When the live row of every key arrived: as a batch applied it, the earliest of its copies in
    that batch.

    A copy that a later batch brings is a duplicate and changes nothing.
    """
    stands: dict[tuple[Value, ...], Change] = {}
    for batch in batches:
        best: dict[tuple[Value, ...], Change] = {}
        for change in batch:
            held = best.get(change.key)
            if held is None or (change.rank, -change.arrived) > (held.rank, -held.arrived):
                best[change.key] = change
        for key, change in best.items():
            if key not in stands or change.rank > stands[key].rank:
                stands[key] = change
    return {key: change.arrived for key, change in stands.items() if change.is_live}


def fold(
    changes: Iterable[Change],
) -> tuple[dict[tuple[Value, ...], Change], dict[tuple[Value, ...], int]]:
    """The live row of every key, and the sequence at which each dead key died."""
    stands: dict[tuple[Value, ...], Change] = {}
    for change in changes:
        held = stands.get(change.key)
        stands[change.key] = change if held is None or change.rank > held.rank else held
    live = {key: change for key, change in stands.items() if change.is_live}
    return live, {key: change.sequence for key, change in stands.items() if change.delete}
