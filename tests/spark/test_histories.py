"""The fold of events into a history: Spark, DuckDB and plain Python agree on thousands of histories
in one job.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, nan
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from draindown.config.history import History
from draindown.proof import histories as in_duckdb
from draindown.spark.derived.histories import Histories
from draindown.spark.derived.resolve import query
from draindown.spark.session import configured
from tests.folding import Row, fold

_START = datetime(2026, 3, 1, tzinfo=UTC)
_SCHEMA = pa.schema(
    {
        "h": pa.int32(),
        "k": pa.string(),
        "at": pa.timestamp("us", tz="UTC"),
        "n": pa.int32(),
        "op": pa.string(),
        "a": pa.string(),
        "x": pa.float64(),
        "u": pa.int32(),
    }
)
_TYPES = {
    "h": "integer",
    "k": "string",
    "at": "timestamp",
    "n": "integer",
    "op": "string",
    "a": "string",
    "x": "double",
    "u": "integer",
}
_EVENTS = ["h", "k"]


def _events(draw: Random, histories: int) -> list[Row]:
    found = []
    for number in range(histories):
        for _ in range(draw.randint(1, 9)):
            event = {
                "h": number,
                "k": draw.choice((None, "k")),
                "at": draw.choice(
                    (None, *(_START + timedelta(microseconds=at) for at in range(5)))
                ),
                "n": draw.choice((None, *range(6))),
                "op": draw.choice((None, "d", "u", "u", "u")),
                "a": draw.choice((None, "", "\uff5e", "\U0001f600")),
                "x": draw.choice((None, 0.1, -0.0, 0.0, nan, inf)),
                "u": draw.choice((None, 1, 2, 3)),
            }
            found += [event] * draw.choice((1, 1, 1, 2))
    return found


@dataclass(frozen=True)
class Case:
    """What a flow says of its history, and which columns the rules track for it."""

    said: dict[str, Any]
    tracked: Sequence[str]

    @property
    def part(self) -> History:
        return History.model_validate({"scope_keys": _EVENTS, **self.said})

    def model(self, events: list[Row]) -> list[tuple[Any, ...]]:
        order = self.said["sequence_by"]
        deletes = (
            (lambda event: event["op"] == "d")
            if "apply_as_deletes" in self.said
            else (lambda event: False)
        )
        rows = fold(events, _EVENTS, order, self.tracked, deletes)
        return [
            (*(row[n] for n in _EVENTS), row["start"], row["end"], *(row[n] for n in _OTHERS))
            for row in rows
        ]


_OTHERS = [name for name in _SCHEMA.names if name not in _EVENTS]
_BY_N = {"sequence_by": ["n"], "apply_as_deletes": "op = 'd'"}
CASES = {
    "all": Case(_BY_N, ["at", "op", "a", "x", "u"]),
    "some": Case(_BY_N | {"track_history": ["a", "x"]}, ["a", "x"]),
    "except": Case(_BY_N | {"track_history": {"except": ["u", "at", "x", "op"]}}, ["a"]),
    "no deletes": Case({"sequence_by": ["at"], "track_history": ["op"]}, ["op"]),
    "several": Case(
        {"sequence_by": ["at", "n"], "apply_as_deletes": "op in ('d')", "track_history": ["a"]},
        ["a"],
    ),
    "each event": Case({"sequence_by": ["n"], "track_history": ["n"]}, ["n"]),
}


@pytest.mark.parametrize(
    "name", ["some", *(pytest.param(one, marks=pytest.mark.long) for one in CASES if one != "some")]
)
def test_three_engines_fold_thousands_of_histories_alike(spark: SparkSession, name: str) -> None:
    case, events = CASES[name], _events(Random(name), 10_000)
    table = pa.Table.from_pylist(events, schema=_SCHEMA)
    modelled = case.model(events)
    expected = _comparable(modelled)
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        found = query(Histories(case.part, "source"), [spark.createDataFrame(table)]).toArrow()
    assert _comparable(_rows(found)) == expected
    assert _comparable(_rows(_in_duckdb(case.part, table))) == expected
    folded = {row[:2] for row in modelled}
    assert 8_000 < len(folded) < len(modelled) < len(events), (
        "keys have several rows, and events make none"
    )


def _in_duckdb(part: History, events: pa.Table) -> pa.Table:
    sql = in_duckdb.query(part, _TYPES)
    assert sql is not None
    with closing(duckdb.connect()) as db:
        db.execute("set timezone = 'UTC'")
        db.register("source", events)
        return db.sql(sql).to_arrow_table()


def _rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.to_pylist()]


def _comparable(rows: list[tuple[Any, ...]]) -> list[str]:
    """The rows as sorted texts: a sequence as a tuple of its values, zeros without a sign."""
    return sorted(
        str([_plain(one, is_sequence=at in (2, 3)) for at, one in enumerate(row)]) for row in rows
    )


def _plain(value: Any, *, is_sequence: bool) -> Any:
    if is_sequence and value is not None:
        parts = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, tuple)
            else (value,)
        )
        return [_plain(one, is_sequence=False) for one in parts]
    if isinstance(value, datetime):
        return (value - _START) // timedelta(microseconds=1)
    return abs(value) if value == 0 else value


@pytest.mark.parametrize("order", ["as sent", "backwards"])
def test_events_of_sparks_own_failing_cases_fold_right(spark: SparkSession, order: str) -> None:
    """Those of SPARK-58937: a no-op update in between, and a delete that comes after later
    events.
    """
    events = [
        ("alice", 39, 1, None),
        ("alice", 41, 2, None),
        ("bob", 42, 3, None),
        ("carol", 43, 4, None),
    ]
    events = [("k", name, at, op) for name, _, at, op in events]
    events += [
        ("a", "a", 10, None),
        ("a", "a", 11, None),
        ("a", None, 12, "d"),
        ("a", "b", 20, None),
    ]
    rows = events if order == "as sent" else events[::-1]
    part = History.model_validate(
        {
            "scope_keys": ["k"],
            "sequence_by": ["n"],
            "track_history": ["v"],
            "apply_as_deletes": "op = 'd'",
        }
    )
    source = spark.createDataFrame(rows, "k string, v string, n int, op string")
    found = (
        query(Histories(part, "source"), [source])
        .select("k", "v", "__START_AT", "__END_AT")
        .collect()
    )
    assert sorted(map(tuple, found), key=str) == [
        ("a", "a", 10, 12),
        ("a", "b", 20, None),
        ("k", "alice", 1, 3),
        ("k", "bob", 3, 4),
        ("k", "carol", 4, None),
    ]


def test_a_condition_that_fails_deletes_nothing_and_keys_alone_have_a_history(
    spark: SparkSession,
) -> None:
    said = {"scope_keys": ["k"], "sequence_by": ["n"]}
    source = spark.createDataFrame(
        [("a", 1, "x"), ("a", 2, "1"), ("a", 3, "1"), ("a", 4, "y")], "k string, n int, op string"
    )
    part = History.model_validate(
        said | {"apply_as_deletes": "cast(op as int) = 1", "track_history": ["op"]}
    )
    found = query(Histories(part, "source"), [source]).collect()
    assert sorted(map(tuple, found)) == [("a", 1, 2, 1, "x"), ("a", 4, None, 4, "y")]
    alone, bare = History.model_validate(said), source.select("k", "n")
    assert [tuple(row) for row in query(Histories(alone, "source"), [bare]).collect()] == [
        ("a", 1, None, 4)
    ]
    sql = in_duckdb.query(alone, {"k": "string", "n": "integer"})
    with closing(duckdb.connect()) as db:
        db.register("source", bare.toArrow())
        assert db.execute(sql or "").fetchall() == [("a", 1, None, 4)]
