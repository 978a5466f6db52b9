"""The result that every test of the drain is held against: what a set of changes means, folded in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Value = str | int | None


@dataclass(frozen=True)
class Change:
    """One good row: its key, its place in the order of the key's changes, and its columns in the table's order."""

    key: tuple[Value, ...]
    sequence: int
    delete: bool = False
    content: Mapping[str, Value] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[object, ...]:
        """A delete wins at equal sequence, then the greater content, column by column, NULL smallest."""
        content = () if self.delete else tuple((v is not None, v) for v in self.content.values())
        return self.sequence, self.delete, content


def fold(changes: Iterable[Change]) -> tuple[dict[tuple[Value, ...], Change], dict[tuple[Value, ...], int]]:
    """The live row of every key, and the sequence at which each dead key died."""
    newest: dict[tuple[Value, ...], Change] = {}
    for change in changes:
        held = newest.get(change.key)
        if held is None or change.rank > held.rank:
            newest[change.key] = change
    live = {key: change for key, change in newest.items() if not change.delete}
    return live, {key: change.sequence for key, change in newest.items() if change.delete}
