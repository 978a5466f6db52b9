"""Whatever is delivered in whatever way, the table is the fold of its rows and the ledger closes."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.model import fold
from tests.spark.landing import COLUMNS, KEYED, Injected, Landing
from tests.strategies import Case, Drain, Line, cases

# The same examples every time: a failure in CI is one anybody can have. `--hypothesis-seed` and more examples: `make faults`.
_STABLE = settings(
    derandomize=True,
    deadline=None,
    max_examples=14,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

FLOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "derived": {"transform": "t.part_of_key", "target": KEYED | {"partition_by": ["second"]}},
    "unprovable": {"target": KEYED | {"partition_by": ["part"]}},
    "key": {
        "columns": {"region": "string not null"},
        "target": KEYED | {"keys": ["id", "region"], "partition_by": ["region"]},
    },
}
_TRANSFORM = "def part_of_key(df):\n    return df.withColumn('second', F.substring('id', 2, 1))\n"


@contextmanager
def _landing(case: Case, **flow: Any) -> Iterator[Landing]:
    flow = dict(flow, rules={"sane": "a is null or a >= 0"}, columns=COLUMNS | flow.get("columns", {}))
    flow["source"] = {"max_files_per_trigger": case.files_per_batch}
    home = Path(tempfile.mkdtemp(prefix="property-"))
    try:
        landing = Landing(home / "p", **flow)
        landing.transform("t", _TRANSFORM)
        yield landing
    finally:
        shutil.rmtree(home)


def _play(landing: Landing, spark: SparkSession, drain: Drain) -> None:
    for file in drain.files:
        landing.deliver(*[line.raw for line in file])
    if drain.fault:
        try:
            landing.drain(spark, fault=drain.fault)
        except Injected:
            pass
        except PySparkException as error:
            assert "Injected" in str(error)
    landing.drain(spark)
    if drain.replay:
        before = landing.rows("count(*) as n"), landing.ledger()
        landing.forget_last_batch()
        landing.drain(spark)
        assert (landing.rows("count(*) as n"), landing.ledger()) == before


def _holds(landing: Landing, case: Case, keys: tuple[str, ...]) -> None:
    live, dead = fold(case.changes)
    found = landing.rows()
    names = ("op", "a", "b", "part", "_rescued")
    assert Counter(tuple(row[k] for k in keys) for row in found) == Counter(live.keys())
    for row in found:
        change = live[tuple(row[k] for k in keys)]
        assert row["seq"] == change.sequence
        assert {name: row[name] for name in names} == change.content
    stones: dict[tuple[Any, ...], int] = {}
    for row in landing.tombstones():
        key = tuple(row[k] for k in keys)
        stones[key] = max(row["seq"], stones.get(key, 0))
    deletes = {(change.key, change.sequence) for change in case.changes if change.delete}
    assert {key: stones.get(key) for key in dead} == dead
    assert set(stones.items()) <= deletes
    assert all(stones[key] < live[key].sequence for key in stones.keys() & live.keys())


def _closes(landing: Landing, case: Case) -> None:
    total = landing.totals()
    assert total["lines"] == len(case.lines)
    assert total["blank"] == sum(not line.raw.strip() for line in case.lines)
    assert total["quarantined"] == len(case.refused)
    assert total["files"] == sum(len(drain.files) for drain in case.drains)
    refused = landing.quarantine()
    said = [":".join(filter(None, (row["reason"], row["field"]))) for row in refused]
    assert sorted(said) == case.refused
    files = [file for drain in case.drains for file in drain.files]
    for row in refused:
        lines = files[int(Path(row["file"]).stem) - 1]
        assert lines[row["position"] - 1].raw == (row["raw_bytes"] or row["raw"].encode())


@pytest.mark.parametrize("name", FLOWS)
def test_keyed_table_is_the_fold_of_its_input(spark: SparkSession, name: str) -> None:
    keys = tuple(FLOWS[name].get("target", KEYED)["keys"])

    @_STABLE
    @given(cases(keys))
    def holds(case: Case) -> None:
        with _landing(case, **FLOWS[name]) as landing:
            for drain in case.drains:
                _play(landing, spark, drain)
            _holds(landing, case, keys)
            _closes(landing, case)

    holds()


def test_append_table_holds_each_record_once(spark: SparkSession) -> None:
    """A count per content is the witness: a row that is applied twice can't hide behind its key."""

    @_STABLE
    @given(cases().map(_without_deletes))
    def holds(case: Case) -> None:
        with _landing(case, target={}) as landing:
            for drain in case.drains:
                _play(landing, spark, drain)
            _closes(landing, case)
            found = Counter((row["id"], row["seq"], row["b"]) for row in landing.rows("id, seq, b"))
            assert found == Counter((c.key[0], c.sequence, c.content.get("b")) for c in case.changes)
            assert landing.totals()["inserted"] == len(case.changes) == landing.totals()["applied"]

    holds()


def _without_deletes(case: Case) -> Case:
    """The case as an append flow sees it: a delete is a row like any other, and held to its contract."""
    drains = [replace(drain, files=tuple(tuple(map(_plain, file)) for file in drain.files)) for drain in case.drains]
    return replace(case, drains=tuple(drains))


def _plain(line: Line) -> Line:
    if not line.change or not line.change.delete:
        return line
    row = json.loads(line.raw)
    return Line(line.raw, reason="type:a") if "a" in row else Line(line.raw, replace(line.change, content=row))
