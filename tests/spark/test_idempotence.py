"""A batch is applied once and its numbers add up, or it ends red: any count that is off is
noticed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.lake.commits import Commit
from draindown.lake.formats import FORMAT
from draindown.lake.table import Table
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.report import StepReport
from draindown.spark import cluster
from draindown.spark.sources.files import FilesReader
from draindown.spark.sources.port import Read
from draindown.spark.targets import commit, resolution
from tests.landing import KEYED, Landing

Corrupt = Callable[[pytest.MonkeyPatch], None]

_ROW = BatchRow(
    "p", "f", 1, 0, "r", records=28, quarantined=3, late=1, superseded=4, duplicate=5,
    inserted=6, updated=4, deleted=3, tombstoned=2, reasons={"malformed": 2, "type:a": 1},
)  # fmt: skip
_COUNTS = ("records", "quarantined", "late", "superseded", "duplicate", "inserted", "updated")


def test_row_that_adds_up_closes() -> None:
    assert ledger_rows.conserve(_ROW) is _ROW


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("name", [*_COUNTS, "deleted", "tombstoned"])
def test_any_count_that_is_off_by_one_is_noticed(name: str, off: int) -> None:
    with pytest.raises(TerminalError) as caught:
        ledger_rows.conserve(dataclasses.replace(_ROW, **{name: getattr(_ROW, name) + off}))
    assert caught.value.code == "ledger-does-not-add-up"


def test_reasons_and_fates_are_held_against_each_other() -> None:
    with pytest.raises(TerminalError) as caught:
        ledger_rows.conserve(dataclasses.replace(_ROW, reasons={"malformed": 2}))
    assert caught.value.code == "ledger-does-not-add-up"
    with pytest.raises(TerminalError) as caught:  # 6 + 4 = 5 + 5: the sums alone would not say it
        ledger_rows.conserve(_ROW, fates_seen={"inserted": (5, 6), "updated": (5, 4)})
    assert "inserted: 5 against 6" in str(caught.value.found)


def _miscounted(fate: str) -> Corrupt:
    """The drain counts one row more of a fate than there is."""

    def corrupt(patch: pytest.MonkeyPatch) -> None:
        right = resolution.count

        def count(fated: DataFrame) -> Mapping[str, int]:
            counts = dict(right(fated))
            return counts | {fate: counts.get(fate, 0) + 1}

        patch.setattr(resolution, "count", count)

    return corrupt


def _misreported(metric: str, table: str) -> Corrupt:
    """A commit says it wrote one row less than it was given."""

    def corrupt(patch: pytest.MonkeyPatch) -> None:
        right = Table.commits

        def commits(log: Table, limit: int | None = None) -> list[Commit]:
            found = right(log, limit)
            if found and Path(log.path).parent.name == table:
                done = found[0].metrics
                found[0] = dataclasses.replace(
                    found[0], metrics={**done, metric: str(int(done[metric]) - 1)}
                )
            return found

        patch.setattr(Table, "commits", commits)

    return corrupt


def _lost_line(patch: pytest.MonkeyPatch) -> None:
    """The reader gives one line less than the file has."""
    right = FilesReader.read

    def read(*given: Any) -> list[Read]:
        return [
            dataclasses.replace(part, frame=part.frame.where(F.col("_id") > 0))
            for part in right(*given)
        ]

    patch.setattr(FilesReader, "read", read)


_BEFORE: dict[str, tuple[Corrupt, str]] = {
    "lost line": (_lost_line, "lines-differ"),
    "quarantine": (_misreported("numOutputRows", "quarantine"), "ledger-does-not-add-up"),
    "tombstones": (_misreported("numOutputRows", "tombstones"), "ledger-does-not-add-up"),
    "remembered": (_miscounted("remember"), "ledger-does-not-add-up"),
    "deleted": (_miscounted("delete"), "ledger-does-not-add-up"),
}
"""Noticed before the target is touched: the next attempt is right."""

_AFTER: dict[str, tuple[Corrupt, str]] = {
    **{
        fate: (_miscounted(fate), "ledger-does-not-add-up")
        for fate in ("superseded", "duplicate", *resolution.LOSERS)
    },
    **{fate: (_miscounted(fate), "ledger-does-not-add-up") for fate in ("insert", "update")},
    **{
        metric: (_misreported(metric, "tables"), "ledger-does-not-add-up")
        for metric in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    },
}
"""Noticed in the target's commit. What stands in it stays wrong, and so does every later run until
someone looked.
"""


@pytest.fixture(scope="module")
def before(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Landing:
    """A lake with one batch done, to be copied."""
    landing = Landing(tmp_path_factory.mktemp("before"))
    landing.deliver(*[json.dumps({"id": f"k{n}", "seq": 5, "a": n}) for n in range(6)])
    landing.drain(spark, run_id="before")
    return landing


def _with_every_fate(before: Landing, home: Path) -> Landing:
    """A copy in which a batch is waiting where every fate occurs."""
    landing = before.copied(home)
    rows: list[dict[str, Any]] = [
        {"id": "new", "seq": 1},
        {"id": "new", "seq": 0},  # superseded in the batch
        {"id": "k0", "seq": 6},
        {"id": "k0", "seq": 6},  # duplicate in the batch
        {"id": "k1", "seq": 4},  # superseded by the target
        {"id": "k2", "seq": 5, "a": 2},  # duplicate of the target
        {"id": "k3", "seq": 7, "op": "d"},
        {"id": "never", "seq": 1, "op": "d"},
    ]
    landing.deliver(*[json.dumps(row) for row in rows], "no json", "")
    return landing


def _attempt(landing: Landing, spark: SparkSession, corrupt: Corrupt, code: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        corrupt(patch)
        with pytest.raises(TerminalError) as caught:
            landing.apply(spark)
    assert caught.value.code == code
    assert [row["run_id"] for row in landing.ledger()] == ["before"]


_WHOLE = {"records": 9, "quarantined": 1, "superseded": 2, "duplicate": 2}
_WHOLE |= {"inserted": 1, "updated": 1, "deleted": 1, "tombstoned": 1, "applied": 4, "inputs": 1}


@pytest.mark.full
@pytest.mark.parametrize(
    "names",
    [("lost line", "quarantine"), pytest.param(tuple(_BEFORE), marks=pytest.mark.long)],
    ids=["few", "all"],
)
def test_corrupted_batch_is_red_and_the_next_attempt_is_right(
    spark: SparkSession, before: Landing, tmp_path: Path, names: Sequence[str]
) -> None:
    landing = _with_every_fate(before, tmp_path / "copy")
    for corrupt, code in (_BEFORE[name] for name in names):
        _attempt(landing, spark, corrupt, code)
        assert landing.layout.tables.target.last("draindown:p:f:1:drain:rows") == 0
    done = landing.drain(spark)
    assert _totals(done) == _WHOLE
    assert [row["max_sequence"] for row in landing.ledger()] == ["5", "7"]
    assert sorted((row["id"], row["seq"]) for row in landing.tombstones()) == [
        ("k3", 7),
        ("never", 1),
    ]
    assert [(row["origin"]["position"], row["raw"]) for row in landing.quarantine()] == [
        (9, "no json")
    ]
    version = landing.layout.tables.target.version
    landing.forget_last_batch()
    landing.drain(spark, run_id="again")
    assert landing.layout.tables.target.version == version
    assert [row["run_id"] for row in landing.ledger()] == ["before", "r"]


def _totals(report: StepReport) -> dict[str, int]:
    assert report.drain
    return {name: report.drain.totals[name] for name in _WHOLE}


def test_commit_that_does_not_add_up_stays_red(
    spark: SparkSession, before: Landing, tmp_path: Path
) -> None:
    _stays_red(spark, before, tmp_path, "superseded")


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in _AFTER if name != "superseded"])
def test_any_commit_that_does_not_add_up_is_red(
    spark: SparkSession, before: Landing, tmp_path: Path, name: str
) -> None:
    _stays_red(spark, before, tmp_path, name)


def _stays_red(spark: SparkSession, before: Landing, home: Path, name: str) -> None:
    landing = _with_every_fate(before, home / "copy")
    corrupt, code = _AFTER[name]
    _attempt(landing, spark, corrupt, code)
    if name.startswith("num"):  # the commit itself is right, and says so when it is asked again
        landing.drain(spark)
        assert landing.totals()["records"] == _WHOLE["records"] + 6
        return
    with pytest.raises(TerminalError) as caught:
        landing.drain(spark)
    assert caught.value.code == "ledger-does-not-add-up"
    assert [row["run_id"] for row in landing.ledger()] == ["before"]


def test_healed_rows_must_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = Landing(tmp_path)
    good = dataclasses.replace(_ROW, inserted=15, updated=0, deleted=0, tombstoned=0)
    # an update that inserted: a second row of its key
    bad = dataclasses.replace(good, batch=1, inserted=14, updated=1)
    commits = [
        Commit(row.batch, 1_000_000, "WRITE", row.as_metadata(), {"numOutputRows": "15"})
        for row in (bad, good)
    ]
    delta.create(landing.layout.tables.target, ledger_table.SCHEMA)
    monkeypatch.setattr(Table, "commits", lambda log, limit=None: commits)
    for _ in range(2):
        with pytest.raises(TerminalError) as caught:
            ledger_table.heal(landing.layout)
        assert caught.value.code == "ledger-does-not-add-up"
        assert [row["batch"] for row in landing.ledger()] == [0]


def test_stamps_only_rise() -> None:
    from datetime import UTC, datetime

    late, early = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    assert commit.stamp_after(None, early) == early
    assert commit.stamp_after(early, late) == late
    assert (
        late
        < commit.stamp_after(late, early)
        < commit.stamp_after(commit.stamp_after(late, early), early)
    )


@pytest.mark.full
def test_tables_whose_creation_was_killed_before_their_first_commit_are_created_again_and_say_their_format(
    spark: SparkSession, landing: Callable[[Mapping[str, Any]], Landing]
) -> None:
    at = landing({"target": KEYED})
    for table in (
        at.layout.tables.target.path,
        at.layout.tables.quarantine.path,
        at.layout.tables.tombstones.path,
    ):
        Path(table, "_delta_log", "_staged_commits").mkdir(parents=True)
    at.deliver('{"id": "a", "seq": 1}', '{"id": "b", "seq": 1, "op": "d"}', "no json")
    assert at.apply(spark).outcome == "done"
    sums = at.totals()
    assert (sums["applied"], sums["quarantined"], len(at.rows()), len(at.tombstones())) == (
        2,
        1,
        1,
        1,
    )
    ours = (
        at.layout.tables.target.path,
        at.layout.tables.quarantine.path,
        at.layout.tables.tombstones.path,
        at.layout.tables.ledger.path,
        at.layout.tables.intake(1).path,
    )
    assert {path: Table(path).properties.get("draindown.format") for path in ours} == dict.fromkeys(
        ours, str(FORMAT)
    )


@pytest.mark.full
def test_a_delete_in_an_hour_that_a_clock_repeats_or_skips_is_remembered_as_it_was_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {"id": "string not null", "at": "timestamp_ntz not null", "op": "string"}
    target = {"keys": ["id"], "sequence_by": ["at"], "apply_as_deletes": "op = 'd'"}
    it = Landing(tmp_path, source={"timezone": "Europe/Berlin"}, columns=columns, target=target)
    days = {"k": "2026-03-29", "j": "2026-10-25"}
    for time, op in (("02:30", "d"), ("02:20", ""), ("02:40", "")):
        it.deliver(
            *[
                json.dumps({"id": id, "at": f"{day}T{time}:00", "op": op})
                for id, day in days.items()
            ]
        )
        it.apply(spark)
        found = {row["id"]: row["at"].isoformat() for row in it.rows()}
        assert found == (
            {id: f"{day}T02:40:00" for id, day in days.items()} if time == "02:40" else {}
        )


def test_input_that_changes_once_it_was_read_is_refused_on_a_cluster_before_the_target_is_written(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a lost executor had persisted is read again, and would be other rows."""
    landing = Landing(tmp_path)
    landing.deliver('{"id": "k", "seq": 1}')
    landing.apply(spark)
    path = landing.deliver('{"id": "k", "seq": 2}')
    content, before = path.read_bytes(), path.stat()

    def changing(step: str) -> None:
        if step == "read":
            landing.land(path.name, b'{"id": "k", "seq": 33}\n')

    monkeypatch.setattr(cluster, "executors", lambda _: cluster.Executors(1, 1, 1024**3, ("here",)))
    with pytest.raises(TerminalError) as caught:
        landing.apply(spark, reached=changing)
    assert caught.value.code == "input-changed" and [row["seq"] for row in landing.rows()] == [1]
    landing.land(path.name, content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    landing.apply(spark)
    assert [row["seq"] for row in landing.rows()] == [2] and landing.sums()["records"] == 2
