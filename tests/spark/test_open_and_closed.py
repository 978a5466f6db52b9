"""Compaction of a history: open and closed rows lie in different files, no row changes, and readers
leave files out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from draindown.gate import published
from draindown.lake.table import Table
from draindown.planning import compaction
from draindown.spark.checks.check import check
from draindown.spark.runs.compaction import compact, rewrite
from draindown.spark.runs.open_and_closed import OpenAndClosed
from tests.landing import Landing
from tests.spark.test_history_target import TRACKED, accounts, delete, folded, line, runs

SIZE = 1 << 20
_PLAIN, _SEVERAL = "bigint", "struct<at: bigint, seq: int>"


class History:
    """A table with a history, written by hand."""

    def __init__(
        self, home: Path, spark: SparkSession, at: str = _PLAIN, partition: str = ""
    ) -> None:
        self.path, self.spark, self.at = str(home / "t"), spark, at
        told = "__START_AT, __END_AT, k" if at == _PLAIN else "__START_AT.at, __END_AT.at, k"
        spark.sql(
            f"create table delta.`{self.path}` (k int, __START_AT {at}, __END_AT {at}, v string, p string) using delta "
            f"{partition} tblproperties ('delta.enableChangeDataFeed' = 'true', "
            f"'delta.enableDeletionVectors' = 'true', 'delta.dataSkippingStatsColumns' = '{told}')"
        )

    def add(self, start: int, number: int, *, closed: int, p: str = "a") -> None:
        """Append a file with a row of each key from `start` at the time of its key, of which some
        have ended.
        """
        self.spark.sql(
            f"insert into delta.`{self.path}` select /*+ coalesce(1) */ cast(id as int), {self._at('id')}, "
            f"if(id < {start + closed}, {self._at('id + 1')}, null), cast(id as string), '{p}' "
            f"from range({start}, {start + number})"
        )

    def _at(self, text: str) -> str:
        return text if self.at == _PLAIN else f"named_struct('at', {text}, 'seq', 1)"

    def files(self) -> list[tuple[int, int]]:
        """Rows without an end, and the others, of each file, as they lie in Parquet: deleted ones
        too.
        """
        found = []
        for path in DeltaTable(self.path).file_uris():
            ends = pq.read_table(path, columns=["__END_AT"]).column(0)
            found.append((ends.null_count, len(ends) - ends.null_count))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """All rows, by another reader."""
        return Table(self.path).rows('select * from t order by k, v, "__END_AT" is null')

    def read(self, condition: str) -> int:
        """The number of files that Spark reads of the table where a condition holds."""
        rows = self.spark.read.format("delta").load(self.path)
        return len(rows.where(condition).inputFiles())

    def compact(self, size: int = SIZE, *, force: bool = False) -> tuple[int, int]:
        """Rewrite what is due. Returns the number of files before and after of those that were
        rewritten.
        """
        found = compaction.assess("table", Table(self.path), size, force=force)
        done = rewrite(self.spark, found, size, lambda: None, force=force) if found else None
        return (0, 0) if done is None else (done.files_before, done.files_after)

    def changes(self, since: int) -> int:
        """The number of changed rows that the feed has after a version."""
        now = Table(self.path).version
        feed = self.spark.read.format("delta").option("readChangeFeed", "true")
        return (
            feed.option("startingVersion", since + 1)
            .option("endingVersion", now)
            .load(self.path)
            .count()
        )


@pytest.fixture
def history(spark: SparkSession, tmp_path: Path) -> Callable[..., History]:
    return lambda **more: History(tmp_path, spark, **more)


def apart(files: Sequence[tuple[int, int]]) -> bool:
    return not any(open_ and closed for open_, closed in files)


@pytest.mark.parametrize(
    "at", [_PLAIN, pytest.param(_SEVERAL, marks=pytest.mark.long)], ids=["one", "several"]
)
def test_open_and_closed_rows_lie_in_different_files_and_no_row_changes(
    history: Callable[..., History], spark: SparkSession, at: str
) -> None:
    it = history(at=at, partition="partitioned by (p)")
    for number in range(8):
        it.add(number * 100, 100, closed=60)
    it.add(1_000, 100, closed=50, p="it\\'s b")
    it.add(2_000, 100, closed=100, p="c")
    spark.sql(f"delete from delta.`{it.path}` where k in (5, 99, 101)")
    before, version = it.rows(), Table(it.path).version
    assert it.compact() == (8, 2), "the partitions with few files wait"
    assert sorted(one for one in it.files() if one not in ((50, 50), (0, 100))) == [
        (0, 478),
        (319, 0),
    ]
    assert (
        it.rows() == before and it.changes(version) == 0 and Table(it.path).version == version + 1
    )
    log = Path(it.path, "_delta_log", f"{version + 1:020}.json").read_text().splitlines()
    moved = [
        one for line in log for kind, one in json.loads(line).items() if kind in ("add", "remove")
    ]
    assert len(moved) == 10 and not any(one["dataChange"] for one in moved)
    assert (
        Table(it.path).commits(1)[0].operation == "OPTIMIZE"
        and not Table(it.path).commits(1)[0].changed_rows
    )
    assert it.compact() == (0, 0), "nothing is left to do"
    assert it.compact(force=True) == (1, 2) and apart(it.files()), "a partition of one file, too"
    assert it.rows() == before and it.changes(version) == 0
    assert it.compact(force=True) == (0, 0), "a file alone of its kind stays"
    it.add(3_000, 10, closed=10)
    assert it.compact(force=True) == (2, 1) and it.rows() != before, "only those that join it"


@pytest.mark.long
def test_what_a_batch_reads_does_not_grow_with_what_ended_long_ago(
    history: Callable[..., History],
) -> None:
    it, read = history(), list[int]()
    for round_ in range(3):
        newest = round_ * 1_000
        for number in range(8):
            it.add(newest + number * 100, 100, closed=95)
        it.spark.sql(
            f"update delta.`{it.path}` set __END_AT = {newest} where __END_AT is null and k < {newest}"
        )
        it.compact(4 << 10)
        assert apart(it.files())
        read.append(it.read(f"__END_AT is null or __END_AT >= {newest + 900}"))
    assert read == [1] * 3 and len(it.files()) > 5, (read, it.files())
    assert it.read("__END_AT is null") == 1


@pytest.mark.full
def test_a_file_that_another_commit_changed_meanwhile_fails_the_rewrite(
    history: Callable[..., History], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = history()
    for number in range(2):
        it.add(number * 10, 10, closed=5)
    written = OpenAndClosed._written

    def late(self: OpenAndClosed, *of: Any) -> Any:
        found = written(self, *of)
        spark.sql(f"update delta.`{it.path}` set __END_AT = 99 where k = 7")
        return found

    monkeypatch.setattr(OpenAndClosed, "_written", late)
    with pytest.raises(Exception, match=r"(?i)concurrent"):
        it.compact(force=True)
    ended = [row["k"] for row in it.rows() if row["__END_AT"] == 99]
    assert ended == [7] and len(it.rows()) == 20, "the other commit stands"
    monkeypatch.undo()
    before = it.rows()
    it.compact(force=True)
    assert apart(it.files()) and it.rows() == before


@pytest.mark.long
def test_a_landed_history_is_compacted_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    it, came = Landing(tmp_path, spark, target=TRACKED), list[str]()
    for number in range(3):
        lines = [line(key, 10 * number + at, at) for key in "abc" for at in range(2)]
        it.deliver(*lines)
        came += lines
        it.apply(spark)
    check(it.request().model_copy(update={"step": "check"}), spark)
    before = runs(it)
    report = compact(it.request(force=True).model_copy(update={"step": "compact"}), spark)
    assert report.compact is not None and "table all" in report.compact.partitions
    assert (
        "table: 1 file to be written with open and closed rows apart in 1 partition"
        in report.compact.evidence
    )
    ends = [
        pq.read_table(path, columns=["__END_AT"]).column(0)
        for path in DeltaTable(it.layout.tables.target.path).file_uris()
    ]
    assert sorted(one.null_count for one in ends if one.null_count) == [3] and len(ends) == 2
    assert runs(it) == before == folded(came)
    pointer = published.published(it.layout)
    assert pointer is not None and pointer.version == it.layout.tables.target.version
    late = [line("a", 15, 7), delete("b", 40)]
    it.deliver(*late)
    it.apply(spark)
    assert runs(it) == folded([*came, *late])
    accounts(it)
