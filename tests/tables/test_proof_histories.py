"""A history in DuckDB: one that is right proves, planted falsehoods are found by key, what is
uncertain is Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove, statement
from tests.folding import Row, fold

_EVENTS = pa.schema(
    [
        ("k", pa.string()),
        ("at", pa.int64()),
        ("n", pa.int32()),
        ("op", pa.string()),
        ("v", pa.string()),
    ]
)
_TARGET = {"keys": ["k"], "sequence_by": ["at"], "stored_as_scd_type": 2, "track_history": ["v"]}
_SEVERAL = _TARGET | {"sequence_by": ["at", "n"], "apply_as_deletes": "op in ('d', 'x')"}


def _flow(
    home: Path, target: dict[str, Any], kind: str = "string"
) -> tuple[PipelineSpec, DerivedFlow]:
    columns = {"k": "string", "at": "bigint", "n": "int", "op": "string", "v": kind}
    flows = {"t": {"source": {"files": "x/*", "format": "json"}, "columns": columns}}
    flows["d"] = {"source": {"table": "t"}, "target": target}
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(home), "flows": flows})
    declared = spec.declared("d")
    assert isinstance(declared, DerivedFlow)
    return spec, declared


def _drawn(seed: int) -> list[Row]:
    draw = Random(seed)
    return [
        {
            "k": draw.choice((None, "", "a", "b", "c")),
            "at": draw.choice((None, *range(8))),
            "n": draw.choice((1, 2)),
            "op": draw.choice("duuu"),
            "v": draw.choice((None, "", "x", "y")),
        }
        for _ in range(60)
    ]


def _history(events: list[Row], target: dict[str, Any]) -> list[Row]:
    """The rows of the table, as a plain loop makes them."""
    order = target["sequence_by"]
    deletes = (
        (lambda event: event["op"] == "d")
        if "apply_as_deletes" in target
        else (lambda event: False)
    )

    def made(sequence: tuple[Any, ...] | None) -> Any:
        return sequence and (
            sequence[0] if len(order) == 1 else dict(zip(order, sequence, strict=True))
        )

    rows = fold(events, ["k"], order, target["track_history"], deletes)
    return [
        {"k": row["k"], "__START_AT": made(row["start"]), "__END_AT": made(row["end"])}
        | {name: row[name] for name in ("at", "n", "op", "v")}
        for row in rows
    ]


def _proven(home: Path, target: dict[str, Any], events: list[Row], rows: list[Row]) -> Certificate:
    spec, flow = _flow(home, target)
    sequence = (
        pa.int64()
        if len(target["sequence_by"]) == 1
        else pa.struct([("at", pa.int64()), ("n", pa.int32())])
    )
    kinds = {field.name: field.type for field in _EVENTS} | dict.fromkeys(
        ("__START_AT", "__END_AT"), sequence
    )
    write_deltalake(str(home / "source"), pa.Table.from_pylist(events, schema=_EVENTS))
    held = pa.Table.from_pylist(rows, schema=pa.schema([(name, kinds[name]) for name in rows[0]]))
    write_deltalake(spec.layout("d").tables.target.path, held)
    return prove(
        spec.layout("d"), flow, [Table(str(home / "source"))], spec.layout("d").tables.target
    )


@pytest.mark.parametrize("target", [_TARGET, _SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("seed", range(3))
def test_a_history_proves(tmp_path: Path, target: dict[str, Any], seed: int) -> None:
    events = _drawn(seed)
    rows = _history(events, target)
    found = _proven(tmp_path, target, events, rows)
    assert (
        found.holds and found.kind == "history" and found.expected == found.found == len(rows) > 15
    )
    assert found.engine.startswith("duckdb "), found.falsehoods


def _closed(rows: list[Row]) -> Row:
    row = next(one for one in rows if one["__END_AT"] is None)
    row["__END_AT"] = 9
    return row


def _opened(rows: list[Row]) -> Row:
    row = next(one for one in rows if one["__END_AT"] is not None)
    row["__END_AT"] = None
    return row


def _older_content(rows: list[Row]) -> Row:
    rows[2]["op"] = "older"
    return rows[2]


def _lost(rows: list[Row]) -> Row:
    return rows.pop(1)


def _doubled(rows: list[Row]) -> Row:
    rows.append(dict(rows[0]))
    return rows[0]


def _split(rows: list[Row]) -> Row:
    """A row that no event began."""
    rows.append(rows[0] | {"__START_AT": 77})
    return rows[-1]


@pytest.mark.parametrize(
    ("plant", "what", "columns"),
    [
        (_closed, "wrong", {"__END_AT"}),
        (_opened, "wrong", {"__END_AT"}),
        (_older_content, "wrong", {"op"}),
        (_lost, "missing", set()),
        (_doubled, "doubled", set()),
        (_split, "unexpected", set()),
    ],
)
def test_a_planted_falsehood_is_found_by_its_key(
    tmp_path: Path, plant: Callable[[list[Row]], Row], what: str, columns: set[str]
) -> None:
    events = _drawn(7)
    rows = _history(events, _TARGET)
    row = plant(rows)
    found = _proven(tmp_path, _TARGET, events, rows)
    (falsehood,) = found.falsehoods
    assert falsehood.what == what and falsehood.columns.keys() == columns
    assert falsehood.key == {"k": row["k"], "__START_AT": row["__START_AT"]}


@pytest.mark.parametrize(
    ("condition", "is_certain"),
    [
        ("op = 'd'", True),
        ("OP in ('d', 'x')", True),
        ("`op` = 'd'", True),
        ("op = 'd' or op = 'x'", False),
        ("op = 'it''s'", False),
        ("op = 'a\\\\b'", False),
        ("n = 1", False),
        ("op", False),
        ("upper(op) = 'D'", False),
    ],
)
def test_a_condition_of_uncertain_meaning_is_left_to_spark(
    tmp_path: Path, condition: str, is_certain: bool
) -> None:
    _, flow = _flow(tmp_path, _TARGET | {"apply_as_deletes": condition})
    write_deltalake(str(tmp_path / "source"), pa.Table.from_pylist([], schema=_EVENTS))
    assert (statement(flow, [Table(str(tmp_path / "source"))]) is not None) is is_certain


def test_a_value_that_may_compare_otherwise_is_left_to_spark(tmp_path: Path) -> None:
    _, flow = _flow(tmp_path, _TARGET, "array<string>")
    write_deltalake(str(tmp_path / "source"), pa.table({"k": ["a"], "at": [1], "v": [["x"]]}))
    assert statement(flow, [Table(str(tmp_path / "source"))]) is None
