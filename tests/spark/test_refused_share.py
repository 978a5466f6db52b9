"""A run that refuses what came in: the drain lands what was good, and the check is red until
someone decides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.flow import quarantine
from draindown.gate import published as gate_published
from draindown.gate import waivers
from draindown.ledger import table as ledger_table
from draindown.pages.overview import flows
from draindown.planning import plan
from draindown.runs import store
from draindown.runs.card import card, verdict
from draindown.runs.report import StepReport
from draindown.spark.checks.check import check
from draindown.spark.job.main import attempt
from draindown.spark.runs import replay_rows
from tests.landing import Landing

BAD = [f"[{n}," for n in range(30)]


def good(n: int, *, seq: int = 1) -> str:
    return f'{{"k": "{n}", "seq": {seq}}}'


def flow(home: Path, target: dict[str, Any], **more: Any) -> Landing:
    columns = {"k": "string not null", "seq": "int not null"}
    return Landing(home, columns=columns, target=target, **more)


def run(
    landing: Landing, spark: SparkSession, run_id: str
) -> tuple[StepReport, StepReport | None, Exit]:
    """Drain and check as a run does: a check only where the plan made after the drain finds it
    due.
    """
    request = landing.request(run_id)
    drained, code = attempt(request, lambda _: landing.drain(spark, run_id=run_id))
    assert code == Exit.DONE, drained.error
    planned = plan.planned(landing.request(run_id).model_copy(update={"step": "plan"}))
    assert planned.plan is not None
    if not planned.plan.check:
        return drained, None, code
    asked = landing.request(run_id).model_copy(update={"step": "check"})
    checked, code = attempt(asked, lambda _: check(asked, spark))
    return drained, checked, code


@pytest.mark.full
@pytest.mark.parametrize(
    "target", [{"keys": ["k"], "sequence_by": ["seq"]}, pytest.param({}, marks=pytest.mark.long)]
)
def test_a_run_that_refuses_every_row_is_red_until_someone_decides(
    spark: SparkSession, tmp_path: Path, target: dict[str, Any]
) -> None:
    landing = flow(tmp_path, target)
    landing.write_pipeline()
    landing.deliver(*(good(n) for n in range(3)))
    assert run(landing, spark, "first")[2] == Exit.DONE
    published = gate_published.published(landing.layout)
    assert published is not None and published.changed_rows == 3

    landing.deliver(*BAD)
    drained, checked, code = run(landing, spark, "bad")
    assert verdict([drained]).startswith("OVER LIMIT") and "100% quarantined" in verdict([drained])
    [finding] = [one for one in drained.findings if one.kind == "quarantined"]
    assert (
        finding.subject == f"{landing.landing}/002.json:1"
        and "one object a line is wanted" in finding.detail
    )
    assert checked is not None and code == Exit.GATE_FAILED
    assert checked.error is not None and checked.error["code"] == "gate-failed"
    assert checked.check is not None and [e.name for e in checked.check.expectations] == [
        gate_published.QUARANTINED_SHARE
    ]
    assert Path(str(checked.check.page)).is_file()
    assert card([drained, checked]).startswith("FAILED")
    assert gate_published.published(landing.layout) == published
    shown = flows(tmp_path / "dags" / "pipelines", tmp_path)[0]
    assert shown.runs[0].failed and shown.runs[0].quarantined == "100% quarantined"
    assert [(row["run_id"], row["share"]) for row in shown.ledger] == [
        ("bad", "100%"),
        ("first", "0%"),
    ]

    landing.deliver(*(good(n) for n in range(100, 200)))
    assert run(landing, spark, "good")[2] == Exit.GATE_FAILED, "good input decides nothing"
    assert len(landing.rows("k")) == 103, "what was good has landed"

    waivers.waive(
        landing.layout, gate_published.QUARANTINED_SHARE, by="ada", reason="a test of the sender"
    )
    _, checked, code = run(landing, spark, "waived")
    assert checked is not None and checked.check is not None and code == Exit.DONE
    assert checked.outcome == "done" and checked.check.changed_rows == 100
    assert run(landing, spark, "after")[1] is None, "nothing is left to check"


@pytest.mark.long
def test_where_nothing_is_left_to_publish_the_pointer_follows_once_rows_are_discarded(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = flow(tmp_path, {"keys": ["k"], "sequence_by": ["seq"]})
    landing.deliver(good(1))
    run(landing, spark, "first")
    landing.deliver(BAD[0])
    assert run(landing, spark, "bad")[2] == Exit.GATE_FAILED
    quarantine.discard(
        landing.layout, quarantine.identified(landing.layout, quarantine.Filter()), by="ada"
    )
    _, checked, code = run(landing, spark, "again")
    assert checked is not None and (code, checked.outcome) == (Exit.DONE, "idle"), (
        "no row changed: nobody is told"
    )
    pointer = gate_published.published(landing.layout)
    assert pointer is not None and pointer.version == landing.layout.tables.target.version
    assert pointer.run_id == "first"


@pytest.mark.long
def test_rows_that_a_corrected_contract_lets_through_count_no_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing = flow(tmp_path, {"keys": ["k"], "sequence_by": ["seq"]}, rules={"small": "seq < 10"})
    landing.deliver(*(good(n, seq=20) for n in range(5)))
    assert run(landing, spark, "bad")[2] == Exit.GATE_FAILED
    corrected = flow(
        tmp_path, {"keys": ["k"], "sequence_by": ["seq"]}, rules={"small": "seq < 100"}
    )
    ids = quarantine.identified(corrected.layout, quarantine.Filter())
    replayed, code = attempt(
        request := corrected.request("replay", quarantine_ids=tuple(ids)),
        lambda _: replay_rows.replay(request, spark),
    )
    assert code == Exit.DONE and replayed.drain is not None
    assert (replayed.drain.quarantined_share, replayed.drain.over_limit) == (None, "")
    _, checked, code = run(corrected, spark, "after")
    assert code == Exit.DONE and checked is not None and checked.check is not None
    assert checked.check.changed_rows == 5


@pytest.mark.long
def test_the_bounds_of_the_flow_decide(spark: SparkSession, tmp_path: Path) -> None:
    mixed = [*(good(n) for n in range(30)), *BAD[:10]]
    for name, bounds, code in (
        ("lax", {}, Exit.DONE),
        ("strict", {"fail": "20%"}, Exit.GATE_FAILED),
    ):
        landing = flow(tmp_path / name, {}, quarantine=bounds)
        landing.deliver(*mixed)
        drained, checked, found = run(landing, spark, "r")
        assert found == code and checked is not None and checked.check is not None
        [share] = checked.check.expectations
        assert (share.judged, share.unexpected, share.success) == (40, 10, code == Exit.DONE)
        assert drained.drain is not None and drained.drain.quarantined_share == 0.25
        assert drained.drain.over_limit == ("warned" if code == Exit.DONE else "failed")
        assert drained.run is not None and drained.run.quarantined_share == 0.25


@pytest.mark.long
def test_a_start_that_died_after_its_commit_is_told_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    from tests.landing import Injected

    landing = flow(
        tmp_path, {"keys": ["k"], "sequence_by": ["seq"]}, source={"max_files_per_trigger": 1}
    )
    for n in range(2):
        landing.deliver(good(n), BAD[0])
    died = landing.request("r")
    with pytest.raises(Injected):
        landing.drain(spark, fault="merged", start=died.start)
    assert not landing.ledger() and store.starts(landing.layout, "r") == []
    again = landing.request("r")
    told, code = attempt(again, lambda _: landing.drain(spark, start=again.start))
    assert code == Exit.DONE and told.drain is not None and told.run is not None
    assert [row["attempt"] for row in told.drain.settled] == [died.start]
    assert [row["attempt"] for row in told.drain.batches] == [again.start]
    assert (told.drain.totals["batches"], told.drain.totals["records"]) == (1, 2)
    rows = ledger_table.of_run(landing.layout, "r")
    assert (
        told.run.totals["records"] == sum(row.records for row in rows) == 4 and told.run.starts == 2
    )
    assert "this run has 1 batch by other starts: 1 file, 2 records -> 1 applied" in card([told])
    other = landing.request("other")
    idle, _ = attempt(other, lambda _: landing.drain(spark, run_id="other", start=other.start))
    assert idle.run is not None and idle.run.totals["records"] == 0, (
        "another run's rows are not its own"
    )
