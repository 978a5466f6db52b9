"""What was remembered and never made is forgotten, unless something says that it was made, or may
have been.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql.types import StructType

from draindown.base.errors import TerminalError
from draindown.flow import orphan_memory
from draindown.lake import delta
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.recovery import reset as reset_plan
from draindown.runs.request import Request
from draindown.spark.targets.mismatch import refuse_mismatch
from tests.flowfiles import AT, checkpoint, commit, drained

REPLAY = "replay:abc"
_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("_generation", pa.int32()),
        ("_batch", pa.int64()),
        ("_kind", pa.string()),
    ],
)


def remember(
    asked: Request,
    batch: int,
    *,
    kind: str = "drain",
    generation: int = 1,
    memory: str = "tombstones",
) -> None:
    """What a batch that died before its MERGE leaves; its key says whose it is."""
    row = {
        "id": f"{generation} {kind} {batch}",
        "_generation": generation,
        "_batch": batch,
        "_kind": kind,
    }
    app = (asked.layout.app_id(generation, memory, kind), batch)
    delta.append(asked.layout.tables.memory(memory), pa.Table.from_pylist([row], _SCHEMA), app=app)


def made(asked: Request, batch: int, kind: str) -> None:
    """A batch of another kind than the source's, in the target."""
    known = CommitProperties(
        app_transactions=[Transaction(asked.layout.app_id(1, "rows", kind), batch)]
    )
    target = asked.layout.tables.target
    nothing = target.query("select * from t limit 0")
    write_deltalake(target.path, nothing, mode="append", commit_properties=known)


def recorded(asked: Request, batch: int) -> None:
    """A batch of a replay in the ledger."""
    row = BatchRow("p", "f", 1, batch, "r", kind="replay", slice=1)
    ledger_table.record(
        asked.layout, [replace(row, changed_at=AT, started_at=AT, finished_at=AT, table_version=9)]
    )


def reset(asked: Request) -> None:
    reset_plan.begin(asked, reset_plan.plan(asked), by="me", accept_missing=False)


def kept(asked: Request, memory: str = "tombstones") -> set[str]:
    orphan_memory.forget(asked.layout, [REPLAY])
    return {
        row["id"]
        for row in asked.layout.tables.memory(memory).query("select id from t").to_pylist()
    }


def test_a_batch_of_the_live_generation_is_repeated_and_writes_its_own_again(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    remember(asked, 1)
    remember(asked, 2)
    assert kept(asked) == {"1 drain 1", "1 drain 2"}


def test_a_batch_that_a_reset_left_behind_is_forgotten(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    remember(asked, 1)
    remember(asked, 2)
    reset(asked)
    assert kept(asked) == {"1 drain 1"}
    assert kept(asked) == {"1 drain 1"}


def test_the_first_batch_of_all_is_forgotten_too(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    shutil.rmtree(asked.layout.tables.target.path)
    shutil.rmtree(asked.layout.tables.ledger.path)
    shutil.rmtree(asked.layout.checkpoint(1))
    checkpoint(asked, 1, offsets=1, commits=0)
    # made, and nothing merged into it
    write_deltalake(asked.layout.tables.target.path, pa.table({"id": ["x"]}).slice(0, 0))
    remember(asked, 0)
    reset(asked)
    assert kept(asked) == set()


@pytest.mark.parametrize("memory", ["tombstones", "hidden"])
@pytest.mark.parametrize("kind", ["release", "withdraw", REPLAY])
def test_a_replay_that_died_is_forgotten_and_one_that_is_done_is_not(
    tmp_path: Path, kind: str, memory: str
) -> None:
    asked = drained(tmp_path)
    for batch in (3, 4):
        remember(asked, batch, kind=kind, memory=memory)
        made(asked, 3, kind)
    assert kept(asked, memory) == {f"1 {kind} 3"}


def _restore_copy(asked: Request) -> None:
    (Path(asked.layout.tables.target.path) / f"_delta_log/{3:020}.json").unlink()


def test_a_replay_that_the_ledger_knows_was_done_although_the_table_forgot_it(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    remember(asked, 3, kind=REPLAY)
    made(asked, 3, REPLAY)
    recorded(asked, 3)
    _restore_copy(asked)
    assert asked.layout.tables.target.last(asked.layout.app_id(1, "rows", REPLAY)) is None
    assert kept(asked) == {f"1 {REPLAY} 3"}


@pytest.mark.parametrize(
    "lose",
    [
        lambda asked: shutil.rmtree(asked.layout.tables.target.path),
        lambda asked: (Path(asked.layout.tables.target.path) / f"_delta_log/{2:020}.json").unlink(),
    ],
    ids=["gone", "older"],
)
def test_a_table_that_may_be_put_back_keeps_its_tombstones(
    tmp_path: Path, lose: Callable[[Request], None]
) -> None:
    asked = drained(tmp_path)
    remember(asked, 4, kind=REPLAY)
    lose(asked)
    assert kept(asked) == {f"1 {REPLAY} 4"}


@pytest.mark.parametrize("told_by", ["ledger", "checkpoint"])
def test_a_table_that_was_made_anew_tells_nothing_of_the_one_before(
    tmp_path: Path, told_by: str
) -> None:
    asked = drained(tmp_path)
    remember(asked, 1)
    remember(asked, 2, kind="release")
    shutil.rmtree(asked.layout.tables.target.path)
    reset(asked)
    shutil.rmtree(
        asked.layout.tables.ledger.path if told_by == "checkpoint" else asked.layout.checkpoint(1)
    )
    commit(asked, 0, generation=2, recorded=False)
    checkpoint(asked, 2, offsets=1, commits=1)
    assert kept(asked) == {"1 drain 1", "1 release 2"}


def test_an_undone_reset_takes_its_tombstones_along(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    remember(asked, 1)
    reset(asked)
    remember(asked, 0, generation=2)
    assert reset_plan.undo(asked, by="me") == 1
    assert kept(asked) == {"1 drain 1"}


def test_deletes_remembered_without_a_column_of_the_sequence_ask_for_a_rebuild(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    held = StructType().add("id", "string").add("n", "integer").add("_changed_at", "timestamp")
    act = partial(
        refuse_mismatch, asked.layout, asked.flow_spec, asked.layout.tables.target, held, held
    )
    act()
    remember(asked, 0)
    with pytest.raises(TerminalError) as caught:
        act()
    assert caught.value.code == "table-mismatch" and "without n" in caught.value.found
    assert any("draindown rebuild p/f" in step for step in caught.value.next)
    shutil.rmtree(asked.layout.tables.tombstones.path)
    row = {"id": "a", "n": 1, "_generation": 1, "_batch": 0, "_kind": "drain"}
    delta.append(asked.layout.tables.tombstones, pa.Table.from_pylist([row]))
    act()
