"""Values of Arrow columns as Python has them, without pandas."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from draindown.base.clock import EPOCH


def values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. A date or a time beyond the years 1 to 9999 is text."""
    if pa.types.is_date32(column.type):
        first, unit, epoch = pa.int32(), timedelta(days=1), EPOCH.date()
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
        first, unit, epoch = (
            pa.int64(),
            timedelta(microseconds=1),
            EPOCH if column.type.tz else EPOCH.replace(tzinfo=None),
        )
    else:
        return list(column.to_pylist())
    numbers = column.cast(first).to_pylist()
    try:
        return [None if number is None else epoch + number * unit for number in numbers]
    except OverflowError:
        return [_or_text(number, epoch, unit, column) for number in numbers]


def _or_text(number: int | None, epoch: date, unit: timedelta, column: pa.ChunkedArray) -> date | str | None:
    """Return a date or a time; as text where its year is not one of Python's, as the end of the last window's is."""
    try:
        return None if number is None else epoch + number * unit
    except OverflowError:
        bits = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        return str(pa.array([number], bits).cast(column.type).cast(pa.string())[0])
