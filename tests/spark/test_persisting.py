"""What a batch keeps in memory stays there until the batch is done: it is parsed once and compared
once.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.lake.table import Table
from draindown.spark.batch import counting
from draindown.spark.session import INTERPRETED, configured
from draindown.spark.targets import delta_target, resolution
from draindown.spark.targets.delta_target import Writer
from draindown.spark.tuning import HASH_BOUND, PARTITIONS, TUNING, Tuning
from tests.ageing import age
from tests.landing import COLUMNS, KEYED, Landing


def _line(key: str, seq: int, op: str = "u") -> str:
    return json.dumps({"id": key, "seq": seq, "op": op})


_UNCOMPILED = {name: value for name, value in INTERPRETED.items() if "codegen" in name}
"""For what adaptive execution decides: generated code would only take its time."""


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Landing:
    """Six keys and a deleted one."""
    landing = Landing(tmp_path_factory.mktemp("held"))
    landing.deliver(*[_line(key, 1) for key in "abcdef"], _line("gone", 2, "d"))
    landing.apply(spark)
    return landing


@pytest.fixture
def held(made: Landing, tmp_path: Path) -> Landing:
    """A copy of it."""
    return made.copied(tmp_path / "held")


def _stored(spark: SparkSession) -> set[int]:
    """Ids of what is persisted, with all partitions computed, but for what Delta keeps of its
    logs.
    """
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    own = [one for one in found if not str(one.name()).startswith("Delta Table State")]
    return {one.id() for one in own if one.numCachedPartitions() == one.numPartitions()}


@pytest.mark.full
def test_the_writes_of_a_batch_throw_nothing_away_that_it_still_reads(
    held: Landing, spark: SparkSession
) -> None:
    landing = held
    landing.deliver(
        _line("a", 3),
        _line("b", 3),
        _line("c", 3, "d"),
        _line("x", 3, "d"),
        _line("d", 0),
        "no json",
    )
    stored: dict[str, set[int]] = {}

    before = _stored(spark)
    report = landing.apply(
        spark, reached=lambda step: stored.update({step: _stored(spark) - before})
    )

    assert report.drain is not None
    totals = report.drain.totals
    assert (
        totals["deleted"],
        totals["tombstoned"],
        totals["superseded"],
        totals["quarantined"],
    ) == (1, 1, 1, 1)
    parsed = stored["quarantined"]
    assert len(parsed) == 1, "the parsed batch"
    assert stored["remembered"] > parsed, (
        "the tombstones are written: what was compared is still there"
    )
    assert stored["merged"] == stored["remembered"], "and after the MERGE, which read it"


@pytest.mark.full
def test_a_table_that_nobody_wrote_to_for_long_is_compared_as_it_stands(
    held: Landing, spark: SparkSession
) -> None:
    """Delta refuses to read versions that are older than what VACUUM keeps; the newest one is none
    of them.
    """
    landing = held
    for path in (landing.layout.tables.target.path, landing.layout.tables.tombstones.path):
        age(path, days=400)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    landing.deliver(_line("a", 3), _line("b", 0), _line("gone", 1), _line("c", 3, "d"))
    report = landing.apply(spark)

    assert report.drain is not None
    totals = report.drain.totals
    assert (totals["updated"], totals["deleted"], totals["superseded"]) == (1, 1, 2)
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == {
        "a": 3,
        **dict.fromkeys("bdef", 1),
    }


@pytest.mark.long
def test_a_small_batch_is_compared_with_many_rows_by_compiled_code(
    tmp_path: Path, spark: SparkSession
) -> None:
    """As many as lie in files that can hold its keys: those of other ranges are no work."""
    landing = Landing(tmp_path)
    for keys in ("abc", "xyz"):
        landing.deliver(*[_line(key, 1) for key in keys])
        landing.apply(spark)
    read, compared = mock.Mock(wraps=counting.count_batch), mock.Mock(wraps=resolution.count)
    found: list[tuple[str, str]] = []

    def evaluated(step: str, frame: DataFrame) -> None:
        found.append((step, str(frame.sparkSession.conf.get("spark.sql.codegen.wholeStage"))))

    read.side_effect = lambda parsed, *_: evaluated("read", parsed) or mock.DEFAULT
    compared.side_effect = lambda fated: evaluated("compared", fated) or mock.DEFAULT
    with (
        mock.patch.object(counting, "count_batch", read),
        mock.patch.object(resolution, "count", compared),
    ):
        for seq, held in ((2, 4), (3, 3)):
            landing.deliver(_line("b", seq), _line("c", seq, "d"))
            landing.apply(spark, tuning=Tuning(little_held=held))
    assert found == [
        ("read", "false"),
        ("compared", "false"),
        ("read", "false"),
        ("compared", "true"),
    ]
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == {
        "a": 1,
        "b": 3,
        "x": 1,
        "y": 1,
        "z": 1,
    }


@pytest.mark.long
def test_a_small_batch_is_sent_to_a_table_that_is_much_larger_and_hashed_by_its_merge(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Adaptive execution, which the bound is for, is on throughout; so small a table would be
    broadcast, or written anew by another join.
    """
    landing = Landing(tmp_path, maintenance={"copy_on_write": 0})
    landing.deliver(*[_line(key, 1) for key in "abcdefghijkl"])
    landing.apply(spark)
    seen: set[int] = set()
    found = []
    for seq, tuning in enumerate(
        (Tuning(little_held=13), Tuning(little_held=12), Tuning(0, 12, hashed_share=2**40)), 2
    ):
        # b is a tie
        landing.deliver(_line("a", seq), _line("l", seq, "d"), _line(f"n{seq}", 1), _line("b", 1))
        seen |= set(_plans(spark))
        with (
            configured(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1", **_UNCOMPILED}),
            mock.patch.object(resolution, "among", wraps=resolution.among) as among,
        ):
            landing.apply(spark, tuning=replace(tuning, little=0, much_more=3))
        merged = [
            plan
            for at, plan in _plans(spark).items()
            if at not in seen and "_target_row_present_" in plan
        ]
        outer = [line for plan in merged for line in plan.splitlines() if "LeftOuter" in line]
        assert outer
        hashed, sorted_ = (
            all(join in line for line in outer) for join in ("ShuffledHashJoin", "SortMergeJoin")
        )
        found.append((among.called, hashed, sorted_))
    assert found == [(False, False, True), (True, True, False), (True, False, True)]
    assert spark.conf.get(HASH_BOUND) == "0b"
    expected = dict.fromkeys([*"bcdefghijk", "n2", "n3", "n4"], 1) | {"a": 4}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


def _plans(spark: SparkSession) -> dict[int, str]:
    """The plans of everything the session ran, as adaptive execution left them, by number."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    ran = [found.apply(at) for at in range(found.size())]
    return {
        one.executionId(): one.physicalPlanDescription().partition("Initial Plan")[0] for one in ran
    }


def _marks(table: str) -> list[int]:
    """How many files each of the newest two commits, the newest first, marked rows in."""
    return [commit.metric("numTargetDeletionVectorsAdded") for commit in Table(table).commits(2)]


def _files(table: str) -> list[dict[str, Any]]:
    return Table(table).files(["region"])


@pytest.mark.full
def test_little_files_are_written_anew_and_rows_are_marked_in_others(
    held: Landing, spark: SparkSession
) -> None:
    """What every reader would pay for, rows marked as deleted and files beside them, does not come
    to be.
    """
    landing = held
    landing.deliver(_line("a", 2), _line("f", 2))
    landing.apply(spark, tuning=Tuning(copied=3))
    landing.deliver(_line("b", 3), _line("f", 3, "d"), _line("g", 1))
    landing.apply(spark, tuning=Tuning(copied=1))

    assert [number == 0 for number in _marks(landing.layout.tables.target.path)] == [False, True], (
        "the newest first"
    )
    expected = dict.fromkeys("cdeg", 1) | {"a": 2, "b": 3}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


@pytest.mark.long
def test_files_with_marks_are_written_anew_without_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    landing = Landing(tmp_path, maintenance={"copy_on_write": 0})
    landing.deliver(*[_line(key, 1) for key in "abcdef"])
    landing.apply(spark)
    landing.deliver(_line("a", 2), _line("f", 2, "d"))
    landing.apply(spark)
    changed = Landing(tmp_path)
    changed.deliver(*[_line(key, 3) for key in "abcde"], name="later.json")
    report = changed.apply(spark)

    added, before = _marks(landing.layout.tables.target.path)
    assert (before > 0, added) == (True, 0)
    assert sum(file["num_records"] for file in _files(landing.layout.tables.target.path)) == 5, (
        "nothing is left of what was deleted"
    )
    assert report.drain is not None and report.drain.totals["updated"] == 5
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == dict.fromkeys("abcde", 3)


@pytest.mark.long
def test_a_batch_of_new_keys_adds_a_file_and_looks_for_no_rows_to_change(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Unless the table is so large that it would be sorted for the keys. Its files wait for
    compaction.
    """
    landing = Landing(tmp_path)
    batches = (("ab", 12), ("cd", 12), ("be", 12), ("fz", 5), ("gy", 12))
    for seq, (keys, little) in enumerate(batches, 1):
        landing.deliver(*[_line(key, seq) for key in keys], _line("a0", seq, "d"))
        with configured(spark, INTERPRETED):
            landing.apply(spark, tuning=Tuning(little_held=little, much_more=1))
        assert seq > 2 or len(_files(landing.layout.tables.target.path)) == seq

    merges = [
        commit
        for commit in reversed(DeltaTable(landing.layout.tables.target.path).history())
        if commit["operation"] == "MERGE"
    ]
    changing = [
        json.loads(commit["operationParameters"]["matchedPredicates"]) != [] for commit in merges
    ]
    assert changing == [False, False, True, True, False]
    assert [commit["operationMetrics"]["numTargetRowsInserted"] for commit in merges] == [
        "2",
        "2",
        "1",
        "2",
        "2",
    ]
    expected = {key: seq for seq, (keys, _) in enumerate(batches, 1) for key in keys}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


@pytest.mark.full
def test_a_key_that_came_to_the_table_since_it_was_compared_is_not_doubled(
    held: Landing, spark: SparkSession
) -> None:
    landing = held
    landing.deliver(_line("y", 1), _line("z", 1))
    merge, inserting = delta_target.merge, []

    def merged(writer: Writer, fated: DataFrame, *rest: Any, **more: Any) -> None:
        inserting.append(rest[1].update is None)
        rows = (
            spark.read.format("delta")
            .load(writer.layout.tables.target.path)
            .limit(1)
            .withColumn("id", F.lit("y"))
        )
        rows.write.format("delta").mode("append").save(writer.layout.tables.target.path)
        merge(writer, fated, *rest, **more)

    with mock.patch.object(delta_target, "merge", merged), pytest.raises(TerminalError) as caught:
        landing.apply(spark)
    assert (caught.value.code, inserting) == ("ledger-does-not-add-up", [True])
    assert sorted(row["id"] for row in landing.rows("id")) == [*"abcdef", "y", "z"]


@pytest.mark.long
def test_little_partitions_of_a_large_table_are_written_anew(
    tmp_path: Path, spark: SparkSession
) -> None:
    """What counts are the files that can hold the batch's keys."""
    keyed = KEYED | {"keys": ["id", "region"], "partition_by": ["region"]}
    columns = COLUMNS | {"region": "string not null"}
    landing = Landing(
        tmp_path, columns=columns, target=keyed, maintenance={"copy_on_write": "16kb"}
    )

    def line(key: str, region: str, seq: int, b: str = "") -> str:
        return json.dumps({"id": key, "region": region, "seq": seq, "op": "u", "b": b})

    noise = [random.Random(number).randbytes(600).hex() for number in range(40)]
    few = [line("a", "little", 1), line("b", "little", 1)]
    landing.deliver(*few, *[line(f"k{n}", "large", 1, b) for n, b in enumerate(noise)])
    landing.apply(spark)
    landing.deliver(line("a", "little", 2))
    landing.apply(spark)
    landing.deliver(line("k1", "large", 2))
    landing.apply(spark)

    assert _marks(landing.layout.tables.target.path) == [1, 0]
    files = Counter(file["partition.region"] for file in _files(landing.layout.tables.target.path))
    assert files["little"] == 1 < files["large"]


@pytest.mark.full
@pytest.mark.parametrize("batches", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_batch_is_shuffled_into_as_many_partitions_as_it_needs(
    tmp_path: Path, spark: SparkSession, batches: int
) -> None:
    """One for little, which is then one file; more for much, up to the tasks there are."""
    given = ((0, "1", TUNING), (0, "1", Tuning(shuffled=1)), ("1mb", "2", TUNING))
    found = []
    for seq, (anew, partitions, tuning) in enumerate(given[:batches], 1):
        landing = Landing(tmp_path, maintenance={"copy_on_write": anew})
        landing.deliver(_line("a", seq), _line(f"b{seq}", seq), name=f"{seq}.json")
        tasks = mock.patch.object(SparkContext, "defaultParallelism", 3)
        with configured(spark, {PARTITIONS: partitions}), tasks:
            found += _partitions(landing, spark, tuning)
    assert found == [1, 3, 1][:batches]
    expected = {"a": batches} | {f"b{seq}": seq for seq in range(1, batches + 1)}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


def _partitions(landing: Landing, spark: SparkSession, tuning: Tuning) -> list[int]:
    """Drain, and tell into how many partitions each MERGE was to shuffle."""
    found: list[int] = []

    def merged(writer: Writer, fated: DataFrame, *rest: Any, **more: Any) -> None:
        found.append(int(str(fated.sparkSession.conf.get(PARTITIONS))))
        merge(writer, fated, *rest, **more)

    merge = delta_target.merge
    with mock.patch.object(delta_target, "merge", merged):
        landing.apply(spark, tuning=tuning)
    return found
