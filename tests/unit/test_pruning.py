"""Ranges of keys cover every key of the batch, in as few and as narrow pieces as the MERGE's
condition may have.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from draindown.ledger.rows import BatchRow
from draindown.spark.targets.delta_target import Held
from draindown.spark.targets.neighbourhood import Neighbourhood, settings
from draindown.spark.targets.pruning import Pruning, joined
from draindown.spark.tuning import COMPRESSION, TUNING, Size

SCHEMA = StructType(
    [
        StructField("day", DateType()),
        StructField("open", BooleanType()),
        StructField("id", LongType()),
        StructField("name", StringType()),
    ]
)
DAYS = st.sampled_from([date(2026, 1, day) for day in range(1, 5)])
ROWS = st.tuples(DAYS, st.booleans(), st.integers(-40, 40), st.text("abÄ", min_size=1, max_size=3))
NUMBERS = st.lists(
    st.tuples(st.integers(-10_000, 10_000), st.integers(0, 50)), min_size=1, max_size=60
)


@given(NUMBERS)
def test_ranges_of_numbers_cover_all_and_keep_the_widest_gaps(found: list[tuple[int, int]]) -> None:
    ends = [(low, low + width) for low, width in found]
    told = [
        (int(low), int(high)) for low, high in joined([(str(a), str(b)) for a, b in ends], "long")
    ]

    assert all(any(low <= a and b <= high for low, high in told) for a, b in ends)
    assert told == sorted(told) and all(low <= high for low, high in told)
    assert all(told[i][1] < told[i + 1][0] for i in range(len(told) - 1)), (
        "what touches is one range"
    )
    assert len(told) == min(16, _apart(ends))
    kept = sum(high - low for low, high in told)
    assert kept <= _narrowest(ends) + 1e-9


def _apart(ends: list[tuple[int, int]]) -> int:
    """How many ranges there are once those that share a number are one: counted number by
    number.
    """
    held = sorted({number for low, high in ends for number in range(low, high + 1)})
    starts = {low for low, _ in ends}
    joins = {number for low, high in ends for number in range(low + 1, high + 1)}
    return sum(number in starts and number not in joins for number in held)


def _narrowest(ends: list[tuple[int, int]]) -> int:
    """The least sum of widths of 16 ranges that cover all: what is left after the 15 widest gaps
    are cut out.
    """
    joins = {(number, number + 1) for low, high in ends for number in range(low, high)}
    held = sorted({number for low, high in ends for number in range(low, high + 1)})
    steps = pairwise(held)
    gaps = sorted((b - a for a, b in steps if (a, b) not in joins), reverse=True)
    return held[-1] - held[0] - sum(gaps[:15])


def test_texts_are_ordered_as_spark_orders_them() -> None:
    assert joined([("ä", "ä"), ("a", "b"), ("Z", "b")], "string") == [("Z", "b"), ("ä", "ä")]
    assert joined([("10", "10"), ("9", "9")], "string") == [("10", "10"), ("9", "9")]
    assert joined([("10", "10"), ("9", "9")], "long") == [("9", "9"), ("10", "10")]


def test_too_many_texts_are_one_range() -> None:
    words = [f"k{number:03}" for number in range(40)]

    assert joined([(word, word) for word in words], "string") == [("k000", "k039")]


def test_days_are_ranges_by_the_calendar() -> None:
    days = [date(2026, 1, 1 + 2 * i).isoformat() for i in range(15)] + ["2030-01-01", "2031-01-01"]
    told = joined([(day, day) for day in days], "date")

    assert len(told) == 16 and told[-1] == ("2031-01-01", "2031-01-01")


def test_what_can_not_be_compared_prunes_nothing() -> None:
    assert joined([("+10000-01-01", "+10001-01-01")], "date") == []
    assert joined([("a", "b" * 201)], "string") == []
    assert joined([], "long") == []
    assert joined([("1E+3", "1001.5"), ("2", "3")], "decimal") == [("2", "3"), ("1E+3", "1001.5")]


def _file(rows: list[tuple[date, bool, int, str]]) -> dict[str, object]:
    """What Delta's log says of a file of one partition's rows."""
    day, is_open = rows[0][:2]
    numbers, names = [row[2] for row in rows], sorted((row[3] for row in rows), key=str.encode)
    ends = {
        "min.id": min(numbers),
        "max.id": max(numbers),
        "min.name": names[0],
        "max.name": names[-1],
    }
    return {"num_records": len(rows), "partition.day": day, "partition.open": is_open} | ends


@given(
    st.lists(ROWS, min_size=1, max_size=40),
    st.lists(ROWS, min_size=1, max_size=5),
    st.integers(1, 7),
)
def test_every_file_that_can_hold_a_row_concerned_is_one_and_no_other(
    held: list[tuple[date, bool, int, str]], batch: list[tuple[date, bool, int, str]], size: int
) -> None:
    partitions = {row[:2]: sorted(other for other in held if other[:2] == row[:2]) for row in held}
    files = [
        rows[at : at + size] for rows in partitions.values() for at in range(0, len(rows), size)
    ]
    pruning = Pruning(
        {"day": [str(row[0]) for row in batch], "open": [str(row[1]).lower() for row in batch]},
        {
            "id": joined([(str(row[2]), str(row[2])) for row in batch], "long"),
            "name": joined([(row[3], row[3]) for row in batch], "string"),
        },
    )

    def can_hold(rows: list[tuple[date, bool, int, str]]) -> bool:
        numbers, names = [row[2] for row in rows], [row[3].encode() for row in rows]
        return (
            any(row[0] == rows[0][0] for row in batch)
            and any(row[1] == rows[0][1] for row in batch)
            and any(min(numbers) <= row[2] <= max(numbers) for row in batch)
            and any(min(names) <= row[3].encode() <= max(names) for row in batch)
        )

    told = [_file(rows) for rows in files]
    assert pruning.files(SCHEMA, told) == [
        file for file, rows in zip(told, files, strict=True) if can_hold(rows)
    ]
    assert Pruning().files(SCHEMA, told) == told


@given(
    st.lists(ROWS, min_size=1, max_size=12),
    st.lists(ROWS, min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_a_table_of_which_all_files_are_excluded_holds_no_row_concerned(
    held: list[tuple[date, bool, int, str]], batch: list[tuple[date, bool, int, str]], size: int
) -> None:
    partitions = {row[:2]: sorted(other for other in held if other[:2] == row[:2]) for row in held}
    told = [
        _file(rows[at : at + size])
        for rows in partitions.values()
        for at in range(0, len(rows), size)
    ]
    ranges = {"id": joined([(str(row[2]), str(row[2])) for row in batch], "long")}
    pruning = Pruning({"day": [str(row[0]) for row in batch]}, ranges)
    kept = {(row[0], row[2]) for row in held}
    if pruning.excludes_all(SCHEMA, told):
        assert not kept & {(row[0], row[2]) for row in batch}
    assert pruning.excludes_all(SCHEMA, told) == (not pruning.files(SCHEMA, told))
    assert not pruning.excludes_all(SCHEMA, [*told, {"num_records": 1}]), (
        "a file of which nothing is said"
    )


def test_a_decimal_or_a_date_without_an_order_excludes_no_table() -> None:
    """The text of a decimal may be of another scale than that of the statistic: 1.10 and 1.1."""
    schema = StructType([StructField("d", DecimalType(10, 2)), StructField("day", DateType())])
    far = [
        {"partition.d": Decimal("1.1"), "min.day": date(2026, 1, 1), "max.day": date(2026, 1, 1)}
    ]
    assert not Pruning({"d": ["1.10"]}).excludes_all(schema, far)
    assert not Pruning({}, {"d": [("1.10", "1.10")]}).excludes_all(schema, far)
    assert not Pruning({}, {"day": [("+12026-01-01", "+12026-01-02")]}).excludes_all(schema, far)
    assert Pruning({"d": ["1.10"]}, {"day": [("2026-02-01", "2026-02-02")]}).excludes_all(
        schema, far
    )


@given(st.lists(DAYS, min_size=1), st.lists(DAYS, min_size=1, max_size=2))
def test_partitions_are_chosen_by_ranges_as_by_values(held: list[date], ends: list[date]) -> None:
    told = [{"num_records": 1, "partition.day": day} for day in held]
    by_range = Pruning({}, {"day": [(str(min(ends)), str(max(ends)))]})
    within = [date(2026, 1, day) for day in range(min(ends).day, max(ends).day + 1)]
    assert by_range.files(SCHEMA, told) == Pruning({"day": [str(day) for day in within]}).files(
        SCHEMA, told
    )


def test_what_the_log_does_not_say_leaves_no_file_out() -> None:
    pruning = Pruning({"day": [None]}, {"id": [("5", "9")]})
    some = {"num_records": 3, "partition.day": None}

    untold = [some | {"min.id": None, "max.id": None}, some, {"num_records": None}]
    assert pruning.files(SCHEMA, untold) == untold
    assert pruning.files(SCHEMA, [some | {"min.id": 10, "max.id": 11}]) == []
    assert pruning.files(SCHEMA, [some | {"partition.day": date(2026, 1, 1)}]) == []


@pytest.mark.parametrize(("told", "number"), [([3, 4], 7), ([], 0), ([3, None], 1_000_003)])
def test_a_file_of_unknown_rows_is_a_large_one(told: list[int | None], number: int) -> None:
    files = [{"size_bytes": 10, "num_records": rows} for rows in told]
    held = Held(mock.Mock(), files, [*files, {"size_bytes": 99, "num_records": 99}], Pruning())

    assert held.size == Size(number, 10 * len(files))


def test_a_comparison_estimates_tables_by_their_rows() -> None:
    files = [{"size_bytes": 4_000_000, "num_records": 10_000_000}]
    large, accepted = Held(mock.Mock(), files, files, Pruning()), mock.Mock(tuning=TUNING, lines=10)
    accepted.writer.flow.maintenance.copy_on_write = 0
    for held, memory in ((large, None), (None, large)):
        found = settings(
            accepted, BatchRow("p", "f", 1, 0, "r"), Neighbourhood(held, memory, is_large=True)
        )
        assert found[COMPRESSION] == "160.0"


def test_predicates_that_exclude_no_more_files_are_left_out() -> None:
    found = Pruning(
        values={"day": ["2026-01-01", "2026-01-02"], "name": ["a", "c"]},
        ranges={"id": [("0", "9"), ("30", "39")]},
    )

    def files(*told: tuple[str, int, int, str, str]) -> list[dict[str, object]]:
        return [
            {
                "partition.day": day,
                "min.id": low,
                "max.id": high,
                "min.name": first,
                "max.name": last,
            }
            for day, low, high, first, last in told
        ]

    by_day = files(("2026-01-01", 0, 50, "a", "z"), ("2026-01-03", 0, 50, "a", "z"))
    assert found.narrowed(SCHEMA, by_day) == found.only(["day"])
    by_id = files(("2026-01-01", 0, 9, "a", "z"), ("2026-01-01", 10, 29, "a", "z"))
    assert found.narrowed(SCHEMA, by_id) == found.only(["id"])
    by_name = files(
        ("2026-01-01", 0, 9, "a", "b"),
        ("2026-01-01", 0, 9, "d", "z"),
        ("2026-01-04", 99, 99, "x", "x"),
    )
    assert set(found.narrowed(SCHEMA, by_name).values) == {"name"}
    assert found.narrowed(SCHEMA, files(("2026-01-01", 0, 9, "a", "z"))) == Pruning()
    unknown = Pruning(values={"name": ["a", None]})
    assert unknown.narrowed(SCHEMA, by_day) == unknown, "no statistic tells of NULL"
    beyond = Pruning(values={"day": ["+10000-01-01"], "name": ["a"]})
    plain = [{"min.day": "2026-01-01", "max.day": "2026-01-01", "min.name": "b", "max.name": "c"}]
    assert beyond.narrowed(SCHEMA, plain) == beyond


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=4), max_size=6
    ),
    st.integers(-9, 9),
)
def test_files_whose_rows_all_ended_before_are_left_out_and_no_other(
    held: list[list[int | None]], low: int
) -> None:
    def file(at: int, ends: list[int | None]) -> dict[str, object]:
        known = [end for end in ends if end is not None]
        told = {"min.id": min(known), "max.id": max(known)} if known else {}
        return {"path": str(at), "null_count.id": len(ends) - len(known), **told}

    files = [file(at, ends) for at, ends in enumerate(held)]
    found = Pruning(since={"id": str(low)}).files(SCHEMA, files)
    needed = [any(end is None or end >= low for end in ends) for ends in held]
    assert [one["path"] for one in found] == [
        str(at) for at, is_needed in enumerate(needed) if is_needed
    ]
    bare = [{name: one for name, one in file.items() if name != "null_count.id"} for file in files]
    assert Pruning(since={"id": str(low)}).files(SCHEMA, bare) == bare, (
        "without a count any may be open"
    )
    assert Pruning(since={"id": "1"}).only(["day"]) == Pruning()
    both = Pruning(values={"day": ["2026-01-01"]}, since={"id": "1"})
    assert both.narrowed(SCHEMA, files) == both.without("day") == Pruning(since={"id": "1"})
