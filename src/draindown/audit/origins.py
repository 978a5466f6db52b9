"""Ids of quarantined records, computed apart from the code that wrote them."""

from __future__ import annotations

from hashlib import sha256


def id_of(unit: str, log: str, position: int) -> str:
    """Return the id that a quarantined record has in the quarantine. `log`: empty where a unit's name
    is its own.
    """
    return sha256("\u0001".join([unit, str(position), *filter(None, [log])]).encode()).hexdigest()
