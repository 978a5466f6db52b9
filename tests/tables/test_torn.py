"""A file of a table that is torn, garbled or gone is named, whoever reads the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from draindown.cli.program import main
from draindown.lake import torn
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lake.torn import TableDamaged
from draindown.runs import report, store
from tests.flowfiles import AT, drained

Tear = Callable[[Path], object]
TEARS: dict[str, Tear] = {
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbled": lambda file: file.write_bytes(bytes(255 - byte for byte in file.read_bytes())),
    "gone": lambda file: file.unlink(),
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for number in range(4):
        write_deltalake(tmp_path / "a b", pa.table({"n": [number] * 9}), mode="append")
    return tmp_path / "a b"


def test_nothing_is_found_in_a_whole_table(table: Path) -> None:
    old = list(table.glob("*.parquet"))
    assert torn.torn_file(str(table)) is None
    assert torn.torn_file(str(table / "nothing here")) is None
    DeltaTable(table).optimize.compact()
    for file in old:  # no part of the table any more
        file.unlink()
    assert torn.torn_file(str(table)) is None


@pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS)
@pytest.mark.parametrize("number", range(4))
def test_the_data_file_at_fault_is_named(table: Path, tear: Tear, number: int) -> None:
    file = sorted(table.glob("*.parquet"))[number]
    tear(file)
    assert f"data file {file.name} is " in str(torn.torn_file(str(table)))
    with pytest.raises(TableDamaged) as caught:
        Table(str(table)).rows("select n from t")
    assert file.name in caught.value.found and str(table) in caught.value.found
    assert caught.value.next[0].startswith("draindown doctor")
    spark = RuntimeError(
        f"FAILED_READ_FILE: Encountered error while reading file file://{table}/{file.name}."
    )
    found = torn.of_error(RuntimeError(str(spark).replace(" b/", "%20b/")))
    assert found is not None and found.found == caught.value.found


@pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS)
# without the newest the table is an older one, and as whole
@pytest.mark.parametrize("number", [1, 2])
def test_the_commit_at_fault_is_named(table: Path, tear: Tear, number: int) -> None:
    commit = table / f"_delta_log/{number:020}.json"
    tear(commit)
    assert f"commit {commit.name} is " in str(torn.torn_file(str(table)))
    assert commit.name in str(Table(str(table)).damage)


def test_an_error_of_the_query_is_not_blamed_on_the_table(table: Path) -> None:
    with pytest.raises(DeltaError):
        Table(str(table)).rows("select nothing from t")
    assert (
        torn.of_error(RuntimeError(f"while reading file file://{next(table.glob('*.parquet'))}"))
        is None
    )


def test_storage_that_fails_is_not_blamed_on_the_table(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", fails)
    assert torn.torn_file(str(table)) is None


@pytest.mark.full
@pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS)
@pytest.mark.parametrize("what", ["commit", "data"])
def test_report_and_audit_name_the_ledger_the_file_and_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tear: Tear, what: str
) -> None:
    asked = drained(tmp_path)
    store.write(asked.layout, report.of(asked, AT, "done"))
    pipeline = tmp_path / "dags/pipelines/p.yaml"
    pipeline.parent.mkdir(parents=True)
    pipeline.write_text(asked.spec.model_dump_json(exclude_defaults=True))
    file = _a_file(asked.layout, what)
    tear(file)
    code, said = _typed(tmp_path, capsys, "report", "p")
    # an empty commit reads as one that did nothing
    reads = what == "data" or tear is not TEARS["empty"]
    assert code == 0 and "p/f" in said  # the card is shown still
    assert not reads or all(
        word in said
        for word in (asked.layout.tables.ledger.path, file.name, "draindown", "doctor p")
    )
    code, said = _typed(tmp_path, capsys, "audit", "p")
    assert code == 78 and said.startswith("table-damaged")
    assert asked.layout.tables.ledger.path in said and file.name in said
    assert "doctor" in said or "reset p/f" in said


def _a_file(layout: FlowHome, what: str) -> Path:
    pattern = "_delta_log/*.json" if what == "commit" else "*.parquet"
    return sorted(Path(layout.tables.ledger.path).glob(pattern))[-2 if what == "commit" else 0]


def _typed(project: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["--root", str(project), *words])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())
