"""Ranges of positions: joined, taken apart and searched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""Positions [start, until)."""


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, joined where they touch or overlap, empty ones left out."""
    found: list[Range] = []
    for start, until in sorted(one for one in ranges if one[0] < one[1]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(until, found[-1][1])
        else:
            found.append((start, until))
    return found


def minus(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """Return what is left of ranges without others. Those `removed` are joined, and in order."""
    left: list[Range] = []
    for start, until in ranges:
        at = max(0, bisect_right(removed, (start, start)) - 1)
        while at < len(removed) and removed[at][0] < until:
            if removed[at][1] > start:
                left += [(start, removed[at][0])] if start < removed[at][0] else []
                start = removed[at][1]
            at += 1
        left += [(start, until)] if start < until else []
    return left


def common(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return what ranges have in common with others. Those are joined, and in order."""
    return minus(ranges, minus(ranges, others))


def holds(ranges: Sequence[Range], position: int) -> bool:
    """Return whether a position lies within ranges, which are joined and in order."""
    at = bisect_right(ranges, position, key=lambda one: one[0]) - 1
    return at >= 0 and position < ranges[at][1]
