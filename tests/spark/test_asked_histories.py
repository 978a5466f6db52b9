"""Lookups in a history at a time, computed again where changes touch, equal the query, over
thousands of histories.

Each step of each history is a cell with keys of its own, so that all are one batch. A plain loop
over the events knows the answers, which tests/tables/test_proof_asked.py compares with DuckDB's
ASOF join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from draindown.config.derived import DerivedFlow
from draindown.spark.derived import difference, images, recompute
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.resolve import query
from draindown.spark.derived.scope import Bucket, Touched
from draindown.spark.session import configured
from draindown.spark.targets.pruning import Pruning
from tests.asked import Asking, Cell, cells
from tests.spark.test_joined_histories import values

HISTORIES = 2_000
_LEFT = "cell int, k string, at timestamp, id int, n int"
_SEQUENCE = {False: "timestamp", True: "struct<at: timestamp, seq: int>"}
_ORIGIN = "_origin struct<input: string, position: bigint>"
Result = dict[tuple[Any, ...], tuple[Any, ...]]


def _flow(*, append: bool) -> DerivedFlow:
    part = {"table": "h", "on": ["cell", "k"], "columns": {"v": "val", "u": "note"}, "as_of": "at"}
    flow = DerivedFlow.model_validate({"source": {"table": "l"}, "lookup": part})
    left, right = flow.source.read
    right._row_keys, left._row_keys = ("cell", "k", "__START_AT"), () if append else ("cell", "id")
    flow.settle()
    return flow


@pytest.mark.full
@pytest.mark.parametrize(
    ("append", "two", "buckets"),
    [
        (False, False, 1),
        pytest.param(True, True, 3, marks=pytest.mark.long),
        pytest.param(False, True, 1, marks=pytest.mark.long),
        pytest.param(True, False, 1, marks=pytest.mark.long),
    ],
)
def test_rows_whose_answer_changes_are_computed_again_and_no_others(
    spark: SparkSession, append: bool, two: bool, buckets: int
) -> None:
    flow, some = _flow(append=append), list(cells(Random(11), HISTORIES, two=two))
    kind, (before, after) = kind_of(flow), (_model(some, at, append=append) for at in (0, 1))
    with configured(spark, {"spark.sql.session.timeZone": "UTC"}):
        fated = [
            row
            for at in range(buckets)
            for row in _fated(
                spark, kind, some, before, Bucket(at, buckets), two=two, append=append
            )
        ]
    table, width = dict(before), len(kind.row_keys)
    for row in fated:
        key, fate = values(row[:width]), row[difference.FATE]
        if fate == difference.DELETE:
            del table[key]
        else:
            table[key] = values(row[width:-1])
    wrong = [key for key in table.keys() | after.keys() if table.get(key) != after.get(key)]
    assert not wrong, (len(wrong), wrong[0], table.get(wrong[0]), after.get(wrong[0]))
    met = Counter(row[difference.FATE] for row in fated)
    assert min(met[fate] for fate in difference.ACTS) > 100, met
    assert not met[difference.UNCHANGED], (
        "of a run that got an end, times before that are not touched"
    )
    both = before.keys() & after.keys()
    moved = sum(
        before[key][-2:] != after[key][-2:] and before[key][1:-2] == after[key][1:-2]
        for key in both
    )
    assert moved > 100, "answers change of rows that did not"
    found = Counter(bool(answer[0]) for cell in some for answer in cell.answers[1].values())
    assert min(found.values()) > 500, found


def _model(some: Sequence[Cell], at: int, *, append: bool) -> Result:
    found: Result = {}
    for cell in some:
        for row in (cell.before, cell.after)[at][0]:
            there, v, u = cell.answers[at][row.cell, row.id]
            if append:
                found[(f"l{row.cell}:{row.id}",)] = (
                    there,
                    row.cell,
                    row.k,
                    row.at,
                    row.id,
                    row.n,
                    v,
                    u,
                )
            else:
                found[row.cell, row.id] = (there, row.k, row.at, row.n, v, u)
    return found


def _fated(
    spark: SparkSession,
    kind: Kind,
    some: Sequence[Cell],
    before: Result,
    bucket: Bucket,
    *,
    two: bool,
    append: bool,
) -> list[Row]:
    at = _SEQUENCE[two]
    right = f"cell int, k string, __START_AT {at}, __END_AT {at}, v string, u int"

    def left(rows: Sequence[tuple[Asking, int]], more: str = "") -> DataFrame:
        origin = [
            (*row, *([(f"l{row.cell}", row.id)] if append else []), *([sign] if more else []))
            for row, sign in rows
        ]
        return spark.createDataFrame(origin, f"{_LEFT}{f', {_ORIGIN}' if append else ''}{more}")

    sign = f", {images.SIGN} int"
    runs = spark.createDataFrame([one for cell in some for one in cell.after[1]], right)
    moved = spark.createDataFrame(
        [(*one, by) for cell in some for one, by in cell.right], right + sign
    )
    asking = left([(one, 1) for cell in some for one in cell.after[0]])
    came = left([one for cell in some for one in cell.left], sign)
    netted = [images.net(rows, rows.columns[:-1], changes=True).persist() for rows in (came, moved)]
    sources = [asking, runs]
    keys = recompute.touched(kind, netted, bucket, sources).persist()
    _within({values(row[:-2]): values(row[-2:]) for row in keys.collect()}, some, append=append)
    held = spark.createDataFrame(
        [(*key, *own) for key, own in before.items()], query(kind, sources).schema
    )
    scope = Touched(keys, keys.count(), Pruning())
    found = recompute.difference(kind, sources, scope, held).drop(difference.BEFORE).collect()
    for one in (keys, *netted):
        one.unpersist()
    return found


def _within(
    times: dict[tuple[Any, ...], tuple[Any, ...]], some: Sequence[Cell], *, append: bool
) -> None:
    """A touched row's time lies between those that changes show of its key: what ended before is
    not needed.
    """
    met = 0
    for row in (row for cell in some for row in cell.after[0]):
        low, high = times.get(
            (f"l{row.cell}:{row.id}",) if append else (row.cell, row.id), (None, None)
        )
        assert row.at is None or low is None or low <= row.at <= high, row
        met += row.at is not None and low is not None
    assert met > 100
