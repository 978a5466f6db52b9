"""`join` and `lookup` in DuckDB: equal to a plain model, and every planted falsehood is found by
its key.
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

from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.lake.table import Table
from draindown.proof.certificate import Certificate
from draindown.proof.compare import prove

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2026, 3, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", tz="UTC")
_ORIGIN = pa.struct([("input", pa.string()), ("position", pa.int64())])
_SIDE = pa.schema(
    [("id", pa.int64()), ("k", pa.string()), ("at", _TIME), ("n", pa.int32()), ("_origin", _ORIGIN)]
)
_KINDS = {
    **dict.fromkeys(("at", "then", "time_bucket"), _TIME),
    **{name: pa.string() for name in ("k", "left_origin", "right_origin")},
    **{name: pa.int64() for name in ("id", "other")},
    **{name: pa.int32() for name in ("n", "m")},
    "r_found": pa.bool_(),
}
_COLUMNS = {"id": "bigint not null", "k": "string not null", "at": "timestamp not null", "n": "int"}
KEYED = {"keys": ["id"], "sequence_by": ["at"]}
Row = dict[str, Any]
WITHIN: Row = {
    "table": "r",
    "on": ["k"],
    "interval": {"left": "at", "right": "at", "between": ["-10 minutes", "30 minutes"]},
}
JOIN = WITHIN | {"how": "left_outer", "columns": {"id": "other", "at": "then", "n": "m"}}
_BOUND = (timedelta(minutes=-10), timedelta(minutes=30))


def _rows(draw: Random) -> list[Row]:
    minutes = (None, 0, -10, 10, 30, 31, 40, 41, 90)
    return [
        {
            "id": number,
            "k": draw.choice((None, "", "a", "b")),
            "at": None if (at := draw.choice(minutes)) is None else _START + timedelta(minutes=at),
            "n": draw.choice((None, 1, 2)),
            "_origin": {"input": "f.json", "position": number},
        }
        for number in range(14)
    ]


def _joined(left: list[Row], right: list[Row]) -> list[Row]:
    """The pairs of the join JOIN, over keyed tables."""
    found = []
    for one in left:
        timed = [other for other in right if one["k"] is not None and one["k"] == other["k"]]
        timed = [other for other in timed if one["at"] is not None and other["at"] is not None]
        matches = [other for other in timed if _BOUND[0] <= other["at"] - one["at"] <= _BOUND[1]]
        for other in matches or [{}]:
            bucket = (
                None
                if one["at"] is None
                else one["at"] - (one["at"] - _EPOCH) % timedelta(minutes=40)
            )
            theirs = {"other": other.get("id"), "then": other.get("at"), "m": other.get("n")}
            own = {name: one[name] for name in ("k", "id", "at", "n")}
            found.append(own | {"time_bucket": bucket} | theirs)
    return found


def _proven(
    home: Path, parts: Row, left: list[Row], right: list[Row], results: list[Row], **targets: Any
) -> Certificate:
    landing = {"source": {"files": "x/*", "format": "json"}, "columns": _COLUMNS}
    flows = {
        "l": landing | {"target": targets.get("l", KEYED)},
        "r": landing | {"target": targets.get("r", KEYED)},
        "d": {"source": {"table": "l"}} | parts,
    }
    spec = PipelineSpec.model_validate({"pipeline": "p", "lake": str(home), "flows": flows})
    layout, flow = spec.layout("d"), spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    for name, rows in (("l", left), ("r", right)):
        write_deltalake(str(home / name), pa.Table.from_pylist(rows, schema=_SIDE))
    schema = pa.schema([(name, _KINDS[name]) for name in results[0]])
    write_deltalake(layout.tables.target.path, pa.Table.from_pylist(results, schema=schema))
    return prove(
        layout, flow, [Table(str(home / "l")), Table(str(home / "r"))], layout.tables.target
    )


@pytest.mark.parametrize("how", ["left_outer", "inner"])
@pytest.mark.parametrize("seed", range(3))
def test_an_untouched_join_proves(tmp_path: Path, seed: int, how: str) -> None:
    left, right = _rows(Random(seed)), _rows(Random(100 + seed))
    results = [
        row for row in _joined(left, right) if how == "left_outer" or row["other"] is not None
    ]
    found = _proven(tmp_path, {"join": JOIN | {"how": how}}, left, right, results)
    assert found.holds and found.expected == found.found == len(results) >= 4, found.falsehoods
    assert found.engine.startswith("duckdb ") and [one.path for one in found.sources] == [
        str(tmp_path / name) for name in "lr"
    ]


def test_rows_of_append_tables_are_named_by_their_origin(tmp_path: Path) -> None:
    left, right = _rows(Random(1)), _rows(Random(2))
    named = {"left_origin": lambda row: row["id"], "right_origin": lambda row: row["other"]}
    results = [
        row | {name: None if of(row) is None else f"f.json:{of(row)}" for name, of in named.items()}
        for row in _joined(left, right)
    ]
    found = _proven(tmp_path, {"join": JOIN}, left, right, results, l={}, r={})
    assert found.holds and found.found == len(results), found.falsehoods


def _pair(results: list[Row]) -> Row:
    return next(row for row in results if row["other"] is not None)


def _lost(results: list[Row]) -> Row:
    row = _pair(results)
    results.remove(row)
    return row


def _doubled(results: list[Row]) -> Row:
    results.append(_pair(results))
    return results[-1]


def _kept_beside_its_match(results: list[Row]) -> Row:
    """As if the row without a match had stayed when the match came."""
    results.append(_pair(results) | dict.fromkeys(("other", "then", "m")))
    return results[-1]


def _not_corrected(results: list[Row]) -> Row:
    """As if the match had never come."""
    row = _pair(results)
    others = [one for one in results if one["id"] == row["id"]]
    results[:] = [one for one in results if one["id"] != row["id"]]
    results.append(row | dict.fromkeys(("other", "then", "m")))
    return others[0]


def _old_value(results: list[Row]) -> Row:
    row = _pair(results)
    row["m"] = 77
    return row


def _out_of_reach(results: list[Row]) -> Row:
    results.append(_pair(results) | {"other": 1_000, "then": _START + timedelta(hours=9)})
    return results[-1]


def _left_behind(results: list[Row]) -> Row:
    """As if the left row had moved to its bucket of now, and the row of the earlier one had
    stayed.
    """
    row = _pair(results)
    results.append(row | {"time_bucket": row["time_bucket"] - timedelta(minutes=40)})
    return results[-1]


def _without_key(results: list[Row]) -> Row:
    """As if NULL were equal to NULL."""
    row = next(row for row in results if row["k"] is None)
    results.append(row | {"other": 3})
    return results[-1]


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (_lost, "missing"),
        (_doubled, "doubled"),
        (_kept_beside_its_match, "unexpected"),
        (_not_corrected, "missing"),
        (_old_value, "wrong"),
        (_out_of_reach, "unexpected"),
        (_left_behind, "unexpected"),
        (_without_key, "unexpected"),
    ],
)
def test_a_planted_falsehood_is_found_by_its_key(
    tmp_path: Path, plant: Callable[[list[Row]], Row], what: str
) -> None:
    left, right = _rows(Random(7)), _rows(Random(8))
    results = _joined(left, right)
    row = plant(results)
    found = _proven(tmp_path, {"join": JOIN}, left, right, results)
    bucket = None if row["time_bucket"] is None else row["time_bucket"].isoformat()
    key = {"k": row["k"], "time_bucket": bucket, "id": row["id"], "other": row["other"]}
    assert not found.holds and (what, key) in [
        (one.what, dict(one.key)) for one in found.falsehoods
    ]


LOOKUP = {"table": "r", "on": ["k"], "columns": {"at": "then", "n": "m"}}
BY_KEY = {"keys": ["k"], "sequence_by": ["at"]}


def _users() -> list[Row]:
    return [
        {"id": at, "k": k, "at": _START, "n": n, "_origin": {"input": "u", "position": at}}
        for at, (k, n) in enumerate((("a", 5), ("", None), ("c", 6)))
    ]


def _looked_up(left: list[Row]) -> list[Row]:
    known = {row["k"]: row for row in _users()}
    found = []
    for one in left:
        other = known.get(one["k"], {})
        theirs = {"r_found": bool(other), "then": other.get("at"), "m": other.get("n")}
        found.append({name: one[name] for name in ("id", "k", "at", "n")} | theirs)
    return found


@pytest.mark.parametrize("target", [KEYED, {}], ids=["keyed", "append"])
def test_an_untouched_lookup_proves(tmp_path: Path, target: Row) -> None:
    left = _rows(Random(3))
    results = _looked_up(left)
    results = (
        results if target else [row | {"left_origin": f"f.json:{row['id']}"} for row in results]
    )
    found = _proven(tmp_path, {"lookup": LOOKUP}, left, _users(), results, l=target, r=BY_KEY)
    assert (
        found.holds and found.found == 14 and {row["r_found"] for row in results} == {True, False}
    ), found.falsehoods


def _stale(results: list[Row]) -> Row:
    """As if the looked-up row had not been followed."""
    row = next(row for row in results if row["m"] == 5)
    row["m"] = 4
    return row


def _missed(results: list[Row]) -> Row:
    row = next(row for row in results if row["m"] == 5)
    row.update({"r_found": False, "then": None, "m": None})
    return row


def _invented(results: list[Row]) -> Row:
    row = next(row for row in results if not row["r_found"])
    row["r_found"] = True
    return row


def _dropped(results: list[Row]) -> Row:
    """As if a row that finds nothing were left out."""
    row = next(row for row in results if not row["r_found"])
    results.remove(row)
    return row


def _gone(results: list[Row]) -> Row:
    results.append(results[0] | {"id": 99})
    return results[-1]


def _twice(results: list[Row]) -> Row:
    results.append(results[0])
    return results[0]


@pytest.mark.parametrize(
    ("plant", "what"),
    [
        (_stale, "wrong"),
        (_missed, "wrong"),
        (_invented, "wrong"),
        (_dropped, "missing"),
        (_gone, "unexpected"),
        (_twice, "doubled"),
    ],
)
def test_a_falsehood_in_a_lookup_is_found_by_its_key(
    tmp_path: Path, plant: Callable[[list[Row]], Row], what: str
) -> None:
    left = _rows(Random(3))
    results = _looked_up(left)
    row = plant(results)
    found = _proven(tmp_path, {"lookup": LOOKUP}, left, _users(), results, r=BY_KEY)
    assert [(one.what, dict(one.key)) for one in found.falsehoods] == [(what, {"id": row["id"]})]
