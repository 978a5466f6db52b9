"""What a proof must not take for another row or value: NULL, doubles that cancel out, names, years,
repeated rows.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.base.duck import connected
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.behind import source_rows
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove
from draindown.proof.digest import digest

START = datetime(2026, 3, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
LANDING = {
    "source": {"files": "x/*", "format": "json"},
    "columns": {"k": "string", "at": "timestamp", "x": "double"},
}
NEWEST = {"deduplicate": {"keys": ["k"], "sequence_by": ["at"]}}
HOURLY = {"time": "at", "size": "1 hour", "group_by": ["k"]}
Row = dict[str, Any]


class Two:
    """A source, the table that claims to be its query, and the flow between them."""

    def __init__(self, home: Path, part: Row, source: pa.Table, table: pa.Table) -> None:
        flows = {"t": LANDING, "d": {"source": {"table": "t"}} | part}
        spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(home), "flows": flows})
        declared = spec.declared("d")
        assert isinstance(declared, DerivedFlow)
        self.layout, self.flow = spec.layout("d"), declared
        write_deltalake(str(home / "source"), source)
        write_deltalake(self.layout.tables.target.path, table)
        self.source = Table(str(home / "source"))

    def prove(self) -> Certificate:
        return prove(self.layout, self.flow, [self.source], self.layout.tables.target)


def _table(rows: list[Row], **kinds: pa.DataType) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(list(kinds.items())))


_EVENTS = {"k": pa.string(), "at": _TIME, "x": pa.float64()}
_EVENT = [{"k": None, "at": START, "x": 1.0}, {"k": "a", "at": START, "x": 2.0}]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (_EVENT[1:], "missing"),
        ([_EVENT[0] | {"x": 9.0}, _EVENT[1]], "wrong"),
        ([*_EVENT, _EVENT[0]], "doubled"),
    ],
)
def test_a_falsehood_under_the_key_null_is_one(tmp_path: Path, table: list[Row], what: str) -> None:
    found = Two(tmp_path, NEWEST, _table(_EVENT, **_EVENTS), _table(table, **_EVENTS)).prove()
    assert not found.holds and found.differing == 1
    assert (found.falsehoods[0].what, found.falsehoods[0].key) == (what, {"k": None})


def _sums(rows: list[Row], **more: Any) -> pa.Table:
    found = []
    for k in {row["k"] for row in rows}:
        own = [row["x"] for row in reversed(rows) if row["k"] == k]
        window = {"window_start": START, "k": k, "window_end": START + timedelta(hours=1)}
        found.append(
            window | {"s": sum(own), "m": sum(own) / len(own)} | (more if k == "0" else {})
        )
    kinds = {
        "window_start": _TIME,
        "k": pa.string(),
        "window_end": _TIME,
        "s": pa.float64(),
        "m": pa.float64(),
    }
    return _table(found, **kinds)


def test_doubles_that_cancel_out_differ_by_a_share_of_what_was_added(tmp_path: Path) -> None:
    draw, rows = Random(1), list[Row]()
    for group in range(300):
        paid = [round(draw.uniform(1, 99), 2) for _ in range(3)]
        for amount in (*paid, *(-one for one in draw.sample(paid, 3))):
            rows.append({"k": str(group), "at": START, "x": amount})
    part = {"window": HOURLY | {"measures": {"s": "sum(x)", "m": "avg(x)"}}}
    source = _table(rows, **_EVENTS)
    assert any(row != 0 for row in _sums(rows).column("s").to_pylist()), "some sums are not exact"
    assert Two(tmp_path / "right", part, source, _sums(rows)).prove().holds
    for name in ("s", "m"):
        found = Two(tmp_path / name, part, source, _sums(rows, **{name: 0.01})).prove()
        assert [(one.what, one.key["k"], list(one.columns)) for one in found.falsehoods] == [
            ("wrong", "0", [name])
        ]


def test_a_double_that_passes_through_is_the_same_or_wrong(tmp_path: Path) -> None:
    source = _table([{"k": "a", "at": START, "x": 1_760_000_000.0}], **_EVENTS)
    table = _table([{"k": "a", "at": START, "x": 1_760_000_001.0}], **_EVENTS)
    (falsehood,) = Two(tmp_path, NEWEST, source, table).prove().falsehoods
    assert falsehood.columns == {"x": (1_760_000_000.0, 1_760_000_001.0)}


@pytest.mark.parametrize(
    ("name", "kind"), list(product(("us", "US", "r", "s"), ("window", "newest")))
)
def test_a_column_with_the_name_of_one_of_the_query_s_own(
    tmp_path: Path, name: str, kind: str
) -> None:
    rows = [
        {"k": "x", "at": START, name: 5},
        {"k": "x", "at": START + timedelta(minutes=1), name: 6},
    ]
    source = _table(rows, **{"k": pa.string(), "at": _TIME, name: pa.int64()})
    if kind == "window":
        declared = {
            "window": {
                "time": "at",
                "size": "1 hour",
                "group_by": ["k"],
                "measures": {"n": "count(*)"},
            }
        }
        made = {"window_start": START, "k": "x", "window_end": START + timedelta(hours=1), "n": 2}
        kinds = {"window_start": _TIME, "k": pa.string(), "window_end": _TIME, "n": pa.int64()}
    else:
        declared = {"deduplicate": {"keys": ["k"], "sequence_by": ["at"]}}
        made, kinds = rows[0], {"k": pa.string(), "at": _TIME, name: pa.int64()}
    it = Two(tmp_path, declared, source, _table([made], **kinds))
    assert it.prove().holds
    ((found, counted),) = source_rows(
        it.layout, it.flow, [it.source], it.layout.tables.target.query("select * from t"), 0, 9
    )
    assert [row[name] for row in found] == [5, 6] and counted == {0: 2 if kind == "window" else 1}


def test_rows_that_a_query_has_twice_are_counted(tmp_path: Path) -> None:
    """A topic that was created again has two records of one origin."""
    events = _table([{"k": "a", "at": START, "x": 1.0}], **_EVENTS)
    users = {"k": pa.string(), "age": pa.int32()}
    pair = {"k": "a", "at": START, "x": 1.0, "age": 3, "left_origin": "f:1", "right_origin": "g:1"}
    kinds = _EVENTS | {"age": pa.int32(), "left_origin": pa.string(), "right_origin": pa.string()}
    origin = pa.array([{"input": "f", "position": 1}])
    other = pa.array([{"input": "g", "position": 1}] * 2)
    join = {"table": "u", "on": ["k"]}
    flows = {"t": LANDING, "u": LANDING | {"columns": {"k": "string", "age": "int"}}}
    flows["d"] = {"source": {"table": "t"}, "join": join}
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(tmp_path), "flows": flows})
    declared, layout = spec.declared("d"), spec.layout("d")
    assert isinstance(declared, DerivedFlow)
    write_deltalake(str(tmp_path / "t"), events.append_column("_origin", origin))
    write_deltalake(
        str(tmp_path / "u"),
        _table([{"k": "a", "age": 3}] * 2, **users).append_column("_origin", other),
    )
    sources, verdicts = [Table(str(tmp_path / name)) for name in "tu"], []
    for times in (1, 2, 3):
        write_deltalake(
            layout.tables.target.path, _table([pair] * times, **kinds), mode="overwrite"
        )
        found = prove(layout, declared, sources, layout.tables.target)
        verdicts.append((found.holds, [one.what for one in found.falsehoods]))
    assert verdicts == [(False, ["missing"]), (True, []), (False, ["doubled"])]


def test_columns_that_one_side_lacks_are_null_there(tmp_path: Path) -> None:
    source = _table(_EVENT, **_EVENTS)
    more = _table(
        [one | {"old": 5 if one["k"] else None} for one in _EVENT], **_EVENTS, old=pa.int32()
    )
    (falsehood,) = Two(tmp_path / "more", NEWEST, source, more).prove().falsehoods
    assert (falsehood.key, falsehood.columns) == ({"k": "a"}, {"old": (None, 5)})
    found = Two(tmp_path / "less", NEWEST, source, source.drop_columns(["x"])).prove()
    assert found.differing == 2 and {tuple(one.columns) for one in found.falsehoods} == {("x",)}


def test_a_window_that_begins_before_the_year_1_is_named(tmp_path: Path) -> None:
    part = {"window": {"time": "at", "size": "10 days", "measures": {"n": "count(*)"}}}
    source = _table([{"k": "a", "at": datetime(1, 1, 1, tzinfo=UTC), "x": 1.0}], **_EVENTS)
    kinds = {"window_start": _TIME, "window_end": _TIME, "n": pa.int64()}
    (falsehood,) = Two(tmp_path, part, source, _table([], **kinds)).prove().falsehoods
    assert falsehood.what == "missing" and int(falsehood.key["window_start"]) < 0


def test_no_two_rows_have_one_digest(tmp_path: Path) -> None:
    texts = [
        ("x\x01y", "z"),
        ("x", "y\x01z"),
        (None, "z"),
        ("\0", "z"),
        ("-", "z"),
        ("1:-", "z"),
        ("", "1:z"),
        ("z", None),
    ]
    for at, (one, other) in enumerate(texts):
        write_deltalake(
            str(tmp_path / str(at)),
            pa.table({"a": pa.array([one], pa.string()), "b": pa.array([other], pa.string())}),
        )
    assert len({digest(Table(str(tmp_path / str(at)))) for at in range(len(texts))}) == len(texts)


def test_what_does_not_fit_into_memory_lies_in_a_temporary_directory_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connected() as db:
        db.execute("set memory_limit = '40MB'; set threads = 1")
        db.execute(
            "create table t as select range as id, md5(range::varchar) as x from range(1500000)"
        )
        db.execute("select count(*) from (select * from t order by x)")
        (place,) = db.execute("select current_setting('temp_directory')").fetchone() or ("",)
        assert list(Path(place).iterdir()) and Path(place).is_relative_to(tempfile.gettempdir())
    assert not Path(place).exists() and not list(tmp_path.iterdir())
