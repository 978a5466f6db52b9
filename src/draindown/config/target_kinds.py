"""Kinds of target tables, and what holds for each of them. How rows are written is in
`spark/targets/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["append", "upsert", "partial", "history"]
"""The kinds that records are written to, each by a strategy. A derived table is written by
`spark/derived/`.
"""


@dataclass(frozen=True)
class TargetKind:
    """Properties of a kind that other packages depend on. They ask for the property they need,
    never for the name.

    `idempotent`: applying input again leaves the table as it is. `inseparable`: why a person can't
    withdraw a row, restore it and keep it out, in words; empty if one can. `memory`: the table
    beside it with changes that none of its rows shows; empty if it needs none.
    """

    name: str
    idempotent: bool
    inseparable: str = ""
    memory: Literal["", "tombstones", "hidden"] = ""

    @property
    def addressable(self) -> bool:
        """Whether a person can withdraw a row, restore it and keep it out."""
        return not self.inseparable

    @property
    def keyed(self) -> bool:
        """Whether records with the same keys are about the same row."""
        return bool(self.memory)


APPEND = TargetKind(
    "append",
    idempotent=False,
    inseparable="it appends: its rows have no key that would keep them out",
)
"""Every accepted row becomes a row of the table."""
UPSERT = TargetKind("upsert", idempotent=True, memory="tombstones")
"""The table holds the newest row per key."""
PARTIAL = TargetKind(
    "partial",
    idempotent=True,
    inseparable="its rows are merged column by column (ignore_null_updates), and what a record gave to one that was "
    "published before is not kept apart",
    memory="tombstones",
)
"""The table holds, per key, the newest value of each column."""
HISTORY = TargetKind("history", idempotent=True, memory="hidden")
"""The table holds the history of each key, one row per run of equal values."""
DERIVED = TargetKind(
    "derived", idempotent=True, inseparable="its rows follow from those of its sources"
)
"""The table equals a query over other tables. Its rows are computed, so what is wrong is put right
in the source.
"""
