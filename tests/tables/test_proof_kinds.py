"""`deduplicate`, `top` and `session` in DuckDB: equal to a plain model, and every planted falsehood
is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.config.session import Session
from draindown.lake.table import Table
from draindown.proof import sessions
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove, statement

_START = datetime(2026, 3, 1, tzinfo=UTC)
_SOURCE = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("n", pa.int32()),
        ("z", pa.string()),
    ]
)
_LANDING = {
    "source": {"files": "x/*", "format": "json"},
    "columns": {"k": "string", "at": "timestamp", "n": "int", "z": "string"},
}
_TIMES = dict.fromkeys(("session_start", "session_end"), pa.timestamp("us", tz="UTC"))
_NUMBERS = {"position": pa.int32(), "rank": pa.int32(), "c": pa.int64(), "s": pa.int64()}
_MADE = {**_TIMES, **_NUMBERS, "session_seconds": pa.decimal128(18, 6)}
Row = dict[str, Any]
FIRST = {"deduplicate": {"keys": ["k"], "sequence_by": ["at"]}}
LAST = {"deduplicate": {"keys": ["k"], "sequence_by": ["at"], "keep": "last"}}
TOP = {"top": {"group_by": ["k"], "order_by": ["n desc"], "rows": 2}}
TIES = {"top": TOP["top"] | {"with_ties": True}}


def _rows(draw: Random) -> list[Row]:
    return [
        {
            "k": draw.choice((None, "", "a", "b")),
            "at": draw.choice((None, *(_START + timedelta(minutes=at) for at in range(3)))),
            "n": draw.choice((None, 1, 2, 3)),
            "z": draw.choice(("", "Z", "a", "\u00e9", "\uff5e", "\U0001f600")),
        }
        for _ in range(40)
    ]


def _sorted(rows: list[Row], order: Sequence[tuple[str, bool]]) -> list[Row]:
    """Sort by the last column first, as sorting keeps the order of equal rows. NULL is last in both
    directions.
    """
    for name, down in reversed(order):
        known = sorted(
            (row for row in rows if row[name] is not None), key=lambda row: row[name], reverse=down
        )
        rows = [*known, *(row for row in rows if row[name] is None)]
    return rows


def _query(parts: dict[str, Any], rows: list[Row]) -> list[Row]:
    (kind, part), found = next(iter(parts.items())), list[Row]()
    for k in {row["k"] for row in rows}:
        own = [row for row in rows if row["k"] == k]
        if kind == "deduplicate":
            down = part.get("keep") == "last"
            found.append(_sorted(own, [("at", down), ("n", down), ("z", down)])[0])
            continue
        for position, row in enumerate(_sorted(own, [("n", True), ("at", False), ("z", False)]), 1):
            before = sum(1 for other in own if _is_before(other["n"], row["n"]))
            if not part.get("with_ties") and position <= 2:
                found.append(row | {"position": position})
            if part.get("with_ties") and before < 2:
                found.append(row | {"position": position, "rank": before + 1})
    return found


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and (other is None or one > other)


def _proven(home: Path, parts: dict[str, Any], rows: list[Row], results: list[Row]) -> Certificate:
    flows = {"t": _LANDING, "d": {"source": {"table": "t"}} | parts}
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(home), "flows": flows})
    layout, flow = spec.layout("d"), spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    write_deltalake(str(home / "source"), pa.Table.from_pylist(rows, schema=_SOURCE))
    kinds = {field.name: field.type for field in _SOURCE} | _MADE
    schema = pa.schema([(name, kinds[name]) for name in results[0]])
    write_deltalake(layout.tables.target.path, pa.Table.from_pylist(results, schema=schema))
    return prove(layout, flow, [Table(str(home / "source"))], layout.tables.target)


@pytest.mark.parametrize("parts", [FIRST, LAST, TOP, TIES], ids=["first", "last", "top", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_an_untouched_table_proves(tmp_path: Path, parts: dict[str, Any], seed: int) -> None:
    rows = _rows(Random(seed))
    results = _query(parts, rows)
    found = _proven(tmp_path, parts, rows, results)
    assert found.holds and found.expected == found.found == len(results) >= 4, found.falsehoods
    assert found.engine.startswith("duckdb ")


def _swapped(results: list[Row]) -> Row:
    """Exchange the positions of two rows of a group that differ."""
    pairs = [(one, other) for one in results for other in results if one["k"] == other["k"]]
    one, other = next(
        pair for pair in pairs if (pair[0]["n"], pair[0]["z"]) != (pair[1]["n"], pair[1]["z"])
    )
    one["position"], other["position"] = other["position"], one["position"]
    return one


def _another(results: list[Row]) -> Row:
    results[1]["z"] += "x"
    return results[1]


def _lost(results: list[Row]) -> Row:
    return results.pop(1)


def _doubled(results: list[Row]) -> Row:
    results.append(results[0])
    return results[0]


def _third(results: list[Row]) -> Row:
    results.append(results[0] | {"position": 3})
    return results[-1]


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (_swapped, "wrong"),
        (_another, "wrong"),
        (_lost, "missing"),
        (_doubled, "doubled"),
        (_third, "unexpected"),
    ],
)
def test_a_planted_falsehood_is_found_by_its_key(
    tmp_path: Path, plant: Callable[[list[Row]], Row], what: str
) -> None:
    rows = _rows(Random(7))
    results = _query(TOP, rows)
    row = plant(results)
    found = _proven(tmp_path, TOP, rows, results)
    assert not found.holds
    key = {"k": row["k"], "position": row["position"]}
    assert (what, key) in [(one.what, dict(one.key)) for one in found.falsehoods]


SESSION = {
    "session": {
        "time": "at",
        "gap": 60,
        "group_by": ["k"],
        "measures": {"c": "count(*)", "s": "sum(n)"},
    }
}


def _visits(rows: list[Row]) -> list[Row]:
    found = []
    for k in {row["k"] for row in rows}:
        timed = sorted(
            (row for row in rows if row["k"] == k and row["at"] is not None),
            key=lambda row: row["at"],
        )
        runs: list[list[Row]] = []
        for row in timed:
            if not runs or row["at"] - runs[-1][-1]["at"] > timedelta(seconds=60):
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            start, last = run[0]["at"], run[-1]["at"]
            numbers = [row["n"] for row in run if row["n"] is not None]
            seconds = Decimal(int((last - start).total_seconds()))
            times = {
                "session_start": start,
                "session_end": last + timedelta(seconds=60),
                "session_seconds": seconds,
            }
            found.append({"k": k, **times, "c": len(run), "s": sum(numbers) if numbers else None})
    return found


@pytest.mark.parametrize("seed", range(3))
def test_sessions_prove_and_one_that_was_split_does_not(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    rows = [
        row | {"at": _START + timedelta(seconds=draw.choice((0, 60, 61, 121, 300, 361)))}
        for row in _rows(draw)
    ]
    results = _visits(rows)
    found = _proven(tmp_path / "right", SESSION, rows, results)
    assert found.holds and found.expected == len(results) > 4, found.falsehoods
    long = next(row for row in results if row["session_seconds"] > 0)
    split = [*results, long | {"session_start": long["session_end"], "c": 1}]
    found = _proven(tmp_path / "wrong", SESSION, rows, split)
    (falsehood,) = found.falsehoods
    assert (
        falsehood.what == "unexpected"
        and falsehood.key["session_start"] == long["session_end"].isoformat()
    )


def test_rows_of_one_instant_are_of_one_session_in_whichever_order_they_are_sorted() -> None:
    """DuckDB sorts them twice, and not always alike: by rows, in place of by range, about one seed
    in ten was wrong.
    """
    sql = sessions.query(
        Session.model_validate(SESSION["session"]),
        {"k": "string", "at": "timestamp", "n": "integer"},
    )
    assert sql is not None
    for seed in range(30):
        draw = Random(seed)
        rows = [
            row | {"at": _START + timedelta(seconds=20 * draw.randint(0, 400))}
            for _ in range(draw.randint(1, 12))
            for row in _rows(draw)
        ]
        with closing(duckdb.connect()) as db:
            db.execute("set timezone = 'UTC'")
            db.register("given", pa.Table.from_pylist(rows, schema=_SOURCE))
            db.execute("create table source as select * from given")
            found = db.execute(f"select k, session_start, c, s from ({sql})").fetchall()
        expected = [
            (one["k"], int(one["session_start"].timestamp()) * 1_000_000, one["c"], one["s"])
            for one in _visits(rows)
        ]
        assert sorted(found, key=repr) == sorted(expected, key=repr), seed


def test_a_column_of_the_source_is_not_taken_for_one_of_the_query() -> None:
    part = {"time": "at", "gap": 60, "group_by": ["k"], "measures": {"s": "sum(us)"}}
    with closing(duckdb.connect()) as db:
        db.execute("set timezone = 'UTC'")
        db.execute('create table source (k varchar, "at" timestamptz, us bigint)')
        db.executemany(
            "insert into source values ('a', ?, ?)",
            [(_START, 5), (_START + timedelta(seconds=61), 1)],
        )
        sql = sessions.query(
            Session.model_validate(part), {"k": "string", "at": "timestamp", "us": "long"}
        )
        assert sql is not None
        rows = db.execute(f"select session_start, s from ({sql}) order by session_start").fetchall()
    start = int(_START.timestamp()) * 1_000_000
    assert rows == [(start, 5), (start + 61_000_000, 1)]


def test_an_order_that_may_not_be_sparks_is_left_to_spark(tmp_path: Path) -> None:
    nested = pa.table({"k": ["a"], "at": [_START], "tags": [["x"]]})
    write_deltalake(str(tmp_path / "source"), nested)
    flow = DerivedFlow.model_validate({"source": {"table": "t"}} | FIRST)
    assert statement(flow, [Table(str(tmp_path / "source"))]) is None
