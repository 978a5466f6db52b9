"""The clock that reports and ledger rows use."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The current time in UTC; the only clock that reports and ledger rows use."""
    return datetime.now(UTC)
