"""What is read off ledger rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draindown.base.errors import TerminalError
from draindown.ledger.rows import BatchRow, conserve, newest_sequence


@pytest.mark.parametrize(
    ("texts", "newest"),
    [
        ([], None),
        (["9", "10", "-11"], "10"),
        (["9.5", "1E+1"], "1E+1"),
        (
            ["2024-07-01 00:00:00", "2024-07-01 00:00:00.5", "2023-12-31 23:59:59"],
            "2024-07-01 00:00:00.5",
        ),
        (["b", "9", "a"], "b"),
    ],
)
def test_the_newest_sequence_is_that_by_value(texts: list[str], newest: str | None) -> None:
    assert newest_sequence(texts) == newest


_DERIVED = BatchRow(
    *("p", "f", 1, 0, "r"),
    form="derive",
    records=9,
    used=7,
    unused=2,
    recomputed=10,
    inserted=1,
    updated=2,
    deleted=3,
    unchanged=3,
    empty=1,
)


def test_both_accounts_of_a_derived_flow_add_up() -> None:
    assert conserve(_DERIVED) == _DERIVED == BatchRow.from_dict(_DERIVED.as_dict())


@pytest.mark.parametrize(
    "name", ["records", "used", "unused", "recomputed", "inserted", "deleted", "unchanged"]
)
def test_a_derived_batch_that_does_not_add_up_is_refused(name: str) -> None:
    with pytest.raises(TerminalError) as error:
        conserve(replace(_DERIVED, **{name: getattr(_DERIVED, name) + 1}))
    assert error.value.code == "ledger-does-not-add-up" and error.value.in_order
    assert error.value.changed == "nothing of this batch is in the table"
    assert [step.split()[1] for step in error.value.next] == ["audit", "reset"]


def test_of_a_derived_batch_that_was_committed_otherwise_more_is_kept() -> None:
    with pytest.raises(TerminalError) as error:
        conserve(replace(_DERIVED, inserted=7, table_version=3))
    assert "may be in the table" in error.value.changed
    assert [step.split()[1] for step in error.value.next] == ["audit", "report", "reset"]


def test_a_row_from_before_derived_flows_is_a_landing_row() -> None:
    before = BatchRow("p", "f", 1, 0, "r", records=1, inserted=1).as_dict()
    old = {
        name: None if name in ("form", "used", "recomputed") else value
        for name, value in before.items()
    }
    assert conserve(BatchRow.from_dict(old)).form == "land"
