"""The clock that reports and ledger rows use, and the epoch that timestamps in numbers count
from.
"""

from __future__ import annotations

from datetime import UTC, datetime

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The time that Delta, Spark, Kafka and file systems count from."""


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
