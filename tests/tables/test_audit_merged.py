"""The audit of merged rows agrees with a plain loop over thousands of keys, and finds each table
that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.audit.merged_rows import MergedRecount
from draindown.audit.record_tables import unfolded
from draindown.config.landing import FlowSpec
from draindown.config.partial import SEQUENCES
from draindown.lake.table import Table
from tests.merging import Row, merge

_START = datetime(2026, 3, 1, tzinfo=UTC)
_TYPES = {
    "k": pa.int32(),
    "t": pa.timestamp("us", tz="UTC"),
    "n": pa.int32(),
    "op": pa.string(),
    "at": pa.string(),
}
_TYPES |= {"x": pa.float64()}
_KINDS = {
    "k": "int not null",
    "t": "timestamp not null",
    "n": "int not null",
    "op": "string",
    "at": "string",
}


def _flow(**target: Any) -> FlowSpec:
    said = {
        "keys": ["k"],
        "sequence_by": ["n"],
        "ignore_null_updates": True,
        "apply_as_deletes": "op = 'd'",
    }
    source = {"files": "landing/*", "format": "json", "timezone": "Europe/Paris"}
    columns = _KINDS | {"x": "double"}
    return FlowSpec.model_validate({"source": source, "columns": columns, "target": said | target})


def _records(draw: Random, keys: int) -> list[Row]:
    return [
        {
            "k": key,
            "t": _START + timedelta(microseconds=draw.randrange(3)),
            "n": draw.randrange(8),
            "op": draw.choice((None, None, "d", "u", "u")) if draw.random() < 0.6 else None,
            "at": draw.choice((None, "", "\uff5e", "\U0001f600")),
            "x": draw.choice((None, None, 0.1, 0.0, 1e300)),
        }
        for key in range(keys)
        for _ in range(draw.randint(1, 8))
    ]


def _is_delete(record: Row) -> bool:
    return bool(record["op"] == "d")


def _texts(records: list[Row]) -> list[pa.Array]:
    def text(value: Any) -> str | None:
        return (
            None
            if value is None
            else value.isoformat()
            if isinstance(value, datetime)
            else str(value)
        )

    return [pa.array([text(record[name]) for record in records], pa.string()) for name in _TYPES]


Tamper = Callable[[list[Row], list[Row]], Any]


def _found(
    tmp_path: Path, flow: FlowSpec, records: list[Row], wrong: Tamper = lambda rows, dead: None
) -> set[str]:
    order, part = flow.target.sequence_by, flow.target.partial
    assert unfolded(flow) is None and part is not None
    partial = part.columns(list(_TYPES))
    whole = [name for name in _TYPES if name not in ("k", *order, *partial)]
    kind = (
        _TYPES[order[0]] if len(order) == 1 else pa.struct([(name, _TYPES[name]) for name in order])
    )
    rows = [
        row
        | {
            SEQUENCES: {
                name: at[0] if len(order) == 1 else dict(zip(order, at, strict=True))
                for name, at in own.items()
            }
        }
        for row, own in merge(records, ["k"], order, whole, partial, _is_delete)
    ]
    dead = [{name: one[name] for name in ("k", *order)} for one in records if _is_delete(one)]
    wrong(rows, dead)
    fields = [*_TYPES.items(), (SEQUENCES, pa.map_(pa.string(), kind))]
    made = [{**row, SEQUENCES: list(row[SEQUENCES].items())} for row in rows]
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(made, schema=pa.schema(fields)))
    buried = pa.schema([(name, _TYPES[name]) for name in ("k", *order)])
    write_deltalake(str(tmp_path / "d"), pa.Table.from_pylist(dead, schema=buried))
    recount = MergedRecount(flow, tmp_path)
    recount.add("raw", _texts(records))
    recount.deletes(Table(str(tmp_path / "d")), "")
    residues = [*recount.rows(Table(str(tmp_path / "t"))), *recount.fold()]
    assert recount.uncast() == recount.early() == 0
    return {residue.kind for residue in residues}


@pytest.mark.parametrize("sequence", [["n"], ["n", "t"]])
@pytest.mark.parametrize("said", [True, ["at"], {"except": ["at"]}])
def test_it_folds_thousands_of_keys_as_a_plain_loop_does(
    tmp_path: Path, sequence: list[str], said: Any
) -> None:
    flow = _flow(sequence_by=sequence, ignore_null_updates=said)
    assert _found(tmp_path, flow, _records(Random(f"{sequence}{said}"), 3_000)) == set()


def _with(rows: list[Row], name: str) -> Row:
    return next(row for row in rows if name in row[SEQUENCES])


WRONG: dict[str, tuple[Tamper, set[str]]] = {
    "a row is gone": (lambda rows, _: rows.pop(7), {"row-lost"}),
    "a row is there twice": (
        lambda rows, _: rows.append(rows[5]),
        {"row-from-nowhere", "double-key"},
    ),
    "a value is of another record": (
        lambda rows, _: rows[3].update(at="no"),
        {"row-lost", "row-from-nowhere"},
    ),
    "a value was lost": (
        lambda rows, _: _with(rows, "x").update(x=None),
        {"row-lost", "row-from-nowhere"},
    ),
    "a sequence is wrong": (
        lambda rows, _: _with(rows, "x")[SEQUENCES].update(x=99),
        {"row-lost", "row-from-nowhere"},
    ),
    "a delete is forgotten": (lambda _, dead: dead.clear(), {"delete-forgotten"}),
    "a delete is made up": (
        lambda _, dead: dead.append({"k": dead[0]["k"], "n": 99}),
        {"delete-from-nowhere"},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_finds_a_table_that_is_not_the_fold(tmp_path: Path, name: str) -> None:
    wrong, kinds = WRONG[name]
    assert kinds <= _found(tmp_path, _flow(), _records(Random(name), 200), wrong)


def test_a_value_of_what_was_no_column_when_it_was_read_is_not_missed(tmp_path: Path) -> None:
    types = {
        "k": pa.int32(),
        "n": pa.int32(),
        "x": pa.string(),
        SEQUENCES: pa.map_(pa.string(), pa.int32()),
    }
    columns = {"k": "int not null", "n": "int not null", "x": "string"}
    flow = FlowSpec.model_validate(
        {
            "source": {"files": "landing/*", "format": "json"},
            "columns": columns,
            "target": {"keys": ["k"], "sequence_by": ["n"], "ignore_null_updates": True},
        }
    )
    rows = [{"k": k, "n": 1, "x": None, SEQUENCES: []} for k in (1, 2, 3)]
    write_deltalake(
        str(tmp_path / "t"), pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
    )
    recount = MergedRecount(flow, tmp_path)
    first, second = (
        [pa.array(one, pa.string()) for one in some]
        for some in ((["1"], ["1"], ["v"]), (["2"], ["1"], ["v"]))
    )
    recount.before(["x"]).add("raw", first)
    recount.add("raw", second)
    recount.before(["x"]).add("raw", [pa.array(one, pa.string()) for one in (["3"], ["1"], [None])])
    found = [*recount.rows(Table(str(tmp_path / "t"))), *recount.fold()]
    assert [(one.kind, one.where) for one in found] == [
        ("row-lost", "k=2"),
        ("row-from-nowhere", "k=2"),
    ]
    assert recount.early() == 1


def test_rows_are_judged_by_a_key_that_a_transform_makes(tmp_path: Path) -> None:
    flow = FlowSpec.model_validate(
        {
            "source": {"files": "landing/*", "format": "json"},
            "columns": {"kk": "int", "n": "int not null", "gone": "string"},
            "transform": "t.f",
            "target": {"keys": ["k"], "sequence_by": ["n"], "ignore_null_updates": True},
        }
    )
    types = {"k": pa.int32(), "n": pa.int32(), SEQUENCES: pa.map_(pa.string(), pa.int32())}
    rows = [{"k": k, "n": 1, SEQUENCES: []} for k in (1, 2, 2)]
    write_deltalake(
        str(tmp_path / "t"), pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
    )
    found = MergedRecount(flow, tmp_path).rows(Table(str(tmp_path / "t")))
    assert [(one.kind, one.where) for one in found] == [("double-key", "k=2")]
