"""The ledger as a table: what stops a flow whose batches don't add up, and what puts it right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.ledger.rows import BatchRow, Swap
from draindown.runs.request import Request
from draindown.spark.targets.batch import BaseBatch, apply
from draindown.spark.targets.commit import close
from draindown.spark.targets.definition import last_definition
from draindown.spark.targets.delta_target import TableWriter
from tests.flowfiles import AT, commit, drained


@pytest.fixture
def false(tmp_path: Path) -> Request:
    """A flow whose third batch counts two records and wrote one. It is in the table, and in no
    ledger.
    """
    asked = drained(tmp_path)
    commit(asked, 2, records=2, recorded=False)
    return asked


def _code(work: Callable[[], object]) -> str:
    with pytest.raises(TerminalError) as caught:
        work()
    return caught.value.code


def test_a_batch_that_does_not_add_up_stops_the_flow_until_another_table_takes_its_place(
    false: Request,
) -> None:
    layout = false.layout
    assert _code(lambda: ledger_table.heal(layout)) == "ledger-does-not-add-up"
    assert _code(lambda: ledger_table.heal(layout, 1)) == "ledger-does-not-add-up"
    assert [
        row.batch for _, row in target_log.lacking(layout, ledger_table.recent(layout, 9), 9, 1)
    ] == [2]
    swap = CommitProperties(
        custom_metadata={"userMetadata": Swap("p", "f", 2, 0, 2, "again").as_metadata()}
    )
    held = DeltaTable(layout.tables.target.path).to_pyarrow_table()
    write_deltalake(
        layout.tables.target.path, held.slice(0, 2), mode="overwrite", commit_properties=swap
    )
    assert ledger_table.heal(layout, 2) == [] and not list(target_log.lacking(layout, [], 1, 2))


def test_a_reset_goes_on_over_a_batch_that_does_not_add_up(false: Request) -> None:
    """It compares the whole table with the input, and so puts right what that batch wrote."""
    assert ledger_table.heal(false.layout, 2) == []
    commit(false, 0, generation=2, recorded=False)
    assert [row.place for row in ledger_table.heal(false.layout, 2)] == [(2, "drain", 0)]


def test_a_batch_that_is_handed_over_again_after_such_a_reset_is_found_in_the_table(
    false: Request,
) -> None:
    commit(false, 0, generation=2, recorded=False)
    writer = TableWriter(false.layout, false.declared, 2, 0)
    assert writer.is_done()
    batch = BaseBatch(writer=writer, run_id="r", changed_at=AT, started_at=AT)
    read = Mock(side_effect=AssertionError("it is in the table"))
    assert apply(Mock(), batch, read).place == (2, "drain", 0)


def test_what_does_not_add_up_is_not_published(false: Request) -> None:
    layout = false.layout
    last = DeltaTable(layout.tables.target.path).version()
    assert _code(lambda: target_log.verify(layout, -1, last, 1)) == "ledger-does-not-add-up"
    assert _code(lambda: target_log.verify(layout, last - 1, last, 1)) == "ledger-does-not-add-up"
    target_log.verify(layout, -1, last - 1, 1)
    target_log.verify(layout, last, last, 1)
    target_log.verify(layout, -1, last, 2)  # a reset will compare it
    for rows, code in ((2, ""), (3, "ledger-does-not-add-up")):
        swap = CommitProperties(
            custom_metadata={"userMetadata": Swap("p", "f", 2, 1, rows, "again").as_metadata()}
        )
        held = DeltaTable(layout.tables.target.path).to_pyarrow_table()
        write_deltalake(
            layout.tables.target.path, held.slice(0, 2), mode="overwrite", commit_properties=swap
        )
        version = DeltaTable(layout.tables.target.path).version()
        if code:
            assert _code(lambda: target_log.verify(layout, -1, version, 2)) == code  # noqa: B023
        else:
            target_log.verify(layout, -1, version, 2)


def test_a_batch_is_closed_by_its_own_commit_whatever_was_committed_after_it(
    tmp_path: Path,
) -> None:
    asked, steps = drained(tmp_path), list[str]()
    commit(asked, 2, recorded=False)
    table = DeltaTable(asked.layout.tables.target.path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert table.version() > target_log.last_commit(asked.layout.tables.target.path).version - 1
    (row,) = (
        row for _, row in target_log.lacking(asked.layout, ledger_table.recent(asked.layout, 9), 9)
    )
    writer = TableWriter(asked.layout, asked.flow_spec, 1, 2)
    assert close(writer, row, steps.append).batch == 2 and steps == ["merged", "recorded"]
    assert (
        _code(lambda: close(writer, replace(row, batch=3), steps.append))
        == "ledger-does-not-add-up"
    )


def test_a_table_that_was_put_aside_tells_the_next_batch_nothing_of_how_its_rows_were_made(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    row = BatchRow(
        "p", "f", 1, 2, "r", records=1, form="partial", applied=1, history='{"keys": ["id"]}'
    )
    ledger_table.record(asked.layout, [replace(row, table_version=9)])
    writer: Any = SimpleNamespace(layout=asked.layout)
    assert (
        last_definition(writer, "partial") == {"keys": ["id"]}
        and last_definition(writer, "history") is None
    )
    Path(asked.layout.tables.target.path).rename(tmp_path / "aside")
    write_deltalake(asked.layout.tables.target.path, pa.table({"id": ["x"]}))
    assert last_definition(writer, "partial") is None


@pytest.mark.parametrize("kind", ["drain", "release", "withdraw"])
def test_the_first_batch_of_a_generation_tells_how_rows_are_made_whatever_it_is_of(
    tmp_path: Path, kind: Any
) -> None:
    """After a reset quarantined rows may be replayed, or rows be withdrawn, before anything of the
    source is read.
    """
    asked = drained(tmp_path)
    row = BatchRow(
        "p",
        "f",
        2,
        0,
        "r",
        kind=kind,
        records=1,
        form="history",
        applied=1,
        history='{"tracked": ["a"]}',
    )
    ledger_table.record(asked.layout, [replace(row, table_version=9)])
    writer: Any = SimpleNamespace(layout=asked.layout)
    assert last_definition(writer, "history") is None, "no batch of it is in the table"
    held = DeltaTable(asked.layout.tables.target.path).to_pyarrow_table()
    delta.append(
        asked.layout.tables.target,
        held.slice(0, 0),
        app=(asked.layout.app_id(2, "rows", kind), 0),
    )
    assert last_definition(writer, "history") == {"tracked": ["a"]}
