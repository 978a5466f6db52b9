"""Intervals as Delta writes them in the properties of a table."""

from __future__ import annotations

import re

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def interval_seconds(interval: str | None, default: int) -> int:
    """Return the seconds of a Delta interval such as `interval 7 days`.

    Return `default` if `interval` is None, 0 if it can't be parsed.
    """
    if interval is None:
        return default
    parts = re.findall(r"(\d+)\s*(second|minute|hour|day|week)s?\b", interval.lower())
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)
