"""What a batch read is written before what it did, once, and adds up to its row in the ledger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.lake.home import FlowHome
from draindown.ledger import inputs
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow

READ = [Input("/in/a", 0, 10, 100, 9), Input("/in/b", 0, 3, 30, 3), Input("/in/empty", 0, 0, 20, 0)]
ROW = BatchRow("p", "f", 1, 0, "r", inputs=3, bytes=150, records=12)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path), "p", "f", "f")


def _of(layout: FlowHome, row: BatchRow = ROW) -> list[Input]:
    return sorted(inputs.of_batch(layout, row.place), key=lambda one: one.unit)


def test_a_retry_writes_nothing_twice(layout: FlowHome) -> None:
    inputs.record(layout, ROW, READ)
    version = layout.tables.inputs.version
    inputs.record(layout, ROW, READ[::-1])
    assert _of(layout) == READ and layout.tables.inputs.version == version


@pytest.mark.parametrize("left", [READ[:2], READ[2:], []], ids=["fewer", "another", "none"])
def test_a_retry_that_reads_other_units_replaces_them(layout: FlowHome, left: list[Input]) -> None:
    """A person may discard the files of a batch that did not commit."""
    other = replace(ROW, kind="replay")
    for row in (ROW, replace(ROW, batch=1), other):
        inputs.record(layout, row, READ)
    sums = {"bytes": sum(one.bytes for one in left), "records": sum(one.records for one in left)}
    inputs.record(layout, replace(ROW, batch=1, inputs=len(left), **sums), left)
    assert _of(layout, replace(ROW, batch=1)) == left
    assert _of(layout) == READ == _of(layout, other)


def test_a_generation_that_is_begun_again_replaces_what_the_first_wrote(layout: FlowHome) -> None:
    """An abandoned rebuild leaves inputs of batches that never came to the ledger."""
    for batch in (0, 1, 2):
        inputs.record(layout, replace(ROW, batch=batch), READ)
    inputs.record(layout, replace(ROW, inputs=1, bytes=100, records=9), READ[:1])
    assert _of(layout) == READ[:1]
    assert _of(layout, replace(ROW, batch=2)) == READ


def test_replays_may_finish_in_any_order(layout: FlowHome) -> None:
    for batch in (7, 3):
        inputs.record(layout, replace(ROW, kind="replay", batch=batch), READ)
    assert _of(layout, replace(ROW, kind="replay", batch=3)) == READ


def test_a_batch_of_nothing_makes_no_table(layout: FlowHome) -> None:
    inputs.record(layout, BatchRow("p", "f", 1, 0, "r"), [])
    assert not layout.tables.inputs.exists and inputs.by_batch(layout) == {}


@pytest.mark.parametrize(
    "wrong",
    [{"inputs": 2}, {"bytes": 151}, {"records": 11}, {"inputs": 0, "bytes": 0, "records": 0}],
    ids=["inputs", "bytes", "records", "all"],
)
def test_inputs_that_are_not_what_the_row_counts_are_not_written(
    layout: FlowHome, wrong: dict[str, Any]
) -> None:
    with pytest.raises(TerminalError) as caught:
        inputs.record(layout, replace(ROW, **wrong), READ)
    assert caught.value.code == "ledger-does-not-add-up"
    assert not layout.tables.inputs.exists


@pytest.mark.parametrize("records", [-1, 4])
def test_a_unit_holds_no_more_records_than_places(layout: FlowHome, records: int) -> None:
    with pytest.raises(TerminalError) as caught:
        inputs.conserve(
            replace(ROW, records=9 + records), [READ[0], replace(READ[1], records=records), READ[2]]
        )
    assert caught.value.code == "ledger-does-not-add-up" and "/in/b" in str(caught.value.found)


def test_two_pieces_of_one_unit_are_one_unit(layout: FlowHome) -> None:
    pieces = [Input("t/0", 5, 8, 3, 3), Input("t/0", 9, 10, 1, 1)]
    inputs.record(layout, replace(ROW, inputs=1, bytes=4, records=4), pieces)
    assert sorted(_of(layout), key=lambda one: one.start) == pieces


def test_only_inputs_of_the_batches_meant_are_among_them(layout: FlowHome) -> None:
    others = [replace(ROW, batch=7), replace(ROW, kind="replay"), replace(ROW, generation=9)]
    for row in (ROW, *others):
        inputs.record(layout, row, READ)
    assert inputs.by_batch(layout, f"where {inputs.among([ROW.place])}").keys() == {ROW.place}
    assert inputs.by_batch(
        layout, f"where {inputs.among([one.place for one in others])}"
    ).keys() == {one.place for one in others}
    assert inputs.by_batch(layout, f"where {inputs.among([])}") == {}
