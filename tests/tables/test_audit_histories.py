"""The audit of a history agrees with a plain loop over thousands of histories, and finds each table
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

from draindown.audit.histories import HistoryRecount
from draindown.audit.record_tables import unfolded
from draindown.config.landing import FlowSpec
from draindown.lake.table import Table
from tests.folding import Row, fold

_START = datetime(2026, 3, 1, tzinfo=UTC)
_TYPES = {
    "k": pa.int32(),
    "at": pa.timestamp("us", tz="UTC"),
    "n": pa.int32(),
    "op": pa.string(),
    "a": pa.string(),
}
_KINDS = {
    "k": "int not null",
    "at": "timestamp not null",
    "n": "int not null",
    "op": "string",
    "a": "string",
}
_FULL = _TYPES | {"x": pa.float64()}


def _flow(**target: Any) -> FlowSpec:
    said = {
        "keys": ["k"],
        "sequence_by": ["n"],
        "stored_as_scd_type": 2,
        "apply_as_deletes": "op = 'd'",
    }
    source = {"files": "landing/*", "format": "json", "timezone": "Europe/Paris"}
    columns = _KINDS | {"x": "double"}
    return FlowSpec.model_validate({"source": source, "columns": columns, "target": said | target})


def _events(draw: Random, histories: int) -> list[Row]:
    return [
        {
            "k": key,
            "at": _START + timedelta(microseconds=draw.randrange(3)),
            "n": draw.randrange(6),
            "op": draw.choice((None, "d", "u", "u")),
            "a": draw.choice((None, "", "\uff5e", "\U0001f600")),
            "x": draw.choice((None, 0.1, -0.0, 0.0, 1e300)),
        }
        for key in range(histories)
        for _ in range(draw.randint(1, 8))
    ]


def _texts(events: list[Row]) -> list[pa.Array]:
    def text(value: Any) -> str | None:
        return (
            None
            if value is None
            else value.isoformat()
            if isinstance(value, datetime)
            else str(value)
        )

    return [pa.array([text(event[name]) for event in events], pa.string()) for name in _FULL]


def _table(
    path: Path, flow: FlowSpec, events: list[Row], wrong: Callable[[list[Row]], None] | None
) -> Table:
    order = flow.target.sequence_by
    part = flow.target.history
    assert part is not None
    content = ["at", "op", "a", "x"] if order == ["n"] else ["op", "a", "x"]
    names = ["k", *order, *content]
    ranked = [{name: event[name] for name in names} for event in events]
    mapped = {
        name: f"{at:02}{name}" for at, name in enumerate(content)
    }  # the model ranks content by its names
    by_rank = [{mapped.get(name, name): value for name, value in event.items()} for event in ranked]
    tracked = [mapped.get(name, name) for name in part.tracked(list(_FULL))]
    back = {ranked: name for name, ranked in mapped.items()}
    rows = [
        {back.get(name, name): value for name, value in row.items()}
        for row in fold(by_rank, ["k"], order, tracked, lambda event: event[mapped["op"]] == "d")
    ]
    if wrong is not None:
        wrong(rows)
    kind = (
        _FULL[order[0]] if len(order) == 1 else pa.struct([(name, _FULL[name]) for name in order])
    )

    def at(value: Any) -> Any:
        return (
            None
            if value is None
            else value[0]
            if len(order) == 1
            else dict(zip(order, value, strict=True))
        )

    made = [{**row, "__START_AT": at(row["start"]), "__END_AT": at(row["end"])} for row in rows]
    fields = [(name, _FULL[name]) for name in names] + [("__START_AT", kind), ("__END_AT", kind)]
    write_deltalake(str(path), pa.Table.from_pylist(made, schema=pa.schema(fields)))
    return Table(str(path))


def _found(
    tmp_path: Path,
    flow: FlowSpec,
    events: list[Row],
    wrong: Callable[[list[Row]], None] | None = None,
) -> set[str]:
    assert unfolded(flow) is None and flow.target.history is not None
    recount = HistoryRecount(flow, tmp_path, flow.target.history.tracked(list(_FULL)))
    recount.add("raw", _texts(events))
    residues = [*recount.rows(_table(tmp_path / "t", flow, events, wrong)), *recount.fold()]
    assert recount.uncast() == recount.early() == 0
    return {residue.kind for residue in residues}


@pytest.mark.parametrize("sequence", [["n"], ["n", "at"]])
@pytest.mark.parametrize("track", [None, ["a"], {"except": ["x", "at"]}])
def test_it_folds_thousands_of_histories_as_a_plain_loop_does(
    tmp_path: Path, sequence: list[str], track: Any
) -> None:
    target: dict[str, Any] = {"sequence_by": sequence} | (
        {} if track is None else {"track_history": track}
    )
    assert _found(tmp_path, _flow(**target), _events(Random(f"{sequence}{track}"), 3_000)) == set()


def _closed(rows: list[Row]) -> Row:
    return next(row for row in rows if row["end"] is not None and row["end"][0] < 5)


WRONG: dict[str, tuple[Callable[[list[Row]], Any], set[str]]] = {
    "a row is gone": (lambda rows: rows.pop(7), {"row-lost"}),
    "an end is wrong": (
        lambda rows: _closed(rows).update(end=(99,)),
        {"row-lost", "row-from-nowhere"},
    ),
    "an untracked value is wrong": (
        lambda rows: rows[3].update(x=77.0),
        {"row-lost", "row-from-nowhere"},
    ),
    "a row is there twice": (
        lambda rows: rows.append(rows[5]),
        {"row-from-nowhere", "overlapping-rows"},
    ),
    "a row ends before it begins": (
        lambda rows: _closed(rows).update(end=(-1,)),
        {"row-without-time"},
    ),
    "two rows are open": (
        lambda rows: rows.append(next(r for r in rows if r["end"] is None) | {"start": (50,)}),
        {"double-open", "overlapping-rows", "row-from-nowhere"},
    ),
    "runs are not joined": (
        lambda rows: (
            rows.append((_open := next(r for r in rows if r["end"] is None)) | {"start": (50,)})
            or _open.update(end=(50,))
        ),
        {"row-not-joined", "row-from-nowhere"},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_finds_a_table_that_is_not_the_fold(tmp_path: Path, name: str) -> None:
    wrong, kinds = WRONG[name]
    assert kinds <= _found(tmp_path, _flow(track_history=["a"]), _events(Random(name), 200), wrong)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"transform": "t.f"}, "transform t.f is not run"),
        ({"columns": _KINDS | {"x": "array<int>"}}, "x (array<int>)"),
        ({"target": {"apply_as_deletes": "n > 3"}}, "`n > 3`"),
    ],
)
def test_it_says_what_it_cannot_fold(more: dict[str, Any], why: str) -> None:
    content = _flow().model_dump(exclude_none=True, mode="json")
    content["target"] |= more.pop("target", {})
    assert why in (unfolded(FlowSpec.model_validate(content | more)) or "")


def test_keys_are_left_out_of_which_a_record_has_what_was_no_column_when_it_was_read(
    tmp_path: Path,
) -> None:
    flow, events = _flow(), _events(Random(4), 400)
    assert flow.target.history is not None
    early, later = (
        [one for one in events if bool(one["k"] % 3) == is_later] for is_later in (False, True)
    )
    tracked, unknown = (
        flow.target.history.tracked(list(_FULL)),
        [one | {"x": None} for one in early],
    )

    def found(name: str, wrong: Callable[[list[Row]], None] | None) -> list[str]:
        recount = HistoryRecount(flow, tmp_path, tracked)
        recount.before(["x", "a"]).before(["x"]).add("raw", _texts(early))
        recount.add("raw", _texts(later))
        table = _table(tmp_path / name, flow, [*unknown, *later], wrong)
        kinds = [one.kind for one in (*recount.rows(table), *recount.fold())]
        assert recount.early() == sum(one["x"] is not None for one in early) > 9
        return kinds

    def spoil(rows: list[Row]) -> None:
        with_x = {one["k"] for one in early if one["x"] is not None}
        for at in (0, 1):  # a key that is left out, and one that is not
            row = next(row for row in rows if (row["k"] in with_x) == bool(at))
            row["end"] = (row["start"][0] + 1,) if row["end"] is None else None

    assert not found("t", None)
    kinds = found("u", spoil)
    assert kinds.count("row-lost") == kinds.count("row-from-nowhere") == 1


_DAYS = [{"k": 1, "at": _START + timedelta(days=at), "a": "x", "day": str(at)} for at in (0, 1)]
_ROWS = [
    row | {"__START_AT": row["at"], "__END_AT": end}
    for row, end in zip(_DAYS, (_START + timedelta(days=1), None), strict=True)
]
_MADE = [("k", pa.int32()), *((name, _TYPES["at"]) for name in ("__START_AT", "__END_AT", "at"))]
_MADE += [("a", pa.string()), ("day", pa.string())]
_CONTRACT = {"k": "int not null", "at": "timestamp not null", "a": "string"}


@pytest.mark.parametrize(
    ("columns", "more", "tracked", "kinds"),
    [
        (_CONTRACT, {}, ["a", "day"], []),
        (_CONTRACT, {}, ["a"], ["row-not-joined"]),
        (_CONTRACT, {}, None, []),
        (_CONTRACT, {}, ["a", "gone"], []),
        (_CONTRACT, {"track_history": ["day"]}, ["day"], []),
        (_CONTRACT | {"b": "string"}, {}, ["a", "day"], []),
        ({"kk": "int", "at": "timestamp not null", "a": "string"}, {}, ["a"], ["row-not-joined"]),
    ],
)
def test_rows_are_judged_by_what_the_newest_batch_tracked_whatever_the_contract_has(
    tmp_path: Path,
    columns: dict[str, str],
    more: dict[str, Any],
    tracked: list[str] | None,
    kinds: list[str],
) -> None:
    """Of a transform that makes and drops columns, and of a column that no batch has read yet."""
    target = {"keys": ["k"], "sequence_by": ["at"], "stored_as_scd_type": 2} | more
    source = {"files": "landing/*", "format": "json"}
    flow = FlowSpec.model_validate(
        {"source": source, "columns": columns, "transform": "t.f", "target": target}
    )
    write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist(_ROWS, schema=pa.schema(_MADE)))
    found = HistoryRecount(flow, tmp_path, tracked).rows(Table(str(tmp_path / "t")))
    assert [one.kind for one in found] == kinds
