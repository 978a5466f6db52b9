"""Steps of long work, told as they are done: where a lost lease is noticed, and a fault may strike."""

from __future__ import annotations

from collections.abc import Callable

Reached = Callable[[str], None]
"""Told the name of each step as it is done. What it raises keeps the next step from being begun."""


def untold(step: str) -> None:
    """For who wants to know of none."""
    del step
