"""How a batch runs follows from how much there is of it and of what its target holds for it."""

from __future__ import annotations

import pytest

from draindown.spark.session import INTERPRETED
from draindown.spark.tuning import (
    ADAPTIVE,
    COMPRESSION,
    COPY_ON_WRITE,
    HASH_BOUND,
    ONE_FILE,
    PARTITIONS,
    TUNING,
    Size,
    Tuning,
)

MANY = 10**9


@pytest.mark.parametrize(
    ("lines", "held", "interpreted"),
    [(9, 19, True), (10, 19, False), (9, 20, False), (0, 0, True), (10, 20, False)],
)
def test_little_is_interpreted_beside_little(lines: int, held: int, interpreted: bool) -> None:
    assert Tuning(little=10, little_held=20).evaluation(lines, held) == (
        INTERPRETED if interpreted else {}
    )


@pytest.mark.parametrize(
    ("held", "records", "small"),
    [
        (Size(12, 0), 3, True),
        (Size(11, MANY), 3, False),  # a table that is sorted in a moment
        (Size(12, 0), 4, False),  # more keys than are sent
        (Size(MANY, 0), 4, False),
        (Size(15, 0), 3, True),
        (None, 0, False),
    ],
)
def test_keys_are_sent_to_a_table_that_is_large_by_itself(
    held: Size | None, records: int, small: bool
) -> None:
    assert Tuning(little_held=12, sent=3).is_small_beside(held, records) == small


@pytest.mark.parametrize(("held", "small"), [(11, False), (12, True)])
def test_keys_are_sent_to_a_table_that_is_many_times_larger_only(held: int, small: bool) -> None:
    assert Tuning(little_held=0, much_more=4).is_small_beside(Size(held, 0), 3) == small


@pytest.mark.parametrize(("weight", "hashed"), [(100, True), (101, False)])
def test_a_batch_is_hashed_that_takes_little_of_the_heap(weight: int, hashed: bool) -> None:
    found = Tuning(hashed_share=10).joining(weight, 1000, "64m")
    assert found == ({HASH_BOUND: "64m"} if hashed else {})


@pytest.mark.parametrize(
    ("weight", "tasks", "partitions", "wanted"),
    [
        (100, 8, 1, None),
        (101, 8, 1, "2"),
        (750, 8, 2, "8"),
        (2_000, 8, 2, "8"),
        (2_000, 8, 11, None),
        (0, 8, 1, None),
    ],
)
def test_what_is_much_is_shuffled_into_more_partitions_up_to_the_tasks_there_are(
    weight: int, tasks: int, partitions: int, wanted: str | None
) -> None:
    """Never into fewer than the session says."""
    found = Tuning(shuffled=100).shuffling(weight, tasks, partitions)
    assert found == ({PARTITIONS: wanted} if wanted else {})


@pytest.mark.parametrize(
    ("held", "batch", "copied", "one"),
    [
        (None, Size(5, 10), True, True),
        (Size(6, 64), Size(2, 10), True, True),
        (Size(6, 65), Size(2, 10), False, False),  # too large to be written anew
        (Size(7, 64), Size(2, 10), False, False),  # too many rows for so few
        (Size(6, 64), Size(10, 10), True, False),  # a batch that is not little is not made one file
        (Size(6, 64), Size(2, 65), True, False),
        (Size(6, 64), Size(2, 0), True, False),  # whose bytes are not known: rows, no files
        (None, Size(10, 65), True, False),
    ],
)
def test_little_files_are_written_anew_and_rows_are_marked_in_others(
    held: Size | None, batch: Size, copied: bool, one: bool
) -> None:
    found = Tuning(copied=3, little=10).writing(held, batch, 64)
    assert found == {**(COPY_ON_WRITE if copied else {}), **(ONE_FILE if one else {})}


def test_nothing_is_written_anew_where_the_pipeline_allows_no_bytes() -> None:
    assert TUNING.writing(Size(1, 1), Size(1, 1), 0) == {}


def test_a_light_comparison_is_planned_once() -> None:
    assert (Tuning(shuffled=10).adapting(9), Tuning(shuffled=10).adapting(10)) == (
        {ADAPTIVE: "false"},
        {},
    )


@pytest.mark.parametrize(
    ("tables", "factor"),
    [
        ((), None),
        ((None, Size(0, 0)), None),
        ((Size(1_000, 1_000_000),), None),  # wide rows: the files say enough
        ((Size(10_000_000, 5_000_000), Size(1_000, 1_000_000)), 128.0),
    ],
)
def test_tables_whose_files_say_little_are_estimated_by_their_rows(
    tables: tuple[Size | None, ...], factor: float | None
) -> None:
    found = TUNING.estimating(*tables)
    assert found == ({} if factor is None else {COMPRESSION: f"{factor:.1f}"})
