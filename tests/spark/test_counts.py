"""Jobs, plans, log opens, commits and files of a batch: what a small run costs, whatever its rows are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.landing import Landing
from tests.spark.counting import Cost, Counter

BATCHES = 3  # the first creates the tables, the second is counted with the third


def changes(batch: int) -> list[str]:
    """Inserts, updates, a delete and a refused row."""
    rows: list[dict[str, Any]] = [{"id": f"k{batch:03}{n:03}", "seq": batch, "a": n} for n in range(50)]
    rows += [{"id": f"k{batch - 1:03}{n:03}", "seq": batch, "a": n} for n in range(20)]
    rows.append({"id": f"k{batch - 1:03}030", "seq": batch, "op": "d"})
    return [*map(json.dumps, rows), "no json"]


def new(batch: int) -> list[str]:
    """Rows of keys that nothing was known of."""
    return [json.dumps({"id": f"k{batch:03}{n:03}", "seq": 1, "a": n}) for n in range(50)]


# What a batch cost when its side rows, its tombstones and its slice still went through Spark: 18 jobs and 30 plans, 10
# and 16, 4 and 9, as many commits and files.
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
    each = Counter(spark, landing).drain()
    assert len(each) == BATCHES - 1
    assert (each[-1].commits, each[-1].files) == (most.commits, most.files)
    assert each[-1].jobs <= most.jobs and each[-1].plans <= most.plans and each[-1].opens <= most.opens, each[-1]
