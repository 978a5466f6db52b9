"""What a batch says that it read, and where its records came from, if units stand in a slice once
or more often.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import Row

from draindown.ledger.inputs import Input
from draindown.sources.port import Source
from draindown.sources.slices import Slice, Unit
from draindown.spark.batch import counting
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.sources.files import FilesReader
from draindown.spark.sources.input import GivenRecords, SliceInput
from draindown.spark.sources.place import BlockOrigin, micros
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.pruning import Pruning

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _unit(name: str, start: int, until: int, *, hours: int = 0) -> Unit:
    row = {"unpacked": 1, "records": None, "multiline": False}
    return Unit(name, start, until, until - start, 1, None, AT - timedelta(hours=hours), row)


def _input(*units: Unit) -> SliceInput:
    return SliceInput(cast(Source, SimpleNamespace(named=None)), Slice(1, AT, units), FilesReader())


def _inputs(read: SliceInput, *groups: tuple[str, int, bool, int]) -> list[Input]:
    names: tuple[Any, ...] = ("_unit", "_block", "_blank", "n")
    counted = Counted(
        [Row(**dict(zip(names, group, strict=True))) for group in groups], Pruning(), None
    )
    batch = Batch(
        writer=cast(Writer, None),
        run_id="r",
        first_seen=AT,
        changed_at=AT,
        started_at=AT,
        input=read,
    )
    return counting.inputs(batch, counted)


def test_records_of_all_blocks_count_and_blank_lines_do_not() -> None:
    read = _input(_unit("/a", 0, 9), _unit("/b", 0, 2))
    found = _inputs(
        read, ("file:/a", 0, False, 3), ("file:/a", 64, False, 2), ("file:/a", 64, True, 4)
    )
    assert found == [Input("/a", 0, 9, 9, 5), Input("/b", 0, 2, 2, 0)]


def test_ranges_of_one_unit_are_one_input() -> None:
    read = _input(_unit("/a", 0, 4), _unit("/a", 6, 9), _unit("/b", 1, 2))
    found = _inputs(read, ("file:/a", 0, False, 7), ("file:/b", 0, False, 1))
    assert found == [Input("/a", 0, 9, 7, 7), Input("/b", 1, 2, 1, 1)]


def test_blocks_have_the_arrival_of_their_unit_and_of_several_ranges_the_earliest() -> None:
    read = _input(_unit("/a", 0, 4, hours=1), _unit("/a", 6, 9, hours=3), _unit("/b", 0, 1))
    found = read.origins([("file:/a", 0, 4, 10), ("file:/a", 64, 3, 20), ("file:/b", 0, 1, 0)])
    first = micros(AT - timedelta(hours=3))
    assert found == [
        BlockOrigin("file:/a", 0, -9, "/a", first),
        BlockOrigin("file:/a", 64, -15, "/a", first),
        BlockOrigin("file:/b", 0, 1, "/b", micros(AT)),
    ]


def test_given_records_say_themselves_where_they_came_from_and_when() -> None:
    assert GivenRecords().origins([("t/0", 5, 2, 0), ("t/0", 7, 1, 9)]) == [
        BlockOrigin("t/0", 5, 0, "t/0", 0),
        BlockOrigin("t/0", 7, 0, "t/0", 0),
    ]
