"""Kinds of target tables, and what holds for each of them. How rows are written is in `spark/targets/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Name = Literal["append", "upsert"]
"""The kinds that records are written to, each by a strategy. A derived table is written by `spark/derived/`."""


@dataclass(frozen=True)
class TargetKind:
    """Properties of a kind that other packages depend on. They ask for the property they need, never for the name.

    `idempotent`: applying input again leaves the table as it is. `addressable`: keys name a row, so that a person can
    withdraw it, restore it and keep it out. `remembers_deletes`: the table has tombstones beside it.
    """

    name: str
    idempotent: bool
    addressable: bool
    remembers_deletes: bool


APPEND = TargetKind("append", idempotent=False, addressable=False, remembers_deletes=False)
"""Every accepted row becomes a row of the table."""
UPSERT = TargetKind("upsert", idempotent=True, addressable=True, remembers_deletes=True)
"""The table holds the newest row per key."""
DERIVED = TargetKind("derived", idempotent=True, addressable=False, remembers_deletes=False)
"""The table equals a query over other tables. Its rows are computed, so what is wrong is put right in the source."""
