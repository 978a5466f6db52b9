"""Conditions in Spark SQL for rows that a sink would refuse, by reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draindown.sinks.port import SinkColumn


def quoted(name: str) -> str:
    """Return a column's name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def null_keys(columns: Sequence[SinkColumn]) -> Mapping[str, str]:
    """Return conditions for rows whose key has a NULL: such rows are never the same row to a
    sink.
    """
    return {
        f"key-null: {column.name}": f"{quoted(column.name)} is null"
        for column in columns
        if column.key
    }


def years(column: SinkColumn) -> Mapping[str, str]:
    """Return a condition for dates and times whose year doesn't have four digits."""
    if column.type not in ("date", "timestamp", "timestamp_ntz"):
        return {}
    return {
        f"year-out-of-range: {column.name}": f"year({quoted(column.name)}) not between 1 and 9999"
    }
