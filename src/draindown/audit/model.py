"""The result of an audit: what was checked, what could not be checked, and every number that does
not agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from draindown.base.formatting import age, columns, count, printable
from draindown.gate.acceptance import Acceptance

_MOST_PER_KIND = 20


class Collector(Protocol):
    """Takes columns of raw records while they are read."""

    @property
    def names(self) -> Sequence[str]:
        """The columns that it needs, by their names in the contract."""

    def add(self, name: str, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add rows of `raw`, as columns in the order of `names`."""

    def before(self, columns: Sequence[str]) -> Collector:
        """Return what takes records that were read before these columns were there."""


@dataclass(frozen=True)
class Residue:
    """One difference between what was expected and what was found. `kind` is stable: tests and
    tools match on it.
    """

    kind: str
    where: str
    expected: str
    found: str
    detail: str = ""


@dataclass(frozen=True)
class Audit:
    """The audit of one flow.

    `seen`: how many of each thing were checked; `unlooked`: what could not be checked, and why;
    `seconds`: wall time; `accepted`: foreign commits that a person accepted, whose rows are no
    residues.
    """

    pipeline: str
    flow: str
    residues: list[Residue] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    seen: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    accepted: Sequence[Acceptance] = ()

    @property
    def clean(self) -> bool:
        """Whether no residue was found in what was checked."""
        return not self.residues

    def asdict(self) -> dict[str, Any]:
        """Return the audit as a JSON-ready dictionary."""
        known = asdict(replace(self, accepted=()))
        return {
            "clean": self.clean,
            **known,
            "accepted": [one.model_dump(mode="json") for one in self.accepted],
        }

    def __str__(self) -> str:
        verdict = "clean" if self.clean else count(len(self.residues), "residue")
        looked = ", ".join(f"{name} {count(number)}" for name, number in self.seen.items())
        lines = [
            f"{self.pipeline}/{self.flow}  {verdict}  in {age(self.seconds)}",
            f"  looked at  {looked}",
        ]
        lines += [f"  accepted   {printable(str(one))}" for one in self.accepted]
        lines += [f"  not looked at  {printable(reason)}" for reason in self.unlooked]
        if self.residues:
            head = ("KIND", "WHERE", "EXPECTED", "FOUND", "")
            shown = [
                [printable(v, 70) for v in asdict(r).values()] for r in _few_per_kind(self.residues)
            ]
            lines += [f"  {line}" for line in columns([head, *shown])]
            if len(shown) < len(self.residues):
                lines.append(f"  and {len(self.residues) - len(shown)} more: --json shows all")
        return "\n".join(lines)


def _few_per_kind(residues: list[Residue]) -> list[Residue]:
    taken: dict[str, int] = {}
    shown = []
    for residue in residues:
        taken[residue.kind] = taken.get(residue.kind, 0) + 1
        if taken[residue.kind] <= _MOST_PER_KIND:
            shown.append(residue)
    return shown
