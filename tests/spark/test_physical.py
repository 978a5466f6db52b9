"""The physical plan that `explain` shows is that of the next batch: it reads the same, and writes
nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.physical import Physical, marked, physical
from draindown.spark.targets.delta_target import TableWriter
from tests.derivation import Derivation

_START = datetime(2026, 3, 1, tzinfo=UTC)
_WINDOW = {
    "time": "at",
    "size": "1 hour",
    "group_by": ["k"],
    "measures": {"c": "count(*)", "s": "sum(n)"},
}
_TEXT = """\
== Physical Plan ==
AdaptiveSparkPlan (8)
+- SortMergeJoin FullOuter (7)
   :- Sort (4)
   :  +- Exchange (3)
   :     +- * Filter (2)
   :        +- Scan parquet  (1)
   +- BroadcastExchange (6)
      +- ReusedExchange (5)


(1) Scan parquet
Output [1]: [a#1]
PushedFilters: [IsNotNull(a), GreaterThan(a,3)]
PartitionFilters: []
ReadSchema: struct<a:int>

(3) Exchange
Input [1]: [a#1]
Arguments: hashpartitioning(a#1, 200)
"""


def test_shuffles_broadcasts_and_filters_are_marked() -> None:
    tree, pushed = marked(_TEXT)
    marks = [line.partition("<- ")[2] for line in tree.splitlines() if "<- " in line]
    assert marks == [
        "shuffle",
        "pushed: PushedFilters [IsNotNull(a), GreaterThan(a,3)]",
        "broadcast",
    ]
    assert (
        pushed == ["PushedFilters [IsNotNull(a), GreaterThan(a,3)]"]
        and "hashpartitioning" not in tree
    )


def _row(number: int, hour: int) -> tuple[Any, ...]:
    return number, 1, "a", _START + timedelta(hours=hour, minutes=30), 1, 0.5, ""


def _planned(it: Derivation, start: int | None) -> Physical:
    batch = DeriveBatch(
        writer=TableWriter(it.layout, it.flow, 1, it.batch),
        flow=it.flow,
        slice=TableSlice(it.batch + 1, [Versions(it.path, start, it.version)]),
        run_id="",
        changed_at=_START,
        started_at=_START,
    )
    return physical(it.spark, batch)


@pytest.mark.full
def test_the_plan_reads_what_the_next_batch_reads_and_writes_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    it = Derivation(tmp_path, spark, window=_WINDOW)
    for hour in range(4):
        it.insert(_row(hour, hour))
    first = _planned(it, None)
    assert first.of == "compare all rows" and (first.reads[0].files, first.reads[0].of_files) == (
        4,
        4,
    )
    assert not it.layout.tables.target.exists, "nothing is written"
    it.derive()
    it.insert(_row(9, 2))
    before = it.layout.tables.target.version
    found = _planned(it, it.consumed)
    assert found.of == "recompute what changes touch" and found.shuffles + found.broadcasts > 0
    assert (found.reads[0].table, found.reads[0].files, found.reads[0].of_files) == ("source", 2, 5)
    assert any("at" in text for text in found.pushed), found.pushed
    assert (
        found.plan.count("<- shuffle") == found.shuffles
        and it.layout.tables.target.version == before
    )
    (row,) = it.derive()
    assert row.reread == found.reads[0].rows == 2
