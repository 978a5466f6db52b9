"""Values of Arrow columns as Python has them, without pandas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa

from draindown.base.clock import EPOCH


class Beyond(str):
    """Text of a date or a time beyond the years 1 to 9999. `number`: days or microseconds since the
    epoch.
    """

    __slots__ = ("number",)
    number: int


def values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column. A date or a time beyond the years 1 to 9999 is a `Beyond`."""
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


def table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows, with values as those of `values`, as a table. A column that a row lacks is NULL
    in it.
    """
    return pa.table(
        [_array([row.get(field.name) for row in rows], field.type) for field in schema],
        schema=schema,
    )


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not any(isinstance(value, Beyond) for value in values):
        return pa.array(values, kind)
    bits = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return pa.array(list(map(_number, values)), bits).cast(kind)


def _number(value: date | Beyond | None) -> int | None:
    if value is None or isinstance(value, Beyond):
        return None if value is None else value.number
    if isinstance(value, datetime):
        return (value - (EPOCH if value.tzinfo else EPOCH.replace(tzinfo=None))) // timedelta(
            microseconds=1
        )
    return (value - EPOCH.date()).days


def _or_text(
    number: int | None, epoch: date, unit: timedelta, column: pa.ChunkedArray
) -> date | Beyond | None:
    """Return a date or a time; as text where its year is not one of Python's, as the end of the
    last window's is.
    """
    if number is None:
        return None
    try:
        return epoch + number * unit
    except OverflowError:
        bits = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        found = Beyond(pa.array([number], bits).cast(column.type).cast(pa.string())[0])
        found.number = number
        return found
