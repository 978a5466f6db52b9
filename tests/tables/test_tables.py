"""Delta tables without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from draindown.lake import delta
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table, stream

TABLE = pa.table({"id": [1, 2], "name": ["a", None]})


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "t")


def test_what_is_not_there_is_not_a_table(path: str) -> None:
    assert not Table(path).exists
    assert Table(path).last("app") is None
    Path(path).mkdir(parents=True)
    assert not Table(path).exists


@pytest.mark.parametrize("name", ["a%20b", "%c3", "a[b", "a]b", "a\\b", "a^b", "a|b", "link"])
def test_a_lake_that_is_refused_could_not_be_read(tmp_path: Path, name: str) -> None:
    """Should one of these succeed with another version of deltalake, `config/project.py` need not
    refuse it any more.
    """
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    (tmp_path / "a%20b").mkdir()
    with pytest.raises(BaseException, match=r"not found|non-unicode|object store url"):
        delta.append(Table(str(tmp_path / name / "t")), TABLE)


def test_append_makes_the_table_and_reads_back(path: str) -> None:
    assert delta.append(Table(path), TABLE)
    assert (Table(path).exists, Table(path).version) == (True, 1)
    found = Table(path).query("select * from t order by id")
    assert found.to_pylist() == TABLE.to_pylist()
    assert found.schema.field("name").type == pa.string()


def test_an_apps_version_is_appended_once(path: str) -> None:
    assert delta.append(Table(path), TABLE, app=("f:1", 3))
    assert not delta.append(Table(path), TABLE, app=("f:1", 3))
    assert not delta.append(Table(path), TABLE, app=("f:1", 2))
    assert delta.append(Table(path), TABLE, app=("f:2", 3))
    assert delta.append(Table(path), TABLE, app=("f:1", 4))
    assert Table(path).last("f:1") == 4
    assert Table(path).query("select count(*) as n from t").to_pylist() == [{"n": 6}]


def test_history_comes_newest_first(path: str) -> None:
    delta.append(Table(path), TABLE)
    assert [commit.version for commit in Table(path).commits(5)] == [1, 0]
    assert len(Table(path).commits(1)) == 1
    assert Table(path).commits(1)[0].operation == "WRITE"


def test_a_table_made_again_has_another_id(path: str, tmp_path: Path) -> None:
    delta.append(Table(path), TABLE)
    delta.append(Table(f"{path}2"), TABLE)
    assert Table(path).id != Table(f"{path}2").id


def test_private_tables_are_for_their_owner_under_any_umask(path: str) -> None:
    before = os.umask(0)
    try:
        delta.create(Table(path), TABLE.schema, private=True)
    finally:
        os.umask(before)
    assert Path(path).stat().st_mode & 0o777 == 0o700
    delta.create(Table(path), TABLE.schema)
    assert Table(path).version == 0


def test_old_versions_stay_in_the_log(path: str) -> None:
    for i in range(1, 105):
        delta.append(Table(path), TABLE, app=("a", i))
    logs = {file.name for file in Path(path, "_delta_log").glob("*.json")}
    assert f"{1:020}.json" in logs
    assert list(Path(path, "_delta_log").glob("*.checkpoint.parquet"))
    assert Table(path).version == 104


def test_bounds_are_kept_for_the_named_columns_only(path: str) -> None:
    delta.create(Table(path), TABLE.schema, statistics=("id",))
    delta.append(Table(path), TABLE)
    log = Path(path, "_delta_log", f"{1:020}.json").read_text()
    assert "numRecords" in log
    assert r"\"name\"" not in log


def test_names_with_quotes_and_spaces_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "a b ü")
    delta.append(Table(path), TABLE)
    assert Table(path).query("select id from t where name = 'a'").to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("name", ["my lake", "josé", "a#b?c"])
def test_files_are_found_whatever_their_lake_is_called(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    write_deltalake(path, pa.table({"p": ["a b%", "ü"], "n": [1, 2]}), partition_by=["p"])
    assert lost_files(Table(path, 0)) == []
    gone = next(Path(path).rglob("*.parquet"))
    gone.unlink()
    assert lost_files(Table(path, 0)) == [str(gone)]


def test_a_widened_table_cannot_be_read_without_spark(path: str) -> None:
    """Why no type is ever widened in place: once this fails, decision 022 may be taken again."""
    delta.append(Table(path), pa.table({"n": [1]}))
    features = {"readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    Path(path, "_delta_log", f"{Table(path).version + 1:020}.json").write_text(
        json.dumps(protocol) + "\n"
    )
    with pytest.raises(DeltaError, match="TypeWidening"):
        stream(DeltaTable(path), "select * from t")


def test_reading_and_deciding_imports_no_heavy_library() -> None:
    heavy = ("pandas", "duckdb", "pyspark", "airflow")
    code = f"import draindown.planning.plan, sys; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_what_a_creation_that_died_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "unmade" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.0a.tmp").write_text("{")
    (tmp_path / "unmade").chmod(0o700)
    for _ in range(2):
        delta.clear_unmade(Table(str(tmp_path / "unmade")))
        assert [*(tmp_path / "unmade").iterdir()] == []
        assert (tmp_path / "unmade").stat().st_mode & 0o777 == 0o700
    delta.clear_unmade(Table(str(tmp_path / "nothing")))
    foreign = tmp_path / "foreign"
    (foreign / "_delta_log").mkdir(parents=True)
    (foreign / "data.parquet").touch()
    delta.clear_unmade(Table(str(foreign)))
    assert (foreign / "data.parquet").exists()
    delta.append(Table(str(tmp_path / "table")), pa.table({"n": [1]}))
    delta.clear_unmade(Table(str(tmp_path / "table")))
    assert Table(str(tmp_path / "table")).version == 1


def test_what_another_wrote_between_the_look_and_the_write_is_not_written_twice(
    path: str, tmp_path: Path
) -> None:
    source, right = str(tmp_path / "source"), delta.write_deltalake
    delta.append(Table(source), pa.table({"id": ["a", "b"]}))
    delta.append(Table(path), pa.table({"id": ["x"]}))
    fresh = "select t.* from t left anti join held on t.id = held.id"
    held = {"append": ["a", "b", "x"], "replace": ["a", "b"], "new": ["a", "b"]}
    acts = {
        "append": lambda: delta.append_query(
            Table(path), Table(source), fresh, app=("quarantine", 5)
        ),
        "replace": lambda: delta.replace(Table(path), Table(source), app=("tombstones", 5)),
        "new": lambda: delta.append_query(
            Table(f"{path}-new"), Table(source), "select * from t", app=("quarantine", 5)
        ),
    }
    for name, act in acts.items():
        stood: list[str] = []

        def slow(*given: Any, act: Any = act, stood: list[str] = stood, **more: Any) -> None:
            if not stood:
                stood.append("still")
                act()
            right(*given, **more)

        with mock.patch.object(delta, "write_deltalake", slow):
            act()
        where = f"{path}-new" if name == "new" else path
        assert (
            sorted(row["id"] for row in Table(where).query("select id from t").to_pylist())
            == held[name]
        )
        assert stood


def test_what_the_log_says_of_each_file(path: str) -> None:
    days = [date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 2)]
    write_deltalake(
        path,
        pa.table({"day": days, "b c": [1, 2, 3], "text": ["x", "y", "z"]}),
        partition_by=["day"],
    )
    log = Table(path)
    found = log.files(["day", "b c", "gone"])
    sizes = {file.parent.name: file.stat().st_size for file in Path(path).glob("day=*/*.parquet")}

    assert log.version == 0 and all(Path(path, file.pop("path")).is_file() for file in found)
    assert [file.pop("null_count.b c") for file in found] == [0, 0]
    assert sorted(found, key=lambda file: str(file["partition.day"])) == [
        {
            "size_bytes": sizes[f"day={days[0]}"],
            "num_records": 1,
            "partition.day": days[0],
            "min.b c": 1,
            "max.b c": 1,
        },
        {
            "size_bytes": sizes[f"day={days[1]}"],
            "num_records": 2,
            "partition.day": days[1],
            "min.b c": 2,
            "max.b c": 3,
        },
    ]


@pytest.mark.parametrize("day", ["0000-01-01", "+10000-01-01"])
def test_days_that_python_does_not_have_are_left_out(path: str, day: str) -> None:
    write_deltalake(path, pa.table({"day": [date(2026, 1, 1)], "n": [1]}))
    (log,) = Path(path, "_delta_log").glob("*.json")
    log.write_text(log.read_text().replace("2026-01-01", day))

    (file,) = Table(path).files(["day", "n"])
    assert {name: value for name, value in file.items() if name not in ("path", "size_bytes")} == {
        "num_records": 1,
        "min.n": 1,
        "max.n": 1,
        "null_count.day": 0,
        "null_count.n": 0,
    }


def _version(path: str, number: int) -> None:
    write_deltalake(path, pa.table({"id": [number]}), mode="append")


def _found(log: Table, limit: int | None = None) -> list[tuple[int, int]]:
    """Number and time of each commit."""
    return [(one.version, one.timestamp) for one in log.commits(limit)]


def test_commits_have_their_own_numbers_whatever_came_after_the_log_was_opened(
    tmp_path: Path,
) -> None:
    """deltalake numbers the newest commits of the log from the version that was opened on."""
    path = str(tmp_path / "t")
    _version(path, 0)
    early = Table(path)
    assert early.version == 0
    for number in (1, 2, 3):
        _version(path, number)
    now = dict(_found(Table(path)))
    assert sorted(now) == [0, 1, 2, 3] and now[0] < now[3]
    assert _found(early) == [(0, now[0])]
    assert _found(Table(path, 2), 2) == [(2, now[2]), (1, now[1])]
    assert _found(Table(path, 2)) == [(2, now[2]), (1, now[1]), (0, now[0])]
    DeltaTable(path).create_checkpoint()
    Path(path, "_delta_log", f"{1:020d}.json").unlink()
    assert _found(Table(path, 3), 9) == [(3, now[3]), (2, now[2]), (0, now[0])]


def test_a_commit_that_comes_while_commits_are_read_shifts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")
    _version(path, 0)
    _version(path, 1)
    log, read = Table(path), DeltaTable.history
    expected, coming = _found(Table(path)), [2, 3]

    def late(table: DeltaTable, limit: int | None = None) -> Any:
        if coming:
            _version(path, coming.pop(0))
        return read(table, limit)

    assert log.version == 1
    monkeypatch.setattr(DeltaTable, "history", late)
    assert _found(log) == expected and not coming


@pytest.mark.parametrize(
    ("kind", "text"), [((20, 0), "17829072001234567890"), ((18, 2), "1234567890123456.78")]
)
def test_statistics_of_decimals_are_rounded(
    tmp_path: Path, kind: tuple[int, int], text: str
) -> None:
    path, value = str(tmp_path / "t"), Decimal(text)
    write_deltalake(path, pa.table({"k": pa.array([value], pa.decimal128(*kind))}))
    (file,) = Table(path).files(["k"])
    assert file["min.k"] == file["max.k"] != value
    where = f"k = cast('{text}' as decimal({kind[0]},{kind[1]}))"
    assert Table(path).rows(f"select k from t where {where}") == []
    assert Table(path).rows("select k from t") == [{"k": value}]
