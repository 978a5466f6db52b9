"""How much work a run is, by which its driver is set up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

RunSize = Literal["small", "medium", "large"]
"""It takes seconds, up to a few million rows, or more."""
_ORDER: tuple[RunSize, ...] = ("small", "medium", "large")
_SMALL, _LARGE = 128 * 1024**2, 1024**3
"""Most unpacked bytes of a small run, and least of a large one: from there on what Java's second
compiler does pays.
"""


def size_of(batches: int, unpacked: int) -> RunSize:
    """Return the size of a run by its forecast. `unpacked`: bytes."""
    if unpacked >= _LARGE:
        return "large"
    return "small" if batches <= 1 and unpacked <= _SMALL else "medium"


def largest(sizes: Iterable[RunSize]) -> RunSize:
    """Return the largest of these sizes; small without any."""
    return max(sizes, key=_ORDER.index, default="small")
