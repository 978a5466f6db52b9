"""Rows of a table as Python has them, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from draindown.lake import row_values

_DAYS = st.none() | st.integers(-800_000, 3_000_000)
_MICROS = st.none() | st.integers(-70_000_000_000_000_000, 260_000_000_000_000_000)
_KINDS = {"day": pa.date32(), "utc": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")}


@given(st.lists(st.tuples(_DAYS, _MICROS, _MICROS)))
def test_rows_of_all_years_make_the_same_table_again(given: list[tuple[Any, ...]]) -> None:
    numbers = list(zip(*given, strict=True)) or [(), (), ()]
    bits = (pa.int32(), pa.int64(), pa.int64())
    columns = [
        pa.array(found, bit).cast(kind)
        for found, bit, kind in zip(numbers, bits, _KINDS.values(), strict=True)
    ]
    table = pa.table(columns, names=list(_KINDS))
    values = [row_values.values(column) for column in table.columns]
    rows = [dict(zip(_KINDS, row, strict=True)) for row in zip(*values, strict=True)]
    assert row_values.table(rows, table.schema) == table


def test_a_column_that_rows_lack_is_null() -> None:
    schema = pa.schema(_KINDS)
    assert row_values.table([{}], schema).to_pylist() == [dict.fromkeys(_KINDS)]
