"""Generations and replays: whatever was lost, the documented command brings the table back, and
nothing is doubled.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.config.lease import LeaseSpec
from draindown.doctor.examination import examine
from draindown.flow import generations, quarantine
from draindown.recovery import replay
from draindown.recovery import reset as reset_plan
from draindown.recovery.opening import lease_of
from draindown.runs.report import StepReport
from draindown.runs.request import Again
from draindown.spark.batch import counting
from draindown.spark.runs import replay_input
from draindown.spark.runs import replay_rows as replay_rows_module
from draindown.spark.runs.drain import drain
from draindown.spark.runs.replay_rows import replay as replay_rows
from draindown.spark.sql import STAMPS
from draindown.spark.targets import delta_target
from tests.landing import KEYED, Injected, Landing

ALWAYS = Again(since=datetime(2000, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))
APPEND: dict[str, Any] = {}
ANY = quarantine.Filter()


def land(landing: Landing) -> None:
    """Two files: changes, ties, deletes, quarantined rows in both."""
    for batch in (1, 2):
        rows: list[dict[str, Any]] = [
            {"id": f"k{n % 7}", "seq": batch + n % 3, "a": n - 1, "b": str(n)} for n in range(20)
        ]
        rows += [{"id": f"k{n}", "seq": 2 + batch, "op": "d"} for n in range(batch, 7, 3)]
        landing.deliver(*[json.dumps(row) for row in rows], "no json", "")


def flow(home: Path, **more: Any) -> Landing:
    landing = Landing(
        home, source={"max_files_per_trigger": 1}, rules={"sane": "a is null or a >= 0"}, **more
    )
    land(landing)
    return landing


def content(landing: Landing) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple((k, v) for k, v in row.items() if k not in STAMPS) for row in landing.rows()
    )


def refusals(landing: Landing) -> list[tuple[str, int]]:
    found = sorted(landing.refused())
    assert len(set(found)) == len(found), "a row stands in the quarantine twice"
    return found


def again(
    landing: Landing, spark: SparkSession, asked: Again = ALWAYS, fault: str | None = None
) -> StepReport:
    seen = iter(range(100))

    def reached(step: str) -> None:
        if step == fault and next(seen) == 0:
            raise Injected(step)

    request = landing.request("once more" if asked.again else "again", replay=asked)
    return replay_input.replay(request, spark, progress=lambda line: None, reached=reached)


def reset(
    landing: Landing, *, accept_missing: bool = False, table_aside: bool = False
) -> reset_plan.ResetPlan:
    request = landing.request("reset")
    with lease_of(landing.layout, LeaseSpec(), owner="me", run_id="reset"):
        plan = reset_plan.plan(request, table_aside=table_aside)
        reset_plan.begin(request, plan, by="me", accept_missing=accept_missing)
    return plan


def refused_with(code: str, landing: Landing, spark: SparkSession) -> None:
    with pytest.raises(TerminalError) as caught:
        landing.drain(spark)
    assert caught.value.code == code
    assert caught.value.next[0] == "draindown reset p/f"
    assert code in {
        symptom.code for symptom in examine(landing.request()).symptoms if symptom.level == "wrong"
    }


def healthy(landing: Landing) -> None:
    found = audit(landing.spec, "f", root=landing.home)
    assert found.clean, str(found)
    page = examine(landing.request())
    assert page.exit == 0, str(page)


@pytest.mark.full
@pytest.mark.parametrize("twice", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_replay_changes_nothing_and_goes_on_after_a_crash(
    spark: SparkSession, tmp_path: Path, twice: bool
) -> None:
    landing = flow(tmp_path)
    landing.drain(spark)
    before, refused, rows = content(landing), refusals(landing), landing.rows()
    with pytest.raises(Injected):
        again(landing, spark, fault="merged")
    assert "replay-unfinished" in {symptom.code for symptom in examine(landing.request()).symptoms}
    done = again(landing, spark)
    assert done.drain is not None
    assert (done.drain.totals["batches"], done.drain.totals["applied"]) == (
        1,
        0,
    )  # the crash came after a commit
    assert again(landing, spark).outcome == "idle"
    if twice:
        one = Again(units=(str(landing.landing / "001.json"),))
        again(landing, spark, one)
        once_more = again(landing, spark, one.model_copy(update={"again": True}))
        assert once_more.drain is not None
        assert (once_more.drain.totals["inputs"], once_more.drain.totals["applied"]) == (1, 0)
    assert (content(landing), refusals(landing)) == (before, refused)
    assert landing.rows() == rows  # to the stamp: what is there already is not written again
    replayed = [row for row in landing.ledger() if row["kind"] == "replay"]
    assert [row["batch"] for row in replayed] == list(range(4 if twice else 2))
    landing.totals()
    healthy(landing)
    (landing.landing / "001.json").unlink()
    with pytest.raises(TerminalError) as caught:
        again(landing, spark, ALWAYS.model_copy(update={"again": True}))
    assert (caught.value.code, "001.json" in caught.value.found) == ("replay-input-gone", True)


@pytest.mark.campaign
def test_every_loss_is_named_and_reset_brings_the_table_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = flow(tmp_path)
    landing.drain(spark)
    right, refused = content(landing), refusals(landing)

    shutil.rmtree(Path(landing.layout.checkpoint(1)).parent)
    refused_with("checkpoint-missing", landing, spark)
    assert reset(landing).generation == 2
    assert reset(landing).generation == 2  # once more: nothing was begun
    landing.drain(spark)
    assert (content(landing), refusals(landing)) == (right, refused)
    healthy(landing)

    shutil.rmtree(landing.layout.tables.target.path)
    refused_with("table-behind-checkpoint", landing, spark)
    plan = reset(landing)
    assert (plan.generation, plan.target, plan.holds_previous) == (3, "absent", False)
    landing.drain(spark)
    assert (content(landing), refusals(landing)) == (right, refused)
    found = audit(landing.spec, "f", root=landing.home)
    assert found.clean, str(found)

    DeltaTable.forPath(spark, landing.layout.tables.target.path).restoreToVersion(1)
    refused_with("table-behind-checkpoint", landing, spark)
    for file in (Path(landing.layout.checkpoint(3)) / "offsets").iterdir():
        file.write_bytes(b"")
    reset(landing)
    landing.drain(spark)
    assert (content(landing), refusals(landing)) == (right, refused)
    landing.totals()
    healthy(landing)


@pytest.mark.campaign
def test_a_new_generation_decides_anew_about_refused_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = flow(tmp_path)
    landing.drain(spark)
    refused = refusals(landing)
    loose = Landing(tmp_path, source={"max_files_per_trigger": 1})  # without the rule
    gone = loose.landing / "002.json"
    kept = gone.read_bytes()
    gone.unlink()
    with pytest.raises(TerminalError) as caught:
        reset(loose)
    assert (caught.value.code, "002.json" in caught.value.found) == ("reset-input-gone", True)
    reset(loose, accept_missing=True)
    with pytest.raises(Injected):
        loose.drain(spark, fault="quarantined")
    with lease_of(loose.layout, LeaseSpec(), owner="me", run_id="undo"):
        assert reset_plan.undo(loose.request(), by="me") == 1
    assert (generations.generation(loose.layout), refusals(loose)) == (1, refused)
    healthy(loose)

    assert reset(loose, accept_missing=True).generation == 3
    with pytest.raises(Injected):
        loose.drain(spark, fault="merged")  # released only by the next start
    loose.drain(spark)
    sums = quarantine.counts(loose.layout)
    assert (refusals(loose), sums.refused, sums.released, sums.open) == (refused, 4, 1, 3)
    assert [row["inputs"] for row in loose.ledger() if row["generation"] == 3] == [1, 0]
    healthy(loose)
    with pytest.raises(TerminalError) as caught:
        reset_plan.undoable(loose.layout)
    assert caught.value.code == "generation-has-batches"
    gone.write_bytes(kept)
    # that generation left the other out
    assert replay.find(loose.request(replay=ALWAYS)).units == 1


@pytest.mark.campaign
def test_an_append_table_is_reset_only_once_it_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    landing = flow(tmp_path, target=APPEND)
    landing.drain(spark)
    right = content(landing)
    loose = Landing(tmp_path, source={"max_files_per_trigger": 1}, target=APPEND)
    ids = tuple(
        row["quarantine_id"] for row in quarantine.listed(loose.layout, quarantine.Filter())
    )
    replay_rows(loose.request("rows", quarantine_ids=ids), spark)
    more = content(loose)
    assert more.total() == right.total() + 2
    for ask in (
        lambda: reset_plan.plan(loose.request()),
        lambda: replay.find(loose.request(replay=ALWAYS)),
    ):
        with pytest.raises(TerminalError) as caught:
            ask()
        assert caught.value.code in ("reset-would-double", "replay-would-double")
    shutil.rmtree(loose.layout.tables.target.path)
    reset(landing)
    # refuses again what the replay had let through
    drain(landing.request("strict"), spark, progress=lambda line: None)
    sums = quarantine.counts(landing.layout)
    assert (content(landing), sums.released, sums.open) == (right, 0, sums.refused)
    found = audit(landing.spec, "f", root=landing.home)
    assert found.clean, str(found)
    shutil.rmtree(loose.layout.tables.target.path)
    reset(loose)
    drain(loose.request("loose"), spark, progress=lambda line: None)
    assert (content(loose), quarantine.counts(loose.layout).released) == (more, 2)
    found = audit(loose.spec, "f", root=loose.home)
    assert found.clean, str(found)


@pytest.mark.long
def test_an_append_flow_goes_on_after_its_quarantine_was_torn(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(tmp_path, target=APPEND)
    for number in range(2):
        landing.deliver(json.dumps({"id": str(number), "seq": 1}), "torn {")
        landing.drain(spark)
    right = content(landing)
    newest = max(Path(landing.layout.tables.quarantine.path, "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    reset(landing, table_aside=True)
    landing.drain(spark)
    assert content(landing) == right
    assert quarantine.counts(landing.layout).open == 2
    found = audit(landing.spec, "f", root=landing.home)
    assert found.clean, str(found)


@pytest.mark.full
def test_rows_of_a_batch_that_is_not_done_wait_for_it(spark: SparkSession, tmp_path: Path) -> None:
    """It reads them again: where no key tells that they are there, they would be appended twice."""
    strict = Landing(tmp_path, target=APPEND, rules={"sane": "a >= 0"})
    strict.deliver(
        json.dumps({"id": "good", "seq": 1, "a": 1}), json.dumps({"id": "bad", "seq": 1, "a": -1})
    )
    with pytest.raises(Injected):
        strict.drain(spark, fault="quarantined")
    loose = Landing(tmp_path, target=APPEND)
    ids = tuple(quarantine.identified(loose.layout, quarantine.Filter()))
    assert len(ids) == 1
    with pytest.raises(TerminalError) as caught:
        replay_rows(loose.request("rows", quarantine_ids=ids), spark)
    assert caught.value.code == "rows-not-read" and "001.json" in caught.value.found
    loose.drain(spark)
    assert sorted(row["id"] for row in loose.rows("id")) == ["bad", "good"]
    healthy(loose)


@pytest.mark.full
def test_rows_of_a_csv_whose_header_is_lost_are_not_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Taken in the order of the contract their values would stand in each other's columns."""
    columns, target = (
        dict.fromkeys(("id", "a"), "string not null"),
        {"keys": ["id"], "sequence_by": ["a"]},
    )
    strict = Landing(
        tmp_path,
        source={"format": "csv"},
        target=target,
        columns=columns,
        rules={"sane": "a <> 'bad'"},
    )
    cleared = strict.deliver("a,id", "bad,k1", name="1.csv")
    strict.deliver("a,id", "bad,k2", name="2.csv")
    strict.drain(spark)
    loose = Landing(tmp_path, source={"format": "csv"}, target=target, columns=columns)
    shutil.rmtree(loose.layout.tables.intake(1).path)
    cleared.unlink()
    reset(loose, accept_missing=True)
    strict.drain(spark)
    ids = {Path(row["origin"]["input"]).name: row["quarantine_id"] for row in loose.quarantine()}
    with pytest.raises(TerminalError) as caught:
        replay_rows(loose.request("rows", quarantine_ids=tuple(ids.values())), spark)
    assert (caught.value.code, "1.csv:2" in caught.value.found) == ("rows-not-whole", True)
    assert loose.rows() == []
    replay_rows(loose.request("rows", quarantine_ids=(ids["2.csv"],)), spark)
    assert [(row["id"], row["a"]) for row in loose.rows("id, a")] == [("k2", "bad")]


@pytest.mark.full
def test_a_refused_row_of_parquet_has_the_values_of_its_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    columns = {
        "id": "string not null",
        "at": "timestamp not null",
        "b": "string",
        "n": "string",
        "day": "date",
    }
    target = {"keys": ["id"], "sequence_by": ["at"]}
    strict = Landing(
        tmp_path,
        source={"format": "parquet"},
        columns=columns,
        target=target,
        rules={"sane": "n = '0.00'"},
    )
    midnight, cut = 1_782_864_000_000_000_000, 1_782_864_000_000_000_001
    held = {
        "id": ["k1", "k2", "k3"],
        "at": pa.array([midnight, cut, midnight], pa.timestamp("ns", "UTC")),
        "b": [b"hello"] * 3,
        "n": [Decimal("1.50")] * 3,
        "day": pa.array([midnight // 1000] * 3, pa.timestamp("us", "UTC")),
        "later": [b"new"] * 3,
    }
    pq.write_table(pa.table(held), strict.landing / "1.parquet")
    strict.drain(spark)
    loose = Landing(
        tmp_path, source={"format": "parquet"}, columns=columns | {"later": "string"}, target=target
    )
    replay_rows(
        loose.request("rows", quarantine_ids=tuple(quarantine.identified(loose.layout, ANY))), spark
    )
    values = {
        row["id"]: (row["b"], row["n"], row["day"], row["later"], row["_rescued_data"])
        for row in loose.rows()
    }
    assert values == dict.fromkeys(("k1", "k3"), ("hello", "1.50", date(2026, 7, 1), "new", None))
    (left,) = quarantine.listed(loose.layout, ANY)
    assert (left["reason"], left["field"], left["origin"]["position"]) == ("type", "at", 2)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_rows_of_one_place_are_applied_once_each(
    spark: SparkSession, tmp_path: Path, times: int
) -> None:
    """A topic that was created again has quarantined records at the offsets of the one before."""
    strict = Landing(tmp_path, target=APPEND, rules={"sane": "a >= 0"})
    strict.deliver(json.dumps({"id": "bad", "seq": 1, "a": -1}))
    strict.drain(spark)
    loose = Landing(tmp_path, target=APPEND)
    rows = spark.read.format("delta").load(loose.layout.tables.quarantine.path)
    other = rows.withColumns(
        {"quarantine_id": F.lit("other"), "raw": F.lit("no json"), "raw_length": F.lit(7)}
    )
    other.withColumn("raw_length", F.col("raw_length").cast("long")).write.format("delta").mode(
        "append"
    ).save(loose.layout.tables.quarantine.path)
    for _ in range(times):
        ids = tuple(quarantine.identified(loose.layout, quarantine.Filter()))
        replay_rows(loose.request("rows", quarantine_ids=ids), spark)
        assert [row["id"] for row in loose.rows("id")] == ["bad"]
        assert quarantine.identified(loose.layout, quarantine.Filter()) == ["other"]


@pytest.mark.long
def test_any_number_of_refused_rows_is_replayed_in_portions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = Landing(tmp_path, target=APPEND, rules={"sane": "a >= 0"})
    strict.deliver(*[json.dumps({"id": f"k{at}", "seq": 1, "a": -at - 1}) for at in range(5)])
    strict.drain(spark)
    loose = Landing(tmp_path, target=APPEND, rules={"sane": "a >= -4"})
    monkeypatch.setattr(replay_rows_module, "MOST", 2)
    ids = tuple(quarantine.identified(loose.layout, quarantine.Filter()))
    report = replay_rows(loose.request("rows", quarantine_ids=ids), spark)
    assert report.drain is not None
    assert (len(report.drain.batches), report.drain.totals["applied"]) == (3, 4)
    assert sorted(row["id"] for row in loose.rows("id")) == ["k0", "k1", "k2", "k3"]
    assert len(quarantine.identified(loose.layout, quarantine.Filter())) == 1
    healthy(loose)


@pytest.mark.long
def test_refused_rows_are_judged_by_when_their_own_file_was_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(
        tmp_path,
        columns={"id": "string", "at": "timestamp"},
        target={},
        rules={"past": "at <= arrived_at"},
    )
    soon = datetime.now(UTC) + timedelta(seconds=2)
    landing.deliver(json.dumps({"id": "early", "at": soon.isoformat()}))
    landing.drain(spark)
    while datetime.now(UTC) <= soon:
        landing.drain(spark)  # idle
    landing.deliver(json.dumps({"id": "late", "at": "2100-01-01T00:00:00Z"}))
    landing.drain(spark)
    first, last = sorted(row["first_seen"] for row in landing.quarantine())
    assert first < soon < last, "else all rows are judged alike"

    ids = tuple(quarantine.identified(landing.layout, quarantine.Filter()))
    replay_rows(landing.request("rows", quarantine_ids=ids), spark)
    assert (
        landing.rows("id") == []
        and len(quarantine.identified(landing.layout, quarantine.Filter())) == 2
    )


@pytest.mark.parametrize(
    ("kind", "values", "newest"),
    [
        ("int", ["9", "10", "-11"], "10"),
        ("decimal(10,2)", ["9.5", "10.25", None], "10.25"),
        ("timestamp", ["2026-10-25T01:30:00Z", "2026-10-25T00:59:00Z"], "2026-10-25 01:30:00"),
        ("date", ["2026-10-25", "0900-01-01"], "2026-10-25"),
        ("int", [None], None),
    ],
)
def test_the_newest_sequence_of_a_batch_is_that_by_value(
    spark: SparkSession, kind: str, values: list[str | None], newest: str | None
) -> None:
    given = spark.createDataFrame(
        [(at % 2, value) for at, value in enumerate(values)], "file int, text string"
    )
    frame = given.withColumn("seq", F.col("text").cast(kind))
    of = F.when(F.col("seq").isNotNull(), counting._sequence(frame, "seq"))
    assert (
        counting.newest_sequence(frame.groupBy("file").agg(F.max(of).alias("_s")).collect())
        == newest
    )


@pytest.mark.long
def test_a_delete_that_a_reset_left_behind_keeps_nothing_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    wrong = Landing(tmp_path)
    wrong.deliver(json.dumps({"id": "k", "seq": 10, "op": "d"}))
    with pytest.raises(Injected):
        wrong.drain(spark, fault="remembered")
    assert [row["id"] for row in wrong.tombstones()] == ["k"]
    keeping = {name: value for name, value in KEYED.items() if name != "apply_as_deletes"}
    right = Landing(tmp_path, target=keeping)
    reset(right)
    right.drain(spark)
    assert [row["id"] for row in right.rows("id")] == ["k"]
    assert right.tombstones() == []
    healthy(right)


@pytest.mark.long
def test_a_delete_that_a_replay_remembered_and_never_made_keeps_nothing_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    keeping = {name: value for name, value in KEYED.items() if name != "apply_as_deletes"}
    strict = Landing(
        tmp_path / "one", target=keeping, rules={"no_deletes": "op is null or op <> 'd'"}
    )
    strict.deliver(
        json.dumps({"id": "k", "seq": 10, "op": "d"}), json.dumps({"id": "x", "seq": 1, "a": 1})
    )
    strict.drain(spark)
    loose = Landing(tmp_path / "one")
    ids = tuple(quarantine.identified(loose.layout, quarantine.Filter()))
    assert len(ids) == 1
    with (
        mock.patch.object(delta_target, "append", side_effect=Injected("append")),
        pytest.raises(Injected),
    ):
        replay_rows(loose.request("rows", quarantine_ids=ids), spark)
    assert [row["id"] for row in loose.tombstones()] == ["k"]
    for landing, given_up in ((loose.copied(tmp_path / "two"), True), (loose, False)):
        if not given_up:
            replay_rows(landing.request("again", quarantine_ids=ids), spark)
        landing.deliver(json.dumps({"id": "k", "seq": 7, "a": 1}), name="002.json")
        report = landing.drain(spark)
        assert report.drain is not None and report.drain.totals["superseded"] == (not given_up)
        assert {row["id"] for row in landing.rows("id")} == ({"k", "x"} if given_up else {"x"})
        assert [row["id"] for row in landing.tombstones()] == ([] if given_up else ["k"])
        healthy(landing)
