"""The source rows behind rows of each kind of derivation are those of plain loops over the
source.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.behind import COUNTS, ROW, literal_of, source_rows
from tests.folding import fold

START = datetime(2026, 3, 1, tzinfo=UTC)
_UTC = pa.timestamp("us", "UTC")
_ORIGIN = pa.struct([("input", pa.string()), ("position", pa.int64())])
SOURCE = pa.schema(
    [
        *(("id", pa.int64()), ("k", pa.string()), ("at", _UTC), ("n", pa.int32())),
        *(("_origin", _ORIGIN), ("_arrived_at", _UTC), ("_changed_at", _UTC)),
    ]
)
EVENTS = {
    "source": {"files": "in/*", "format": "json"},
    "columns": {"id": "bigint", "k": "string", "at": "timestamp", "n": "int"},
}
KEYED = EVENTS | {"columns": EVENTS["columns"] | {"id": "bigint not null", "n": "int not null"}}  # type: ignore[operator]
KEYED |= {"target": {"keys": ["id"], "sequence_by": ["n"]}}
Row = dict[str, Any]


def _rows(draw: Random, number: int) -> list[Row]:
    return [
        {
            "id": at,
            "k": draw.choice((None, "a", "b'")),
            "at": None if draw.random() < 0.1 else START + timedelta(minutes=draw.randrange(600)),
            "n": draw.choice((None, 1, 2, 3)),
            "_origin": {"input": f"/in/{draw.randrange(3)}", "position": at},
            "_arrived_at": START + timedelta(minutes=draw.randrange(900)),
            "_changed_at": START,
        }
        for at in range(number)
    ]


class Asked:
    """A derived flow over tables that a test writes."""

    def __init__(
        self, home: Path, part: dict[str, Any], *tables: list[Row], keyed: bool = False
    ) -> None:
        landing = KEYED if keyed else EVENTS
        flows = {f"s{at}": landing for at in range(len(tables))}
        flows["d"] = {"source": {"table": "s0"}, **part}
        self.spec = PipelineSpec.model_validate(
            {"pipeline": "p", "lake": str(home / "lake"), "flows": flows}
        )
        self.logs = []
        for at, rows in enumerate(tables):
            path = self.spec.layout(f"s{at}").tables.target.path
            write_deltalake(path, pa.Table.from_pylist(rows, schema=SOURCE))
            self.logs.append(Table(path))

    def __call__(
        self, results: list[Row], schema: dict[str, pa.DataType], limit: int = 1000
    ) -> list[Any]:
        """By table: the ids that count, and those that don't, by the place of the result."""
        flow = self.spec.declared("d")
        assert isinstance(flow, DerivedFlow)
        table = pa.Table.from_pylist(results, schema=pa.schema(schema))
        found = []
        for rows, numbers in source_rows(self.spec.layout("d"), flow, self.logs, table, 0, limit):
            counted, others = defaultdict(list), defaultdict(list)
            for row in rows:
                (counted if row[COUNTS] else others)[row[ROW]].append(row["id"])
            if limit == 1000:
                assert numbers == {at: len(counted[at]) for at in numbers}
            found.append((counted, others))
        return found


@pytest.mark.parametrize("accept", [None, "2 hours"])
@pytest.mark.parametrize(
    ("size", "slide"), [("1 hour", None), ("2 hours", "25 minutes"), ("1 month", None)]
)
def test_rows_of_windows(tmp_path: Path, size: str, slide: str | None, accept: str | None) -> None:
    rows = _rows(Random(size), 120)
    window = {
        "time": "at",
        "size": size,
        "slide": slide,
        "group_by": ["k"],
        "measures": {"c": "count(*)"},
    }
    asked = Asked(
        tmp_path, {"window": window, **({"allowed_lateness": accept} if accept else {})}, rows
    )
    starts = (
        [START] if "month" in size else [START + timedelta(minutes=25 * at) for at in range(24)]
    )
    results = [
        {"window_start": start, "k": key, "window_end": None}
        for start in starts
        for key in (None, "a", "b'", "c")
    ]
    ((counted, others),) = asked(
        results, {"window_start": _UTC, "k": pa.string(), "window_end": _UTC}
    )
    length = {
        "1 hour": timedelta(hours=1),
        "2 hours": timedelta(hours=2),
        "1 month": timedelta(days=31),
    }[size]
    for at, result in enumerate(results):
        within = [
            row
            for row in rows
            if row["k"] == result["k"]
            and row["at"]
            and result["window_start"] <= row["at"] < result["window_start"] + length
        ]
        late = [
            row for row in within if accept and row["at"] < row["_arrived_at"] - timedelta(hours=2)
        ]
        assert sorted(counted[at]) == [row["id"] for row in within if row not in late]
        assert sorted(others[at]) == [row["id"] for row in late]
    assert sum(map(len, counted.values())) > 20


def test_rows_of_sessions(tmp_path: Path) -> None:
    rows, gap = _rows(Random(2), 60), timedelta(minutes=20)
    asked = Asked(
        tmp_path,
        {
            "session": {
                "time": "at",
                "gap": "20 minutes",
                "group_by": ["k"],
                "measures": {"c": "count(*)"},
            }
        },
        rows,
    )
    sessions: list[list[Row]] = []
    for key in (None, "a", "b'"):
        last = None
        for row in sorted(
            (row for row in rows if row["k"] == key and row["at"]), key=lambda row: row["at"]
        ):
            if last is None or row["at"] - last > gap:
                sessions.append([])
            sessions[-1].append(row)
            last = row["at"]
    results = [
        {"k": one[0]["k"], "session_start": one[0]["at"], "session_end": one[-1]["at"] + gap}
        for one in sessions
    ]
    ((counted, _),) = asked(results, {"k": pa.string(), "session_start": _UTC, "session_end": _UTC})
    assert [sorted(counted[at]) for at in range(len(sessions))] == [
        sorted(row["id"] for row in one) for one in sessions
    ]
    absent = [{"k": "a", "session_start": START + timedelta(days=9), "session_end": None}]
    assert not asked(absent, {"k": pa.string(), "session_start": _UTC, "session_end": _UTC})[0][0][
        0
    ]


@pytest.mark.parametrize("keep", ["first", "last"])
def test_rows_of_deduplicated_keys(tmp_path: Path, keep: str) -> None:
    rows = [row | {"n": row["id"] % 7, "at": row["at"] or START} for row in _rows(Random(3), 40)]
    part = {"deduplicate": {"keys": ["k"], "sequence_by": ["at", "n", "id"], "keep": keep}}
    ((counted, others),) = Asked(tmp_path, part, rows)(
        [{"k": key} for key in (None, "a", "b'")], {"k": pa.string()}
    )
    for at, key in enumerate((None, "a", "b'")):
        own = sorted(
            (row for row in rows if row["k"] == key),
            key=lambda row: (row["at"], row["n"], row["id"]),
        )
        assert counted[at] == [own[0 if keep == "first" else -1]["id"]]
        assert sorted(others[at]) == sorted({row["id"] for row in own} - set(counted[at]))


def test_rows_of_the_first_of_groups(tmp_path: Path) -> None:
    rows = _rows(Random(4), 40)
    part = {"top": {"group_by": ["k"], "order_by": ["at desc", "id"], "rows": 3}}
    results = [{"k": key, "position": at} for key in (None, "a", "b'") for at in (1, 2, 3, 40)]
    ((counted, _),) = Asked(tmp_path, part, rows)(
        results, {"k": pa.string(), "position": pa.int32()}
    )
    for at, result in enumerate(results):
        own = sorted(
            (row for row in rows if row["k"] == result["k"]),
            key=lambda row: (row["at"] is None, -(row["at"] or START).timestamp(), row["id"]),
        )
        assert counted[at] == [
            row["id"] for row in own[result["position"] - 1 : result["position"]]
        ]


def test_events_of_rows_of_a_history(tmp_path: Path) -> None:
    rows = [row | {"at": row["at"] or START, "n": row["n"] or 0} for row in _rows(Random(5), 50)]
    target = {"keys": ["k"], "sequence_by": ["at"], "stored_as_scd_type": 2, "track_history": ["n"]}
    made = fold(rows, ["k"], ["at"], ["n"])
    results = [
        {"k": row["k"], "__START_AT": row["start"][0], "__END_AT": row["end"] and row["end"][0]}
        for row in made
    ]
    kinds = {"k": pa.string(), "__START_AT": _UTC, "__END_AT": _UTC}
    ((counted, _),) = Asked(tmp_path, {"target": target}, rows)(results, kinds)
    for at, result in enumerate(results):
        end = result["__END_AT"] or datetime.max.replace(tzinfo=UTC)
        own = [
            row["id"]
            for row in rows
            if row["k"] == result["k"] and result["__START_AT"] <= row["at"] < end
        ]
        assert sorted(counted[at]) == own != []


def test_rows_of_queries_per_key(tmp_path: Path) -> None:
    rows = _rows(Random(6), 30)
    part = {"query": {"keys": ["k"], "sql": "select k, count(*) c from s0 group by k"}}
    ((counted, _),) = Asked(tmp_path, part, rows)([{"k": None}, {"k": "b'"}], {"k": pa.string()})
    assert [sorted(counted[at]) for at in (0, 1)] == [
        [row["id"] for row in rows if row["k"] == key] for key in (None, "b'")
    ]


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_pairs(tmp_path: Path, keyed: bool) -> None:
    left, right = _rows(Random(7), 25), _rows(Random(8), 25)
    interval = {"left": "at", "right": "at", "between": ["-1 hour", "1 hour"]}
    join: dict[str, Any] = {"table": "s1", "on": ["k"], "interval": interval}
    join |= {"how": "left_outer", "columns": {"id": "other", "n": "m"}}
    pairs = [
        (one, other)
        for one in left
        for other in right
        if one["k"] is not None
        and one["k"] == other["k"]
        and one["at"]
        and other["at"]
        and abs(one["at"] - other["at"]) <= timedelta(hours=1)
    ]
    alone: list[tuple[Row, Row | None]] = [
        (one, None) for one in left if all(one is not own for own, _ in pairs)
    ]
    results = [_pair(one, other) for one, other in [*pairs, *alone]]
    kinds = {name: SOURCE.field(name).type for name in ("k", "id", "at", "n")}
    kinds |= {
        "other": pa.int64(),
        "m": pa.int32(),
        "left_origin": pa.string(),
        "right_origin": pa.string(),
    }
    (lefts, _), (rights, outside) = Asked(tmp_path, {"join": join}, left, right, keyed=keyed)(
        results, kinds
    )
    for at, (one, other) in enumerate([*pairs, *alone]):
        assert lefts[at] == [one["id"]] and rights[at] == (
            [] if other is None else [other["id"]]
        ), (one, other)
        assert outside[at] == []
    assert pairs and alone


def _pair(one: Row, other: Row | None) -> Row:
    origins = {"left_origin": _named(one), "right_origin": other and _named(other)}
    return one | {"other": other and other["id"], "m": other and other["n"], **origins}


def _named(row: Row) -> str:
    return f"{row['_origin']['input']}:{row['_origin']['position']}"


def test_rows_of_looked_up_rows(tmp_path: Path) -> None:
    left, right = _rows(Random(9), 20), _rows(Random(10), 8)
    part = {"lookup": {"table": "s1", "on": ["id"], "columns": {"n": "m"}}}
    results = [{"id": row["id"], "m": None} for row in left]
    (lefts, _), (rights, _) = Asked(tmp_path, part, left, right, keyed=True)(
        results, {"id": pa.int64(), "m": pa.int32()}
    )
    assert [lefts[at] for at in range(20)] == [[row["id"]] for row in left]
    assert [rights[at] for at in range(20)] == [[at] if at < 8 else [] for at in range(20)]


def test_those_that_count_come_first_under_a_limit(tmp_path: Path) -> None:
    rows = [row | {"at": START, "n": 1} for row in _rows(Random(11), 30)]
    part = {"top": {"group_by": ["n"], "order_by": ["id desc"], "rows": 9}}
    asked = Asked(tmp_path, part, rows)
    ((counted, others),) = asked(
        [{"n": 1, "position": 5}], {"n": pa.int32(), "position": pa.int32()}, limit=2
    )
    assert counted[0] == [25] and len(others[0]) == 1


@pytest.mark.parametrize("zone", [UTC, None], ids=["instants", "clocks"])
def test_a_time_of_any_year_has_a_literal(tmp_path: Path, zone: Any) -> None:
    times = [
        datetime(year, 1, 1, 0, 0, 0, 1, tzinfo=zone) for year in (1, 1677, 1970, 2026, 2263, 9999)
    ]
    write_deltalake(
        tmp_path / "t",
        pa.table({"at": pa.array(times, pa.timestamp("us", "UTC" if zone else None))}),
    )
    log = Table(str(tmp_path / "t"))
    for number, time in enumerate(times):
        assert log.rows(f"select count(*) as n from t where at < {literal_of(time)}") == [
            {"n": number}
        ]
        assert log.rows(f"select count(*) as n from t where at in ({literal_of(time)})") == [
            {"n": 1}
        ]
