"""A line about a batch, for people who watch a drain."""

from __future__ import annotations

from draindown.base import formatting
from draindown.ledger.rows import BatchRow

_TELLING_RATE = (
    100  # records per second; a lower rate measures the batch's fixed cost and is not shown
)


def told(row: BatchRow, unit: str) -> str:
    """Return a line about a batch. `unit`: the noun of the source's units."""
    return _derived(row) if row.form == "derive" else _landed(row, unit)


def _landed(row: BatchRow, unit: str) -> str:
    rate = row.records / row.seconds if row.seconds else 0.0
    pace = f" ({rate:,.0f} records/s)" if rate >= _TELLING_RATE else ""
    fates = ("superseded", "duplicate", "quarantined")
    return (
        f"batch {row.batch}: {formatting.count(row.inputs, unit)}, {formatting.count(row.records, 'record')} → "
        f"{row.applied:,} applied, {', '.join(f'{getattr(row, name):,} {name}' for name in fates)} "
        f"in {formatting.age(row.seconds)}{pace}"
    )


def _derived(row: BatchRow) -> str:
    fates = ", ".join(
        f"{getattr(row, name):,} {name}" for name in ("inserted", "updated", "deleted", "unchanged")
    )
    changes = f"{formatting.count(row.records, 'row change')}, {row.unused:,} unused"
    rows = f"{formatting.count(row.recomputed, 'row')} recomputed"
    return f"batch {row.batch}: {changes} → {rows}: {fates} in {formatting.age(row.seconds)}"
