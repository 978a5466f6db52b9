"""The second account of a history's drain, for its run card: what became of rows."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.base.formatting import count
from draindown.runs.report import DrainPart

_PARTS = {
    "inserted": ("opened", "split"),
    "updated": ("closed", "reopened", "changed"),
    "deleted": ("joined", "removed"),
}


def is_of(drain: DrainPart) -> bool:
    """Return whether the drain's batches are those of a history that records land in."""
    return any(batch.get("form") == "history" for batch in (*drain.batches, *drain.settled))


def wrong(sums: Mapping[str, int]) -> str:
    """Return how the account of rows fails to add up; empty if it adds up.

    The card shows its sums alone: which steps they are of is in the ledger and in `--json`.
    """
    for whole, parts in _PARTS.items():
        found = sum(sums.get(name, 0) for name in parts)
        if found != sums.get(whole, 0):
            said = count(sums.get(whole, 0))
            return f"{', '.join(parts)} make {count(found)} rows {whole}, not {said}"
    return ""
