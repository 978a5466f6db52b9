"""A data file that is gone makes the plan red, and is called vacuumed only if a VACUUM may have
removed it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.base.errors import TerminalError
from draindown.doctor.examination import examine
from draindown.flow import integrity
from draindown.flow.state import FlowState
from draindown.gate import published as pointer
from draindown.lake.lost_files import absent_files, lost_files
from draindown.lake.table import Table
from draindown.planning.plan import plan
from draindown.recovery import reset
from draindown.runs.request import Request
from tests.flowfiles import AT, drained, table_of


def publish(asked: Request, version: int) -> None:
    table_id = asked.layout.tables.target.id
    known = {"version": version, "table_id": table_id, "rows": 1, "changed_at": AT}
    pointer.publish(asked.layout, pointer.Published(**known, at=AT, run_id="r"))


def symptoms(asked: Request) -> dict[str, tuple[str, str]]:
    return {
        one.code: (one.found, one.next) for one in examine(asked).symptoms if one.level == "wrong"
    }


@pytest.mark.parametrize("name", ["table", "ledger", "inputs", "intake"])
def test_a_plan_without_new_input_names_a_file_that_was_removed(tmp_path: Path, name: str) -> None:
    asked = drained(tmp_path)
    path = table_of(asked.layout, name)
    assert plan(asked, AT)[0].drain is False
    gone = sorted(Path(path).glob("*.parquet"))[0]
    gone.unlink()
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    assert caught.value.code == "table-damaged"
    assert caught.value.next[0].startswith("draindown ") and path in caught.value.found


@pytest.mark.parametrize("keyed", [True, False])
def test_the_reset_that_is_named_reads_the_rows_again(tmp_path: Path, keyed: bool) -> None:
    asked = drained(tmp_path, keyed=keyed)
    next(Path(asked.layout.tables.target.path).glob("*.parquet")).unlink()
    with pytest.raises(TerminalError) as caught:
        plan(asked, AT)
    assert "1 data file of version 2 removed, such as " in caught.value.found
    assert caught.value.next[0].startswith("draindown reset p/f ")
    reset.begin(asked, reset.plan(asked), by="me", accept_missing=False)
    assert plan(asked, AT)[0].backlog.units == 2


def test_a_file_that_is_still_needed_was_removed_not_vacuumed(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    publish(asked, 2)
    DeltaTable(asked.layout.tables.target.path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    next(Path(asked.layout.tables.target.path).glob("*.parquet")).unlink()
    found = symptoms(asked)
    assert "removed" in found["table-files-gone"][0]
    text, then = found["published-files-gone"]
    assert "VACUUM" not in text and "removed" in text and then.startswith("draindown reset ")


def test_a_vacuum_that_removed_a_published_file_is_named_with_what_publishes_the_newest(
    tmp_path: Path,
) -> None:
    asked = drained(tmp_path)
    publish(asked, 2)
    DeltaTable(asked.layout.tables.target.path).optimize.compact()
    DeltaTable(asked.layout.tables.target.path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    text, then = symptoms(asked)["published-files-gone"]
    assert "VACUUM of version 4 removed it" in text and then.startswith("draindown compact p/f ")
    pointer.carry(asked.layout)
    assert "published-files-gone" not in symptoms(asked)
    assert plan(asked, AT)[0].drain is False


def test_a_file_of_an_old_version_that_a_person_removed_was_not_vacuumed(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    publish(asked, 2)
    old = list(Path(asked.layout.tables.target.path).glob("*.parquet"))
    DeltaTable(asked.layout.tables.target.path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    DeltaTable(asked.layout.tables.target.path).optimize.compact()
    old[0].unlink()
    text, _ = symptoms(asked)["published-files-gone"]
    assert "VACUUM" not in text and old[0].name in text


def test_a_file_whose_directory_is_gone_is_absent(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    log = asked.layout.tables.target
    assert absent_files(log) == []
    log.files()
    for file in Path(asked.layout.tables.target.path).glob("*.parquet"):
        file.unlink()
    assert len(absent_files(log)) == 2


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_file_that_the_log_names_by_a_uri_is_not_looked_for_in_the_table(
    tmp_path: Path, scheme: str
) -> None:
    """As of a shallow clone: Hadoop writes one slash, deltalake reads both."""
    asked = drained(tmp_path)
    path, other = Path(asked.layout.tables.target.path), tmp_path / "original"
    other.mkdir()
    for file in path.glob("*.parquet"):
        file.rename(other / file.name)
    for commit in (path / "_delta_log").glob("*.json"):
        commit.write_text(re.sub(r'("path": ?")', rf"\1{scheme}{other}/", commit.read_text()))
    log = Table(str(path))
    assert log.row_count == 2
    assert absent_files(log) == [] and lost_files(log) == []


def test_a_table_that_a_reset_moves_while_a_plan_looks_is_no_lost_file(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    state = FlowState.of(asked.layout)
    state.refuse_damage()
    Path(asked.layout.tables.target.path).rename(tmp_path / "aside")
    integrity.refuse_lost_files(state)


def test_files_of_partitions_with_any_name_are_found_where_they_are(tmp_path: Path) -> None:
    names = ["a b", "50%", "ü", "a/b", "=", "x'y", None]
    rows = pa.table({"n": range(len(names)), "part": pa.array(names, pa.string())})
    write_deltalake(tmp_path / "t", rows, partition_by=["part"])
    log = Table(str(tmp_path / "t"))
    assert absent_files(log) == [] and lost_files(log) == []
    files = sorted((tmp_path / "t").glob("*/*.parquet"))
    assert len(files) == len(names)
    files[0].unlink()
    shutil.rmtree(files[-1].parent)
    assert absent_files(log) == sorted(map(str, (files[0], files[-1])))
    assert [commit.version for commit in log.commits()] == [0]


def test_commits_are_numbered_where_some_of_them_are_gone(tmp_path: Path) -> None:
    for number in range(6):
        write_deltalake(tmp_path / "t", pa.table({"n": [number]}), mode="append")
    table = DeltaTable(tmp_path / "t")
    table.create_checkpoint()
    Path(tmp_path, "t/_delta_log/00000000000000000002.json").unlink()
    log = Table(str(tmp_path / "t"))
    assert [commit.version for commit in log.commits(2)] == [5, 4]
    assert [commit.version for commit in Table(log.path).commits(4)] == [5, 4, 3]
    assert list(log.log.newest(3)) == [3, 4, 5] and log.damage is None
