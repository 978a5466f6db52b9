"""The two accounts of a derived flow's drain, for its run card."""

from __future__ import annotations

from collections.abc import Mapping

from draindown.base.formatting import count
from draindown.runs.card_lines import labelled, law
from draindown.runs.report import DrainPart

_INPUT = ("used", "unused", "late")
_OUTPUT = ("inserted", "updated", "deleted", "unchanged", "empty")


def is_derived(drain: DrainPart) -> bool:
    """Return whether the drain's batches are those of a derived flow."""
    return any(batch.get("form") == "derive" for batch in (*drain.batches, *drain.settled))


def moved(sums: Mapping[str, int]) -> str:
    """Return in words what came in, and how many rows changed."""
    changes = count(sums.get("records", 0), "row change")
    return f"{changes} -> {count(sums.get('applied', 0), 'row')} changed"


def account_lines(sums: Mapping[str, int]) -> list[str]:
    """Return what came in, as changes of rows, and what became of the rows that they touch."""
    return [
        *_account("changes", sums, "records", "read", _INPUT),
        *_account("rows", sums, "recomputed", "recomputed", _OUTPUT),
    ]


def _account(
    label: str, sums: Mapping[str, int], whole: str, done: str, parts: tuple[str, ...]
) -> list[str]:
    found, said = sum(sums.get(name, 0) for name in parts), sums.get(whole, 0)
    lines = labelled(label, [law(sums, whole, done, parts, adds_up=found == said)])
    if found != said:
        wrong = f"DOES NOT ADD UP: {', '.join(parts)} make {count(found)}, not {count(said)}"
        lines += labelled("", [wrong])
    return lines
