"""The two accounts of a derived flow's drain, for its run card."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.base.formatting import columns, count
from draindown.runs.report import DrainPart

_INPUT = ("used", "irrelevant", "late")
_OUTPUT = ("inserted", "updated", "deleted", "unchanged", "absent")


def is_derived(drain: DrainPart) -> bool:
    """Return whether the drain's batches are those of a derived flow."""
    return any(batch.get("form") == "derive" for batch in (*drain.batches, *drain.settled))


def moved(sums: Mapping[str, int]) -> str:
    """Return in words what came in, and how many keys changed."""
    images, keys = count(sums.get("records", 0), "image"), count(sums.get("touched", 0), "key")
    return f"{images}, {keys} -> {count(sums.get('applied', 0))} changed"


def account_lines(drain: DrainPart) -> list[str]:
    """Return what came in, as images of rows, and what became of the keys that they touch."""
    sums = drain.totals
    rows = [
        ("images", count(sums.get("records", 0)), _told(sums, _INPUT)),
        ("keys", count(sums.get("touched", 0)), _told(sums, _OUTPUT)),
    ]
    return columns(rows, right=[1])


def sum_line(sums: Mapping[str, int]) -> str:
    """Return whether both accounts add up."""
    for whole, parts, noun in (("records", _INPUT, "images"), ("touched", _OUTPUT, "keys")):
        found = sum(sums.get(name, 0) for name in parts)
        if found != sums.get(whole, 0):
            return f"DOES NOT ADD UP: {', '.join(parts)} make {count(found)} {noun}, not {count(sums.get(whole, 0))}"
    return "adds up ✓"


def _told(sums: Mapping[str, int], names: tuple[str, ...]) -> str:
    return "  ".join(
        f"{name} {count(sums.get(name, 0))}" for name in names if sums.get(name) or name != "late"
    )
