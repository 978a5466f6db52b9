"""Kinds of target tables, and what holds for each of them. How rows are written is in `spark/targets/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["append", "upsert", "history"]
"""The kinds that records are written to, each by a strategy. A derived table is written by `spark/derived/`."""


@dataclass(frozen=True)
class TargetKind:
    """Properties of a kind that other packages depend on. They ask for the property they need, never for the name.

    `idempotent`: applying input again leaves the table as it is. `addressable`: keys name a row, so that a person can
    withdraw it, restore it and keep it out. `memory`: the table beside it with changes that none of its rows shows;
    empty if it needs none.
    """

    name: str
    idempotent: bool
    addressable: bool
    memory: Literal["", "tombstones", "hidden"] = ""


APPEND = TargetKind("append", idempotent=False, addressable=False)
"""Every accepted row becomes a row of the table."""
UPSERT = TargetKind("upsert", idempotent=True, addressable=True, memory="tombstones")
"""The table holds the newest row per key."""
HISTORY = TargetKind("history", idempotent=True, addressable=True, memory="hidden")
"""The table holds the history of each key, one row per run of equal values."""
DERIVED = TargetKind("derived", idempotent=True, addressable=False)
"""The table equals a query over other tables. Its rows are computed, so what is wrong is put right in the source."""
