"""Whatever is delivered in whatever way, the table is the fold of its rows and the ledger
closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import SparkSession

from draindown.spark.runs.rebuild import rebuild
from draindown.spark.session import INTERPRETED, configured
from draindown.spark.targets import resolution
from draindown.spark.tuning import TUNING, Tuning
from tests.landing import COLUMNS, KEYED, Injected, Landing
from tests.model import Change, arrivals, fold
from tests.strategies import Case, Drain, Line, cases

# The same examples every time: a failure in CI is one that anybody can have.
_STABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # an example takes half a minute: one that fails says enough by itself
    suppress_health_check=list(HealthCheck),
)
_FEW, _MANY = settings(_STABLE, max_examples=1), settings(_STABLE, max_examples=10)

FLOWS: dict[str, dict[str, Any]] = {
    "provable partitions": {
        "columns": COLUMNS | {"region": "string not null"},
        "transform": "t.part_of_key",
        "target": KEYED | {"keys": ["id", "region"], "partition_by": ["region", "second"]},
    },
    "partition that may move": {
        "target": KEYED | {"partition_by": ["part"]},
        "maintenance": {"copy_on_write": 0},
    },
    "key that a transform makes": {
        "transform": "t.lowered",
        "target": KEYED | {"partition_by": ["second"]},
    },
    "no partitions": {},
}
_TRANSFORM = """
def part_of_key(df):
    digit = F.regexp_extract("id", "^.([0-9]?)", 1)
    return df.withColumn("second", F.when(~F.col("id").startswith("z"), digit))


def lowered(df):
    return df.withColumn("second", F.substring("id", 1, 1)).withColumn("id", F.lower("id"))
"""


@contextlib.contextmanager
def _landing(case: Case, **flow: Any) -> Iterator[Landing]:
    flow = flow | {
        "rules": {"sane": "a is null or a >= 0"},
        "source": {"max_files_per_trigger": case.files_per_batch},
    }
    home = Path(tempfile.mkdtemp(prefix="property-"))
    try:
        landing = Landing(home / "p", **flow)
        landing.transform("t", _TRANSFORM)
        yield landing
    finally:
        shutil.rmtree(home)


def _play(landing: Landing, spark: SparkSession, drain: Drain, tuning: Tuning = TUNING) -> None:
    for file in drain.files:
        path = landing.deliver(*[line.raw for line in file])
        os.utime(path, ns=(0, _mtime(landing.delivered)))
    if drain.fault:
        with contextlib.suppress(Injected):  # a step that no batch reaches faults nothing
            landing.drain(spark, fault=drain.fault, tuning=tuning)
    landing.drain(spark, tuning=tuning)
    if drain.replay:
        before = landing.rows("count(*) as n"), landing.ledger()
        landing.forget_last_batch()
        landing.drain(spark, tuning=tuning)
        assert (landing.rows("count(*) as n"), landing.ledger()) == before


def _mtime(number: int) -> int:
    """The mtime of a file, in nanoseconds: each fourth lies far ahead, the others long ago and in
    another order.
    """
    return (
        4_102_444_800 * 10**9
        if number % 4 == 0
        else 1_577_836_800 * 10**9 + number * 7919 % 1000 * 10**9 + 1999
    )


def _batches(landing: Landing, case: Case) -> list[list[Change]]:
    """The changes of each batch, by the intake: each with the earlier of when its file was seen and
    its mtime.
    """
    files = [file for drain in case.drains for file in drain.files]
    found: dict[int, list[Change]] = {}
    for row in landing.read(landing.layout.tables.intake(1).path):
        seen, mtime = round(row["first_seen"].timestamp() * 10**6), row["mtime_ns"] // 1000
        lines = files[int(Path(row["input"]).stem) - 1]
        changes = [replace(line.change, arrived=min(seen, mtime)) for line in lines if line.change]
        found.setdefault(row["slice"], []).extend(changes)
    return [found[cut] for cut in sorted(found)]


def _same_counts(found: Counter[Any], expected: Counter[Any], case: Case) -> None:
    wrong = [
        (key, found[key], expected[key])
        for key in found.keys() | expected.keys()
        if found[key] != expected[key]
    ]
    assert not wrong, f"(key, found, expected): {wrong[:5]}; {_of(wrong[0][0], case)}"


def _of(key: tuple[Any, ...], case: Case) -> str:
    """Where the changes of a key came, for whoever reads a failure."""
    places = [
        f"drain {d} file {f} line {n}: {line.raw.decode(errors='replace')}"
        for d, drain in enumerate(case.drains)
        for f, file in enumerate(drain.files)
        for n, line in enumerate(file, 1)
        if line.change and line.change.key == key
    ]
    return "\n".join([f"{case!r} {key}", *places])


def _holds(landing: Landing, case: Case, keys: tuple[str, ...]) -> None:
    live, dead = fold(case.changes)
    found = landing.rows()
    names = ("op", "a", "b", "part", "_rescued_data")
    _same_counts(Counter(tuple(row[k] for k in keys) for row in found), Counter(live.keys()), case)
    for row in found:
        key = tuple(row[k] for k in keys)
        assert (row["seq"], {name: row[name] for name in names}) == (
            live[key].sequence,
            live[key].content,
        ), _of(key, case)
    came = {
        tuple(row[k] for k in keys): round(row["_arrived_at"].timestamp() * 10**6) for row in found
    }
    assert came == arrivals(_batches(landing, case))
    stones: dict[tuple[Any, ...], int] = {}
    for row in landing.tombstones():
        key = tuple(row[k] for k in keys)
        stones[key] = max(row["seq"], stones.get(key, 0))
    deletes = {(change.key, change.sequence) for change in case.changes if change.delete}
    for key, died in dead.items():
        assert stones.get(key) == died, _of(key, case)
    assert not set(stones.items()) - deletes
    assert not [key for key in stones.keys() & live.keys() if stones[key] >= live[key].sequence]


def _closes(landing: Landing, case: Case) -> None:
    total = landing.totals()
    assert total["lines"] == len(case.lines)
    assert total["blank"] == sum(not line.raw.strip() for line in case.lines)
    assert total["quarantined"] == len(case.refused)
    assert total["inputs"] == sum(len(drain.files) for drain in case.drains)
    refused = landing.quarantine()
    said = [":".join(filter(None, (row["reason"], row["field"]))) for row in refused]
    assert Counter(said) == Counter(case.refused)
    files = [file for drain in case.drains for file in drain.files]
    for row in refused:
        lines = files[int(Path(row["origin"]["input"]).stem) - 1]
        assert lines[row["origin"]["position"] - 1].raw == (row["raw_bytes"] or row["raw"].encode())


def _originated(landing: Landing, case: Case) -> None:
    """Each good line is there once, by file and number, with the arrival of its file."""
    files = [file for drain in case.drains for file in drain.files]
    rows = landing.rows()
    found = Counter(
        (Path(row["_origin"]["input"]).name, row["_origin"]["position"]) for row in rows
    )
    wanted = [
        (f"{at:03}.json", n)
        for at, file in enumerate(files, 1)
        for n, line in enumerate(file, 1)
        if line.change
    ]
    assert found == Counter(wanted)
    taken = {row["input"]: row for row in landing.read(landing.layout.tables.intake(1).path)}
    for row in rows:
        file = taken[row["_origin"]["input"]]
        assert row["_arrived_at"].timestamp() == min(
            file["first_seen"].timestamp(), file["mtime_ns"] // 1000 / 10**6
        )


def _keyed(spark: SparkSession, name: str, examples: settings, tuning: Tuning = TUNING) -> None:
    keys = tuple(FLOWS[name].get("target", KEYED)["keys"])

    @examples
    @given(
        cases(keys).map(_lowered) if FLOWS[name].get("transform") == "t.lowered" else cases(keys)
    )
    def holds(case: Case) -> None:
        with _landing(case, **FLOWS[name]) as landing:
            for drain in case.drains:
                _play(landing, spark, drain, tuning)
            _holds(landing, case, keys)
            _closes(landing, case)

    holds()


def _appended(spark: SparkSession, examples: settings) -> None:
    """A count per content is the witness: a row that is applied twice can't hide behind its key."""

    @examples
    @given(cases().map(_without_deletes))
    def holds(case: Case) -> None:
        with _landing(case, target={}) as landing:
            for drain in case.drains:
                _play(landing, spark, drain)
            _closes(landing, case)
            found = Counter((row["id"], row["seq"], row["b"]) for row in landing.rows("id, seq, b"))
            _same_counts(
                found,
                Counter((c.key[0], c.sequence, c.content.get("b")) for c in case.changes),
                case,
            )
            assert landing.totals()["inserted"] == len(case.changes) == landing.totals()["applied"]
            _originated(landing, case)
            rebuild(landing.request("again"), spark, progress=lambda line: None)
            _originated(landing, case)

    holds()


@pytest.mark.parametrize("name", list(FLOWS)[:1])
@pytest.mark.long
def test_keyed_table_is_the_fold_of_its_input(spark: SparkSession, name: str) -> None:
    _keyed(spark, name, _FEW)


@pytest.mark.parametrize("name", list(FLOWS)[1:2])
@pytest.mark.long
def test_so_it_is_where_keys_are_looked_up_and_rows_marked_in_a_large_table(
    spark: SparkSession, name: str
) -> None:
    looking = mock.patch.object(resolution, "among", wraps=resolution.among)
    with (
        looking as looked_up,
        configured(spark, INTERPRETED),
    ):  # generated code would only take its time
        _keyed(spark, name, _FEW, Tuning(little_held=0, much_more=0))
    assert looked_up.called


@pytest.mark.long
def test_append_table_holds_each_record_once(spark: SparkSession) -> None:
    _appended(spark, _FEW)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FLOWS)
def test_keyed_table_is_the_fold_of_much_input(spark: SparkSession, name: str) -> None:
    _keyed(spark, name, _MANY)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_append_table_holds_each_of_many_records_once(spark: SparkSession) -> None:
    _appended(spark, _MANY)


def _each_line(case: Case, change: Callable[[Line], Line]) -> Case:
    drains = [
        replace(drain, files=tuple(tuple(map(change, file)) for file in drain.files))
        for drain in case.drains
    ]
    return replace(case, drains=tuple(drains))


def _lowered(case: Case) -> Case:
    """The case as a flow sees it whose transform gives keys another name than the input does."""

    def lower(line: Line) -> Line:
        if not line.change:
            return line
        return replace(line, change=replace(line.change, key=(str(line.change.key[0]).lower(),)))

    return _each_line(case, lower)


def _without_deletes(case: Case) -> Case:
    """The case as an append flow sees it: a delete is a row like any other, and held to its
    contract.
    """
    return _each_line(case, _plain)


def _plain(line: Line) -> Line:
    if not line.change or not line.change.delete:
        return line
    row = json.loads(line.raw)
    return (
        Line(line.raw, reason="type:a")
        if "a" in row
        else Line(line.raw, replace(line.change, content=row))
    )
