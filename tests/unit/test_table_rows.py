"""Rows of a table as Python has them: dates and times of every year, which the end of the last
window may leave.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from draindown.lake.table import rows

LAST = {
    "date": (date.max - date(1970, 1, 1)).days,
    "time": (datetime.max - datetime(1970, 1, 1)) // timedelta.resolution,
}
FIRST = {
    "date": (date.min - date(1970, 1, 1)).days,
    "time": (datetime.min - datetime(1970, 1, 1)) // timedelta.resolution,
}


def read(kind: str, zone: str | None, numbers: list[int | None]) -> list[Any]:
    form = pa.date32() if kind == "date" else pa.timestamp("us", zone)
    bits = pa.int32() if kind == "date" else pa.int64()
    return [row["c"] for row in rows(pa.table({"c": pa.array(numbers, bits).cast(form)}))]


@pytest.mark.parametrize(("kind", "zone"), [("date", None), ("time", None), ("time", "UTC")])
def test_both_ends_of_the_years_are_read_and_what_is_beyond_is_text(
    kind: str, zone: str | None
) -> None:
    chance = Random(9)
    first, last = FIRST[kind], LAST[kind]
    within = [first, last, *(chance.randrange(first, last + 1) for _ in range(200)), None]
    found = read(kind, zone, within)
    epoch: Any = (
        date(1970, 1, 1) if kind == "date" else datetime(1970, 1, 1, tzinfo=UTC if zone else None)
    )
    unit = timedelta(days=1) if kind == "date" else timedelta.resolution
    assert found == [None if number is None else epoch + number * unit for number in within]
    beyond = read(kind, zone, [first - 1, last, last + 1, None])
    assert beyond[0].startswith("0000-12-31") and beyond[1] == found[1]
    assert beyond[2].startswith("10000-01-01") and beyond[3] is None
