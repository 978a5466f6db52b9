"""The second account of a history's drain, for its run card: what became of rows."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.base.formatting import count
from draindown.ledger.rows import RUNS
from draindown.runs.report import DrainPart

APPLIED = {"remembered": "hidden"}
"""Of the applied events those that no row holds whole, by their name in the ledger, with the word
for it.
"""
_PARTS = {
    "inserted": ("opened", "split"),
    "updated": ("closed", "reopened", "changed"),
    "deleted": ("joined", "removed"),
}


def is_of(drain: DrainPart) -> bool:
    """Return whether the drain's batches are those of a history that records land in."""
    return any(batch.get("form") == "history" for batch in (*drain.batches, *drain.settled))


def lines(sums: Mapping[str, int]) -> list[str]:
    """Return what was done to rows of the history, as one line."""
    shown = [f"{name} {count(sums.get(name, 0))}" for name in RUNS if sums.get(name)]
    return [f"rows: {'  '.join(shown) or 'none differ'}"]


def wrong(sums: Mapping[str, int]) -> str:
    """Return how the account of rows fails to add up; empty if it adds up."""
    for whole, parts in _PARTS.items():
        found = sum(sums.get(name, 0) for name in parts)
        if found != sums.get(whole, 0):
            return f"DOES NOT ADD UP: {', '.join(parts)} make {count(found)} rows, not {count(sums.get(whole, 0))}"
    return ""
