"""The benchmarks' oracle against a fold in plain Python, on right and on spoilt tables."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks import changes, oracle
from benchmarks.place import ROOT

SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()), ("event_date", pa.date32()), ("op", pa.string()), ("seq", pa.int64()),
        ("status", pa.string()), ("customer", pa.string()), ("amount", pa.int32()),
        ("updated_at", pa.timestamp("us", "UTC")), ("note", pa.string()),
    ]
)  # fmt: skip
Rows = dict[tuple[str, int], dict[str, Any]]


def _model(lines: list[str]) -> tuple[Rows, int]:
    """The final rows by key, and how many lines are refused: one line after the other."""
    newest: Rows = {}
    refused = 0
    for line in lines:
        try:
            row = json.loads(line)
            key, order = (row["event_date"], row["order_id"]), _order(row)
        except (ValueError, KeyError, TypeError):
            refused += 1
            continue
        if key not in newest or order > _order(newest[key]):
            newest[key] = row
    return {key: row for key, row in newest.items() if row["op"] != "delete"}, refused


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    if not isinstance(row["seq"], int):
        raise TypeError(row["seq"])
    content = [row.get(name) for name in ("status", "customer", "amount", "updated_at", "note")]
    return (
        row["seq"],
        row["op"] == "delete",
        *((value is not None, value or 0) for value in content),
    )


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    at = row.get("updated_at")
    return {
        **row,
        "event_date": date.fromisoformat(row["event_date"]),
        "updated_at": at and datetime.fromisoformat(at).astimezone(UTC),
    }


def _table(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_deltalake(
        str(path),
        pa.Table.from_pylist([_typed(row) for row in rows], schema=SCHEMA),
        mode="overwrite",
    )
    return path


def _quarantine(path: Path, rows: int) -> Path:
    write_deltalake(str(path), pa.table({"reason": ["malformed"] * rows}), mode="overwrite")
    return path


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feed small enough to look at, with all that goes wrong, and ties that the feed has not."""
    files = tmp_path_factory.mktemp("landing") / "changes"
    changes.feed(files, [3_000, 3_000])
    tied = [
        '{"order_id":5000001,"event_date":"2026-01-01","op":"upsert","seq":7,"amount":2}',
        '{"order_id":5000001,"event_date":"2026-01-01","op":"upsert","seq":7,"amount":10}',
        '{"order_id":5000001,"event_date":"2026-01-01","op":"upsert","seq":7}',
        '{"order_id":5000002,"event_date":"2026-01-01","op":"delete","seq":7}',
        '{"order_id":5000002,"event_date":"2026-01-01","op":"upsert","seq":7,"amount":2}',
        '{"order_id":5000003,"event_date":"2026-01-01","op":"upsert","seq":7}',
        '{"order_id":5000003,"event_date":"2026-01-02","op":"upsert","seq":1}',
    ]
    changes.write(files, 2, iter(tied))
    return files


def _lines(landing: Path) -> list[str]:
    return [
        line
        for file in sorted(landing.iterdir())
        for line in gzip.decompress(file.read_bytes()).decode().split("\n")[:-1]
    ]


def test_the_fold_of_every_line_is_exact(landing: Path, tmp_path: Path) -> None:
    rows, refused = _model(_lines(landing))
    assert refused > 3
    assert rows["2026-01-01", 5000001]["amount"] == 10
    assert ("2026-01-01", 5000002) not in rows
    table = _table(tmp_path / "t", list(rows.values()))
    found = oracle.compare(table, landing, quarantine=_quarantine(tmp_path / "q", refused))
    assert (found.text, found.wrong_rows, found.quarantined) == ("exact", 0, refused)
    assert oracle.compare(table, landing, quarantine=None).exact


def test_each_way_to_be_wrong_is_counted(landing: Path, tmp_path: Path) -> None:
    model, refused = _model(_lines(landing))
    rows = list(model.values())
    ghost = {**rows[0], "order_id": 9_999_999}
    spoilt = [
        ghost,
        rows[0],
        {**rows[0], "note": "x"},
        {**rows[1], "amount": None},
        {**rows[2], "op": "other"},
        *rows[5:],
    ]
    found = oracle.compare(
        _table(tmp_path / "t", spoilt), landing, quarantine=_quarantine(tmp_path / "q", refused - 1)
    )
    assert (
        found.text
        == f"2 missing, 2 extra, 3 different, {refused - 1:,} rows quarantined of {refused:,}"
    )
    assert found.wrong_rows == 7
    assert not found.exact


@pytest.mark.long
def test_a_work_runs_from_the_command_line_to_its_table(tmp_path: Path) -> None:
    asked = [
        "tiny",
        "--only",
        "delta-rs",
        "--sizes",
        "3",
        "--fraction",
        "0.0003",
        "--dry",
        "--scratch",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench", *asked],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (row,) = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("| 3 files | delta-rs, no Spark | ")
    ]
    assert row.endswith("| 0 | 0 |")
    assert "Cost of a row" not in done.stdout
    assert "oracle: exact" in done.stderr
