"""Lookups in a history at a time, in DuckDB: equal to a plain loop over the events, as its ASOF
join is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.proof.behind import source_rows
from draindown.proof.compare import prove
from tests.asked import Asking, Cell, Run, cells

_TIME = pa.timestamp("us", tz="UTC")
_PLACE = {False: _TIME, True: pa.struct([("at", _TIME), ("seq", pa.int32())])}
_ORIGIN = pa.struct([("input", pa.string()), ("position", pa.int64())])
_LEFT = pa.schema(
    [
        *(
            ("cell", pa.int32()),
            ("k", pa.string()),
            ("at", _TIME),
            ("id", pa.int32()),
            ("n", pa.int32()),
        ),
        ("_origin", _ORIGIN),
    ]
)
_MADE = [("h_found", pa.bool_()), ("v", pa.string()), ("note", pa.int32())]
_ONE = {"source": {"files": "x/*", "format": "json"}}
_EVENTS = {
    "cell": "int not null",
    "k": "string not null",
    "at": "timestamp not null",
    "seq": "int not null",
}
_ASKING = {name: _EVENTS[name] for name in ("cell", "at")} | {
    "k": "string",
    "id": "int not null",
    "n": "int",
}
Row = dict[str, Any]


def _flow(home: Path, *, two: bool, append: bool = False) -> tuple[FlowHome, DerivedFlow]:
    past = {
        "keys": ["cell", "k"],
        "sequence_by": ["at", "seq"] if two else ["at"],
        "stored_as_scd_type": 2,
    }
    columns = _EVENTS | {"v": "string", "u": "int"}
    flows = {
        "l": _ONE
        | {
            "columns": _ASKING,
            "target": {} if append else {"keys": ["cell", "id"], "sequence_by": ["at"]},
        },
        "h": _ONE | {"columns": columns, "target": past | {"track_history": ["v"]}},
        "d": {
            "source": {"table": "l"},
            "lookup": {
                "table": "h",
                "on": ["cell", "k"],
                "columns": {"v": "v", "u": "note"},
                "as_of": "at",
            },
        },
    }
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(home), "flows": flows})
    flow = spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    return spec.layout("d"), flow


def _written(home: Path, some: Sequence[Cell], *, two: bool) -> list[Table]:
    left = [row._asdict() | {"_origin": _origin(row)} for cell in some for row in cell.after[0]]
    write_deltalake(str(home / "l"), pa.Table.from_pylist(left, schema=_LEFT))
    place = _PLACE[two]
    fields = [("cell", pa.int32()), ("k", pa.string()), ("__START_AT", place), ("__END_AT", place)]
    past = pa.schema([*fields, ("v", pa.string()), ("u", pa.int32())])
    runs = [_run(row, two=two) for cell in some for row in cell.after[1]]
    write_deltalake(str(home / "h"), pa.Table.from_pylist(runs, schema=past))
    return [Table(str(home / name)) for name in "lh"]


def _origin(row: Asking) -> Row:
    return {"input": "f", "position": row.cell * 100 + row.id}


def _run(row: Run, *, two: bool) -> Row:
    start, end = (
        {"at": one[0], "seq": one[1]} if two and one else one for one in (row.start, row.end)
    )
    return {
        "cell": row.cell,
        "k": row.k,
        "__START_AT": start,
        "__END_AT": end,
        "v": row.v,
        "u": row.u,
    }


def _results(some: Sequence[Cell]) -> list[Row]:
    return [
        row._asdict()
        | dict(zip(("h_found", "v", "note"), cell.answers[1][row.cell, row.id], strict=True))
        for cell in some
        for row in cell.after[0]
    ]


def _stored(layout: FlowHome, results: list[Row], *more: tuple[str, pa.DataType]) -> Table:
    fields = [*(one for one in _LEFT if one.name != "_origin"), *_MADE, *more]
    write_deltalake(
        layout.tables.target.path, pa.Table.from_pylist(results, schema=pa.schema(fields))
    )
    return layout.tables.target


@pytest.mark.parametrize("two", [False, True], ids=["one", "two"])
def test_an_asof_join_of_the_runs_answers_as_the_events_do(two: bool) -> None:
    """What these tests, and those of Spark, compare with is right."""
    some = list(cells(Random(5), 300, two=two))
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        left = pa.Table.from_pylist([row._asdict() for cell in some for row in cell.after[0]])
        ends = [
            (row, *((e and e[0] if two else e) for e in (row.start, row.end)))
            for c in some
            for row in c.after[1]
        ]
        rows = [
            {"cell": r.cell, "k": r.k, "b": b, "e": e, "v": r.v, "u": r.u}
            for r, b, e in ends
            if b != e
        ]
        db.register("l", left)
        db.register("h", pa.Table.from_pylist(rows))
        found = db.execute(
            'select l.cell, l.id, h.v is not null and (h.e is null or l."at" < h.e) as ok, if(ok, h.v, null), '
            'if(ok, h.u, null) from l asof left join h on l.cell = h.cell and l.k = h.k and l."at" >= h.b'
        ).fetchall()
    answers = {key: answer for cell in some for key, answer in cell.answers[1].items()}
    assert {row[:2]: row[2:] for row in found} == answers and len(answers) > 500


@pytest.mark.parametrize(
    ("two", "append"), [(False, False), (True, True)], ids=["one", "two, append"]
)
def test_an_untouched_table_proves(tmp_path: Path, two: bool, append: bool) -> None:
    some = list(cells(Random(6), 150, two=two))
    layout, flow = _flow(tmp_path, two=two, append=append)
    sources, results = _written(tmp_path, some, two=two), _results(some)
    named = (
        [row | {"left_origin": f"f:{row['cell'] * 100 + row['id']}"} for row in results]
        if append
        else results
    )
    found = prove(
        layout, flow, sources, _stored(layout, named, *([("left_origin", pa.string())] * append))
    )
    assert found.holds and found.found == len(results) > 300, found.falsehoods
    assert min(sum(row["h_found"] is found for row in results) for found in (True, False)) > 50


def _stale(results: list[Row]) -> Row:
    """As if a late event had not been followed."""
    row = next(row for row in results if row["v"] == "y")
    row["v"] = "x"
    return row


def _missed(results: list[Row]) -> Row:
    row = next(row for row in results if row["h_found"])
    row.update({"h_found": False, "v": None, "note": None})
    return row


def _too_far(results: list[Row]) -> Row:
    """As if a run that has ended were valid."""
    row = next(row for row in results if not row["h_found"] and row["at"] and row["k"])
    row.update({"h_found": True, "v": "x", "note": 1})
    return row


@pytest.mark.parametrize("plant", [_stale, _missed, _too_far])
def test_a_falsehood_is_found_by_its_key(tmp_path: Path, plant: Callable[[list[Row]], Row]) -> None:
    some = list(cells(Random(7), 40, two=False))
    layout, flow = _flow(tmp_path, two=False)
    sources, results = _written(tmp_path, some, two=False), _results(some)
    row = plant(results)
    found = prove(layout, flow, sources, _stored(layout, results))
    assert [(one.what, dict(one.key)) for one in found.falsehoods] == [
        ("wrong", {"cell": row["cell"], "id": row["id"]})
    ]


@pytest.mark.parametrize("two", [False, True], ids=["one", "two"])
def test_the_run_behind_a_row_is_the_one_that_was_valid(tmp_path: Path, two: bool) -> None:
    some = list(cells(Random(8), 80, two=two))
    layout, flow = _flow(tmp_path, two=two)
    sources, results = _written(tmp_path, some, two=two), _results(some)
    table = pa.table(_stored(layout, results).query("select * from t"))
    results = table.to_pylist()
    (lefts, _), (runs, _) = (
        (_by_row(some_rows), number)
        for some_rows, number in source_rows(layout, flow, sources, table, 0, 5)
    )
    for at, row in enumerate(results):
        assert [one["id"] for one in lefts[at]] == [row["id"]]
        assert [(one["v"], one["u"]) for one in runs.get(at, [])] == (
            [(row["v"], row["note"])] * row["h_found"]
        )
    assert any(runs.values())


def _by_row(some: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in some:
        found.setdefault(row["_row"], []).append(row)
    return found
