"""The oracle of the derived kinds' benchmark against loops in plain Python, on right and on spoilt
tables.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks import kinds

_START, _HALF_HOUR = datetime(2026, 1, 10, tzinfo=UTC), timedelta(minutes=30)
_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us", "UTC")),
        ("user", pa.string()),
        ("amount", pa.int32()),
        ("id", pa.int64()),
    ]
)
Rows = list[dict[str, Any]]


def _rows(draw: Random) -> Rows:
    minutes = [draw.choice((0, 30, 31, 60, 61, 200, 9000 + number)) for number in range(40)]
    return [
        {
            "event_time": _START + timedelta(minutes=at),
            "user": draw.choice("ab"),
            "amount": number,
            "id": number,
        }
        for number, at in enumerate(minutes)
    ]


def _derived(kind: str, visits: Rows, orders: Rows) -> Rows:
    if kind == "pairs":
        return [
            {
                "visit_id": v["id"],
                "order_id": o["id"],
                "amount": v["amount"],
                "order_amount": o["amount"],
            }
            for v in visits
            for o in orders
            if v["user"] == o["user"]
            and timedelta(0) <= o["event_time"] - v["event_time"] <= _HALF_HOUR
        ]
    found: Rows = []
    for user in "ab":
        own = sorted(
            (row for row in visits if row["user"] == user), key=lambda row: row["event_time"]
        )
        runs: list[Rows] = []
        for row in own:
            if not runs or row["event_time"] - runs[-1][-1]["event_time"] > _HALF_HOUR:
                runs.append([])
            runs[-1].append(row)
        if kind == "newest":
            found.append({"user": user, "event_time": own[-1]["event_time"]})
            continue
        found += [
            {"user": user, "session_start": run[0]["event_time"], "visits": len(run)}
            | {"amount": sum(row["amount"] for row in run)}
            for run in runs
        ]
    return found


@pytest.mark.parametrize("kind", ["sessions", "pairs", "newest"])
def test_a_right_table_is_exact_and_what_is_lost_is_counted(tmp_path: Path, kind: str) -> None:
    draw = Random(1)
    sources = {"visits": _rows(draw), "orders": _rows(draw)}
    for name, rows in sources.items():
        table = pa.Table.from_pylist(rows, schema=_SCHEMA).rename_columns(
            ["event_time", "user", "amount", f"{name[:-1]}_id"]
        )
        write_deltalake(str(tmp_path / name), table)
    right = _derived(kind, **sources)
    assert len(right) >= 2
    write_deltalake(str(tmp_path / "right"), pa.Table.from_pylist(right))
    found = kinds.judge(kind, tmp_path / "right", tmp_path)
    assert (found.verdict.text, found.lost, found.waiting) == ("exact", 0, 0)
    first, last = (
        pick(right, key=lambda row: row.get("session_start", _START)) for pick in (min, max)
    )
    for spoilt, rest in (("old", first), ("new", last)):
        some = [row for row in right if row is not rest]
        write_deltalake(str(tmp_path / spoilt), pa.Table.from_pylist(some))
        found = kinds.judge(kind, tmp_path / spoilt, tmp_path)
        lacks = {"sessions": rest.get("visits"), "pairs": 1, "newest": 0}[kind]
        is_recent = kind == "sessions" and spoilt == "new"
        assert (found.verdict.wrong_rows, found.lost, found.waiting) == (
            1,
            0 if is_recent else lacks,
            lacks if is_recent else 0,
        )
