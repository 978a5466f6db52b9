"""What a batch keeps in memory stays there until the batch is done: it is parsed once and compared once."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.lake.table_log import TableLog
from draindown.spark.batch import counting, process, tuning
from draindown.spark.runs.drain import drain
from draindown.spark.session import configured
from draindown.spark.targets import delta_target, resolution
from draindown.spark.targets.delta_target import Writer
from tests.ageing import age
from tests.landing import COLUMNS, KEYED, Landing


def _line(key: str, seq: int, op: str = "u") -> str:
    return json.dumps({"id": key, "seq": seq, "op": op})


def _stored(spark: SparkSession) -> set[int]:
    """Ids of what is persisted, with all partitions computed, but for what Delta keeps of its logs."""
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    own = [one for one in found if not str(one.name()).startswith("Delta Table State")]
    return {one.id() for one in own if one.numCachedPartitions() == one.numPartitions()}


def test_the_writes_of_a_batch_throw_nothing_away_that_it_still_reads(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path)
    landing.deliver(*[_line(key, 1) for key in "abcdef"], _line("a", 2, "d"))
    landing.drain(spark)
    landing.deliver(_line("a", 3), _line("b", 3), _line("c", 3, "d"), _line("x", 3, "d"), _line("d", 0), "no json")
    stored: dict[str, set[int]] = {}

    before = _stored(spark)
    report = drain(
        landing.request(),
        spark,
        progress=lambda line: None,
        reached=lambda step: stored.update({step: _stored(spark) - before}),
    )

    assert report.drain is not None
    totals = report.drain.totals
    assert (totals["deleted"], totals["remembered"], totals["superseded"], totals["quarantined"]) == (1, 1, 1, 1)
    parsed = stored["quarantined"]
    assert len(parsed) == 1, "the parsed batch"
    assert stored["remembered"] > parsed, "the tombstones are written: what was compared is still there"
    assert stored["merged"] == stored["remembered"], "and after the MERGE, which read it"


def test_a_table_that_nobody_wrote_to_for_long_is_compared_as_it_stands(tmp_path: Path, spark: SparkSession) -> None:
    """Delta refuses to read versions that are older than what VACUUM keeps; the newest one is none of them."""
    landing = Landing(tmp_path)
    landing.deliver(*[_line(key, 2) for key in "abc"], _line("gone", 2, "d"))
    landing.drain(spark)
    for path in (landing.layout.table, landing.layout.tombstones):
        age(path, days=400)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    landing.deliver(_line("a", 3), _line("b", 1), _line("gone", 1), _line("c", 3, "d"))
    report = landing.drain(spark)

    assert report.drain is not None
    totals = report.drain.totals
    assert (totals["updated"], totals["deleted"], totals["superseded"]) == (1, 1, 2)
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == {"a": 3, "b": 2}


@pytest.mark.parametrize(("bound", "compiled"), [(3, True), (4, False)])
def test_a_small_batch_is_compared_with_many_rows_by_compiled_code(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, bound: int, compiled: bool
) -> None:
    """As many as lie in files that can hold its keys: those of other ranges are no work."""
    landing = Landing(tmp_path)
    for keys in ("abc", "xyz"):
        landing.deliver(*[_line(key, 1) for key in keys])
        landing.drain(spark)
    landing.deliver(_line("b", 2), _line("c", 2, "d"))
    monkeypatch.setattr(tuning, "_LITTLE_HELD", bound)
    read, compared = mock.Mock(wraps=counting.count_batch), mock.Mock(wraps=resolution.count)
    found: dict[str, str] = {}

    def evaluated(step: str, frame: DataFrame) -> None:
        found[step] = str(frame.sparkSession.conf.get("spark.sql.codegen.wholeStage"))

    read.side_effect = lambda parsed, *_: evaluated("read", parsed) or mock.DEFAULT
    compared.side_effect = lambda fated: evaluated("compared", fated) or mock.DEFAULT
    with mock.patch.object(counting, "count_batch", read), mock.patch.object(resolution, "count", compared):
        landing.drain(spark)

    assert found == {"read": "false", "compared": str(compiled).lower()}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == {"a": 1, "b": 2, "x": 1, "y": 1, "z": 1}


@pytest.mark.parametrize(("little", "sent", "looked_up"), [(12, 3, True), (13, 3, False), (12, 2, False), (0, 3, True)])
def test_keys_are_sent_to_a_table_that_is_much_larger_only(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, little: int, sent: int, looked_up: bool
) -> None:
    landing = Landing(tmp_path)
    landing.deliver(*[_line(key, 1) for key in "abcdefghijkl"])
    landing.drain(spark)
    for name, bound in (("_LITTLE_HELD", little), ("_SENT", sent)):
        monkeypatch.setattr(process, name, bound)
    with mock.patch.object(resolution, "among", wraps=resolution.among) as among:
        landing.deliver(_line("a", 2), _line("l", 2, "d"), _line("b", 1))  # 3 records, of which one is a tie
        landing.drain(spark)
        assert among.called == looked_up
        landing.deliver(_line("a", 3), _line("c", 2), _line("d", 2), _line("e", 0))  # 4: not four times fewer than 11
        landing.drain(spark)
        assert among.call_count == looked_up
    expected = dict.fromkeys("bdefghijk", 1) | {"a": 3, "c": 2, "d": 2}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


@pytest.mark.parametrize(
    ("little", "share", "join"),
    [(12, 32, "ShuffledHashJoin"), (13, 32, "SortMergeJoin"), (12, 2**40, "SortMergeJoin")],
)
def test_a_light_batch_is_hashed_by_the_merge_into_a_table_that_is_much_larger(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, little: int, share: int, join: str
) -> None:
    """Compiled in all cases; so small a table would be broadcast, or written anew by another join."""
    landing = Landing(tmp_path, maintenance={"copy_on_write": 0})
    landing.deliver(*[_line(key, 1) for key in "abcdefghijkl"])
    landing.drain(spark)
    for name, bound in (("_LITTLE_HELD", little), ("_LITTLE", 0), ("_HASHED_SHARE", share)):
        monkeypatch.setattr(process, name, bound)
    landing.deliver(_line("a", 2), _line("l", 2, "d"), _line("n", 1))
    before = set(_plans(spark))
    with configured(spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}):
        landing.drain(spark)
    merged = [plan for at, plan in _plans(spark).items() if at not in before and "_target_row_present_" in plan]
    outer = [line for plan in merged for line in plan.splitlines() if "LeftOuter" in line]
    assert outer
    assert all(join in line for line in outer), outer
    assert spark.conf.get(tuning._HASH_BOUND) == "0b"
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == dict.fromkeys("bcdefghijkn", 1) | {"a": 2}


def _plans(spark: SparkSession) -> dict[int, str]:
    """The plans of everything the session ran, as adaptive execution left them, by number."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    found = spark._jsparkSession.sharedState().statusStore().executionsList()
    ran = [found.apply(at) for at in range(found.size())]
    return {one.executionId(): one.physicalPlanDescription().partition("Initial Plan")[0] for one in ran}


def _marks(table: str) -> list[int]:
    """How many files each of the newest two commits, the newest first, marked rows in."""
    return [commit.metric("numTargetDeletionVectorsAdded") for commit in TableLog(table).commits(2)]


def _files(table: str) -> list[dict[str, Any]]:
    return TableLog(table).files(["region"])


@pytest.mark.parametrize(("most", "copied", "anew"), [(0, 100, False), (4 * 1024**2, 2, False), (4 * 1024**2, 3, True)])
def test_little_files_are_written_anew_and_rows_are_marked_in_others(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int, copied: int, anew: bool
) -> None:
    """What every reader would pay for, rows marked as deleted and files beside them, does not come to be."""
    landing = Landing(tmp_path, maintenance={"copy_on_write": most})
    monkeypatch.setattr(tuning, "_COPIED", copied)
    landing.deliver(*[_line(key, 1) for key in "abcdef"])
    landing.drain(spark)
    landing.deliver(_line("a", 2), _line("f", 2))
    landing.drain(spark)
    landing.deliver(_line("b", 3), _line("f", 3, "d"), _line("g", 1))
    landing.drain(spark)

    assert [number == 0 for number in _marks(landing.layout.table)] == [anew] * 2
    assert (len(_files(landing.layout.table)) == 1) == anew
    expected = dict.fromkeys("cdeg", 1) | {"a": 2, "b": 3}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


def test_files_with_marks_are_written_anew_without_them(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path, maintenance={"copy_on_write": 0})
    landing.deliver(*[_line(key, 1) for key in "abcdef"])
    landing.drain(spark)
    landing.deliver(_line("a", 2), _line("f", 2, "d"))
    landing.drain(spark)
    changed = Landing(tmp_path)
    changed.deliver(*[_line(key, 3) for key in "abcde"], name="later.json")
    report = changed.drain(spark)

    added, before = _marks(landing.layout.table)
    assert (before > 0, added) == (True, 0)
    assert sum(file["num_records"] for file in _files(landing.layout.table)) == 5, "nothing is left of what was deleted"
    assert report.drain is not None and report.drain.totals["updated"] == 5
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == dict.fromkeys("abcde", 3)


def test_a_batch_of_new_keys_adds_a_file(tmp_path: Path, spark: SparkSession) -> None:
    """There is nothing to write anew: those wait for compaction."""
    landing = Landing(tmp_path)
    for number, key in enumerate("abc", 1):
        landing.deliver(_line(key, 1), _line(f"{key}{key}", 1))
        landing.drain(spark)
        assert len(_files(landing.layout.table)) == number


def test_a_batch_of_new_keys_looks_for_no_rows_to_change(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the table is so large that it would be sorted for the keys."""
    landing = Landing(tmp_path)
    monkeypatch.setattr(tuning, "_MUCH_MORE", 1)
    batches = (("ab", 12), ("cd", 12), ("be", 12), ("fz", 5), ("gy", 12))
    for seq, (keys, little) in enumerate(batches, 1):
        monkeypatch.setattr(tuning, "_LITTLE_HELD", little)
        landing.deliver(*[_line(key, seq) for key in keys], _line("a0", seq, "d"))
        landing.drain(spark)

    merges = [
        commit for commit in reversed(DeltaTable(landing.layout.table).history()) if commit["operation"] == "MERGE"
    ]
    changing = [json.loads(commit["operationParameters"]["matchedPredicates"]) != [] for commit in merges]
    assert changing == [False, False, True, True, False]
    assert [commit["operationMetrics"]["numTargetRowsInserted"] for commit in merges] == ["2", "2", "1", "2", "2"]
    expected = {key: seq for seq, (keys, _) in enumerate(batches, 1) for key in keys}
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == expected


def test_a_key_that_came_to_the_table_since_it_was_compared_is_not_doubled(tmp_path: Path, spark: SparkSession) -> None:
    landing = Landing(tmp_path)
    landing.deliver(_line("a", 1))
    landing.drain(spark)
    landing.deliver(_line("b", 1), _line("c", 1))
    merge, inserting = delta_target.merge, []

    def merged(writer: Writer, fated: DataFrame, *rest: Any, **more: Any) -> None:
        inserting.append(more["inserts_only"])
        rows = spark.read.format("delta").load(writer.layout.table).withColumn("id", F.lit("b"))
        rows.write.format("delta").mode("append").save(writer.layout.table)
        merge(writer, fated, *rest, **more)

    with mock.patch.object(delta_target, "merge", merged), pytest.raises(TerminalError) as caught:
        landing.drain(spark)
    assert (caught.value.code, inserting) == ("ledger-does-not-add-up", [True])
    assert sorted(row["id"] for row in landing.rows("id")) == ["a", "b", "c"]


def test_little_partitions_of_a_large_table_are_written_anew(tmp_path: Path, spark: SparkSession) -> None:
    """What counts are the files that can hold the batch's keys."""
    keyed = KEYED | {"keys": ["id", "region"], "partition_by": ["region"]}
    columns = COLUMNS | {"region": "string not null"}
    landing = Landing(tmp_path, columns=columns, target=keyed, maintenance={"copy_on_write": "16kb"})

    def line(key: str, region: str, seq: int, b: str = "") -> str:
        return json.dumps({"id": key, "region": region, "seq": seq, "op": "u", "b": b})

    noise = [random.Random(number).randbytes(600).hex() for number in range(40)]
    few = [line("a", "little", 1), line("b", "little", 1)]
    landing.deliver(*few, *[line(f"k{n}", "large", 1, b) for n, b in enumerate(noise)])
    landing.drain(spark)
    landing.deliver(line("a", "little", 2))
    landing.drain(spark)
    landing.deliver(line("k1", "large", 2))
    landing.drain(spark)

    assert _marks(landing.layout.table) == [1, 0]
    files = Counter(file["partition.region"] for file in _files(landing.layout.table))
    assert files["little"] == 1 < files["large"]


@pytest.mark.parametrize(("little", "parts"), [(6, 2), (7, 1)])
def test_a_large_batch_is_not_made_one_file(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, little: int, parts: int
) -> None:
    landing = Landing(tmp_path)
    landing.deliver(_line("a", 1))
    landing.drain(spark)
    monkeypatch.setattr(tuning, "_LITTLE", little)
    landing.deliver(*[_line(key, 2) for key in "abcdef"])
    with configured(spark, {"spark.sql.shuffle.partitions": "2"}):
        assert _partitions(landing, spark) == [parts]
    assert {row["id"]: row["seq"] for row in landing.rows("id, seq")} == dict.fromkeys("abcdef", 2)


def _partitions(landing: Landing, spark: SparkSession) -> list[int]:
    """Drain, and tell into how many partitions each MERGE was to shuffle."""
    found: list[int] = []

    def merged(writer: Writer, fated: DataFrame, *rest: Any, **more: Any) -> None:
        found.append(int(str(fated.sparkSession.conf.get("spark.sql.shuffle.partitions"))))
        merge(writer, fated, *rest, **more)

    merge = delta_target.merge
    with mock.patch.object(delta_target, "merge", merged):
        landing.drain(spark)
    return found


def test_what_is_much_is_shuffled_into_more_partitions_up_to_the_tasks_there_are(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = spark.sparkContext.defaultParallelism
    assert tasks > 1
    landing = Landing(tmp_path, maintenance={"copy_on_write": 0})
    found = []
    for seq, shuffled in enumerate((10**9, 1, 1), 1):
        monkeypatch.setattr(tuning, "_SHUFFLED", shuffled)
        landing.deliver(_line("a", seq), _line(f"b{seq}", seq))
        with configured(spark, {"spark.sql.shuffle.partitions": "1" if seq < 3 else str(tasks + 3)}):
            found += _partitions(landing, spark)
    assert found == [1, tasks, tasks + 3], "never fewer than the session says"
