"""Jobs, plans, log opens, commits and files of a batch: what a small run costs, whatever its rows
are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.progress import StepHook
from draindown.spark.derived.batch import TableSlice, Versions
from draindown.spark.runs.drain import drain
from tests.derivation import Derivation
from tests.landing import Landing
from tests.spark.counting import Cost, Counter

BATCHES = 3  # the first creates the tables, the second is counted with the third


def changes(batch: int) -> list[str]:
    """Inserts, updates, a delete and a quarantined row."""
    rows: list[dict[str, Any]] = [
        {"id": f"k{batch:03}{n:03}", "seq": batch, "a": n} for n in range(50)
    ]
    rows += [{"id": f"k{batch - 1:03}{n:03}", "seq": batch, "a": n} for n in range(20)]
    rows.append({"id": f"k{batch - 1:03}030", "seq": batch, "op": "d"})
    return [*map(json.dumps, rows), "no json"]


def new(batch: int) -> list[str]:
    """Rows of keys that nothing was known of."""
    return [json.dumps({"id": f"k{batch:03}{n:03}", "seq": 1, "a": n}) for n in range(50)]


# What a batch cost when its side rows, its tombstones and its slice still went through Spark: 18
# jobs and 30 plans, 10 and 16, 4 and 9, as many commits and files.
KINDS: dict[str, Any] = {
    "changes": (changes, {}, Cost(jobs=14, plans=21, opens=13, commits=5, files=5)),
    "new keys": (new, {}, Cost(jobs=6, plans=12, opens=5, commits=3, files=3)),
    "append": (new, {"target": {}}, Cost(jobs=3, plans=7, opens=5, commits=3, files=3)),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["changes", *(pytest.param(k, marks=pytest.mark.long) for k in ("new keys", "append"))]
)
def test_a_batch_costs_no_more_than_it_did(tmp_path: Path, spark: SparkSession, kind: str) -> None:
    made, flow, most = KINDS[kind]
    landing = Landing(tmp_path, source={"max_files_per_trigger": 1}, **flow)
    for batch in range(1, BATCHES + 1):
        landing.deliver(*made(batch), name=f"{batch}.json")
    counter = Counter(spark, landing.layout.lake)
    each = counter.counting(
        lambda reached: drain(landing.request(), spark, progress=lambda _: None, reached=reached)
    )
    assert len(each) == BATCHES - 1
    assert (each[-1].commits, each[-1].files) == (most.commits, most.files)
    assert (
        each[-1].jobs <= most.jobs and each[-1].plans <= most.plans and each[-1].opens <= most.opens
    ), each[-1]


_ROW = "{at}, 1, 'k{key}', timestamp'2026-03-01 00:{minute:02}:00', {at}, 1.5, ''"
DERIVED: dict[str, tuple[dict[str, Any], Cost]] = {
    "windows": (
        {"window": {"time": "at", "size": "5 minutes", "measures": {"rows": "count(*)"}}},
        Cost(jobs=16, plans=25, opens=5, commits=3, files=4),
    ),
    "sessions": (
        {
            "session": {
                "time": "at",
                "gap": "5 minutes",
                "group_by": ["k"],
                "measures": {"rows": "count(*)"},
            }
        },
        Cost(jobs=29, plans=31, opens=5, commits=3, files=4),
    ),
    "newest": (
        {"deduplicate": {"keys": ["k"], "sequence_by": ["at"], "keep": "last"}},
        Cost(jobs=23, plans=27, opens=5, commits=3, files=5),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    "kind", ["newest", *(pytest.param(k, marks=pytest.mark.long) for k in ("windows", "sessions"))]
)
def test_an_increment_of_a_derived_table_costs_no_more_than_it_did(
    tmp_path: Path, spark: SparkSession, kind: str
) -> None:
    """An increment after the fill, of rows that all come, some of them to keys that are there."""
    parts, most = DERIVED[kind]
    derived = Derivation(tmp_path, spark, appended=True, **parts)

    for batch in range(BATCHES):
        ids = range(50 * batch, 50 * batch + 50)
        rows = ", ".join(
            f"({_ROW.format(at=at, key=at % 20, minute=at % 60)}, now())" for at in ids
        )
        derived.sql(f"insert into {{t}} values {rows}")

    def batches(reached: StepHook) -> None:
        for batch in range(BATCHES):
            piece = Versions(derived.path, batch or None, batch + 1)  # version 0 has no rows
            derived.attempt(TableSlice(batch + 1, [piece]), batch, reached)

    each = Counter(spark, derived.layout.lake).counting(batches)
    assert len(each) == BATCHES - 1
    # of one task or two that write: the session's settings are not those of a drain
    assert each[-1].commits == most.commits and each[-1].files <= most.files, each[-1]
    assert (
        each[-1].jobs <= most.jobs and each[-1].plans <= most.plans and each[-1].opens <= most.opens
    ), each[-1]
