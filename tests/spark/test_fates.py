"""Which row of a key wins, and what becomes of the others, against a model in plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.spark.targets import resolution

_KEYS, _SEQUENCE = ("k", "day"), ("seq", "sub")
_ORDER = ("k", "day", "text", "number", "tags", "seq", "sub", "_rescued")
_SCHEMA = (
    "k string, day date, seq int, sub int, text string, number double, tags map<string,int>, _rescued string, "
    "_delete boolean"
)
_Row = tuple[Any, ...]


def _rows(seed: int, number: int) -> list[_Row]:
    draw = random.Random(seed)
    rows: list[_Row] = []
    for _ in range(number):
        content = (
            draw.choice((None, "", "a", "é")),
            draw.choice((None, 0.0, 1.5)),
            draw.choice((None, {}, {"t": 1})),
            draw.choice((None, "{}")),
        )
        key = (f"k{draw.randrange(number // 4)}", date(2024, 1, 1 + draw.randrange(2)))
        rows.append((*key, draw.randrange(2), draw.randrange(2), *content, draw.random() < 0.3))
    return rows


def _place(row: _Row) -> tuple[Any, ...]:
    """As rows of a key are ordered; NULL is the smallest, a delete has no content."""
    *_, text, number, tags, rescued, delete = row
    content = () if delete else (text, number, None if tags is None else str(tags), rescued)
    return (row[2], row[3], delete, tuple((False,) if value is None else (True, value) for value in content))


def _expected(rows: Sequence[_Row]) -> set[tuple[Any, ...]]:
    by_key: dict[_Row, list[_Row]] = {}
    for row in rows:
        by_key.setdefault(row[:2], []).append(row)
    found = set()
    for key, several in by_key.items():
        places = sorted(map(_place, several))
        same = places.count(places[-1])
        winner = next(row for row in several if _place(row) == places[-1])
        content = (None,) * 4 if winner[-1] else winner[4:8]
        found.add((*key, *winner[2:4], str(content), winner[-1], same - 1, len(several) - same))
    return found


def test_newest_row_of_each_key_and_how_many_lost(spark: SparkSession) -> None:
    rows = _rows(7, 2_000)
    frame = spark.createDataFrame(rows, _SCHEMA)
    found = resolution.newest(frame, _KEYS, _SEQUENCE, _ORDER)

    assert found.columns == [*frame.columns, *resolution.LOSERS]
    told = Counter(
        (r.k, r.day, r.seq, r.sub, str((r.text, r.number, r.tags, r["_rescued"])), r["_delete"], *r[-2:])
        for r in found.collect()
    )
    expected = _expected(rows)
    assert told == Counter(expected)  # each once
    assert {row[-2] for row in expected} >= {0, 1, 2} and {row[-1] for row in expected} >= {0, 1, 2}


def test_moments_within_maps_differ_by_microseconds(spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    rows = [("k", 1, {"t": at + timedelta(microseconds=more)}, False) for more in (2, 0, 1)]
    frame = spark.createDataFrame(rows, "k string, seq int, m map<string,timestamp>, _delete boolean")
    won = resolution.newest(frame, ["k"], ["seq"], ["k", "seq", "m", "_rescued"])
    assert [tuple(row) for row in won.select(F.unix_micros("m.t") % 10, *resolution.LOSERS).collect()] == [(3, 0, 2)]

    target = frame.where(F.unix_micros("m.t") % 10 == 1).drop("_delete")
    fated = resolution.compare(won, target, None, ["k"], ["seq"])
    assert [
        row[resolution.FATE] for row in resolution.settle_ties(fated, target, ["k"], ["k", "seq", "m"]).collect()
    ] == ["update"]


def test_rows_are_sorted_once(spark: SparkSession) -> None:
    """Each window of its own would be another pass over the whole batch."""
    frame = spark.createDataFrame(_rows(1, 8), _SCHEMA)
    plan = resolution.newest(frame, _KEYS, _SEQUENCE, _ORDER)._jdf.queryExecution().executedPlan().toString()
    operators = [line.strip(" +-:*()0123456789").split(" ")[0] for line in plan.splitlines()]
    assert (operators.count("Window"), operators.count("Sort"), operators.count("Exchange")) == (1, 1, 1)
