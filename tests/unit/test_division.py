"""Buckets of a fill: every key in one of them, about as many rows in each, and files read as seldom
as they allow.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.sources.tables.division import Division, Extent, by_range, divided, extents, read

_DAY = date(2026, 1, 1)
_VALUES: dict[str, Any] = {
    "bigint": st.integers(-50, 50),
    "string": st.text("aB\u00e9\U0001f600", max_size=3),
    "date": st.integers(0, 60).map(lambda days: _DAY + timedelta(days=days)),
    "timestamp": st.integers(0, 900).map(
        lambda seconds: datetime(2026, 1, 1) + timedelta(seconds=seconds, microseconds=7)
    ),
}


@st.composite
def _files(draw: st.DrawFn) -> tuple[str, list[Extent]]:
    kind = draw(st.sampled_from(sorted(_VALUES)))
    ends = st.lists(_VALUES[kind], min_size=2, max_size=2).map(sorted)
    known = st.tuples(st.integers(0, 9), ends).map(lambda one: Extent(one[0], *one[1]))
    unknown = st.integers(0, 9).map(Extent)
    return kind, draw(st.lists(known, min_size=1, max_size=12)) + draw(
        st.lists(unknown, max_size=2)
    )


def _within(division: Division, at: int, value: Any, read_as: Any) -> bool:
    """Whether a key is in a range, as the words of `Division` say it."""
    low, high = division.ends(at)
    if value is None:
        return low is None
    return (low is None or value >= read_as(low)) and (high is None or value < read_as(high))


_READ = {
    "bigint": int,
    "string": str,
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
}


@given(_files(), st.integers(1, 20))
def test_each_key_is_in_one_range_and_a_file_is_read_where_its_keys_are(
    given_: tuple[str, list[Extent]], rows: int
) -> None:
    kind, files = given_
    found = by_range("k", files, rows)
    assert found is not None and (found.by, found.kind) == ("k", kind)
    values = [None, *(end for one in files for end in (one.low, one.high) if end is not None)]
    at = range(len(found.parts))
    for value in values:
        assert sum(_within(found, one, value, _READ[kind]) for one in at) == 1, value
    starts = [_READ[kind](text) for text in found.starts]
    assert (
        starts == sorted(set(starts))
        and len(found.parts) == len(starts) + 1
        and min(found.parts) >= 1
    )

    reads = 0
    for one in files:
        for place in at:
            low, high = found.ends(place)
            apart = one.low is not None and (
                (high is not None and one.low >= _READ[kind](high))
                or (low is not None and one.high < _READ[kind](low))
            )
            reads += 0 if apart else one.rows * found.parts[place]
    assert read(found, files) == reads


@given(_files(), st.integers(1, 20))
def test_a_division_is_never_dearer_than_half_of_the_hash(
    given_: tuple[str, list[Extent]], rows: int
) -> None:
    _, files = given_
    total = sum(one.rows for one in files)
    found = divided({"k": files, "noise": [Extent(one.rows) for one in files]}, total, rows)
    by_hash = max(1, ceil(total / rows))
    assert (found.by, found.starts, found.parts) == ("", (), (by_hash,)) or (
        found.by == "k" and 2 * read(found, files) <= total * by_hash
    )
    assert found.buckets <= 3 * by_hash + 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_buckets_are_numbered_range_after_range(parts: list[int]) -> None:
    division = Division("k", "bigint", tuple(map(str, range(len(parts) - 1))), tuple(parts))
    assert [division.place(at) for at in range(division.buckets)] == [
        (at, number) for at, some in enumerate(parts) for number in range(some)
    ]
    assert Division.of(str(division)) == division
    with pytest.raises(IndexError):
        division.place(division.buckets)


def test_a_partitioned_table_is_read_once() -> None:
    days = [Extent(100, _DAY + timedelta(days=at), _DAY + timedelta(days=at)) for at in range(900)]
    found = divided({"day": days, "type": [Extent(100, "a", "z")] * 900}, 90_000, 2_000)
    assert (found.by, found.buckets, set(found.parts)) == ("day", 45, {1}) and read(
        found, days
    ) == 90_000
    assert found.starts[0] == "2026-01-21"


def test_a_day_with_too_many_rows_is_divided_by_hash() -> None:
    days = [
        Extent(rows, day, day)
        for rows, day in ((10, _DAY), (70, _DAY + timedelta(1)), (10, _DAY + timedelta(2)))
    ]
    found = by_range("day", days, 20)
    assert (
        found is not None
        and found.starts == ("2026-01-02", "2026-01-03")
        and found.parts == (1, 4, 1)
    )


def test_files_that_have_all_keys_are_bucketed_by_hash() -> None:
    files = [Extent(100, 0, 1000)] * 10
    assert divided({"id": files}, 1000, 100) == Division(parts=(10,))
    assert divided({}, 5, 100) == divided({"id": files}, 100, 100) == Division()


@pytest.mark.parametrize(
    "values", [(True, False), (0.5, 1.5), (1, "a"), ("a" * 300, "b" * 300), (None, None)]
)
def test_values_without_an_order_have_no_ranges(values: tuple[Any, Any]) -> None:
    assert by_range("k", [Extent(10, value, value) for value in values], 10) is None


def test_extents_are_those_of_the_log() -> None:
    zoned = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    files = [
        {
            "num_records": 3,
            "min.at": zoned,
            "max.at": datetime(2026, 1, 1, 1, tzinfo=UTC),
            "partition.day": _DAY,
        },
        {"num_records": None},
    ]
    assert extents(files, "at") == [
        Extent(3, datetime(2026, 1, 1), datetime(2026, 1, 1, 1)),
        Extent(0),
    ]
    assert extents(files, "day") == [Extent(3, _DAY, _DAY), Extent(0)]
    assert json.loads(str(Division())) == {"by": "", "kind": "", "starts": [], "parts": [1]}
