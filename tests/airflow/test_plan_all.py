"""One look at all flows: those without work are skipped at once, and no flow that the run may bring
something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from draindown.airflow.factory import dags
from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.config.project import rooted
from draindown.lake.documents import Document
from draindown.planning import plan
from draindown.runs import store
from draindown.runs.report import Backlog, PlanPart
from draindown.runs.request import STEPS, Request
from tests.airflow import tree
from tests.airflow.steps import Steps

PIPELINES = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "pipelines"
PIPELINE = f"""\
pipeline: tree
lake: lake
{tree.DECLARED}"""
IDLE = PlanPart(backlog=Backlog(), reasons={"drain": "nothing is waiting"})


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the planner finds for each flow: a plan, or an error that it raises."""
    found: dict[str, Any] = dict.fromkeys(tree.FLOWS, IDLE)

    def made(request: Request, _now: Any, _source: Any = None) -> tuple[PlanPart, list[Finding]]:
        if isinstance(found[request.flow], Exception):
            raise found[request.flow]
        return found[request.flow], [
            Finding(kind="parked", subject="x.json", detail=f"in {request.flow}")
        ]

    monkeypatch.setattr(plan, "plan", made)
    return found


@pytest.fixture
def dag(project: Path) -> Iterator[DAG]:
    path = PIPELINES / "tree.yaml"
    path.write_text(PIPELINE)
    yield dags(str(PIPELINES.parent / "draindown_dags.py"))["tree"]
    path.unlink()


def skipped(dag: DAG, task: str = "plan-all", **conf: Any) -> set[str]:
    """The tasks that a task skips. Raises AirflowException if it fails."""
    run = Steps(dag, conf)
    run.run(task)
    if task in run.errors:
        raise AirflowException(run.errors[task])
    return run.skipped


def of(*flows: str) -> set[str]:
    return {f"{flow}.{step}" for flow in flows for step in STEPS}


def _report(dag: DAG, flow: str) -> Any:
    spec = rooted(dag.get_task("plan-all").spec, PIPELINES.parents[1])
    return store.read(spec.layout(flow), "manual__1", "plan")


def test_flows_without_work_are_skipped_whole_and_leave_their_reports(
    dag: DAG, plans: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert skipped(dag) == of(*tree.FLOWS)
    for flow in tree.FLOWS:
        report = _report(dag, flow)
        assert (report.outcome, report.findings[0].detail) == ("idle", f"in {flow}")


@pytest.mark.parametrize("step", ["drain", "check"])
def test_a_flow_that_changes_rows_keeps_all_that_read_of_it(
    dag: DAG, plans: dict[str, Any], step: str
) -> None:
    plans["events"] = IDLE.model_copy(update={step: True})
    assert skipped(dag) == of("other")
    assert _report(dag, "other") and not _report(dag, "hourly"), "its own plan writes it"


def test_a_compaction_brings_readers_nothing(dag: DAG, plans: dict[str, Any]) -> None:
    plans["events"] = IDLE.model_copy(update={"compact": True})
    assert skipped(dag) == of("other", "hourly", "daily")


def test_a_derived_flow_with_work_of_its_own_is_not_skipped(
    dag: DAG, plans: dict[str, Any]
) -> None:
    plans["hourly"] = IDLE.model_copy(update={"drain": True})
    assert skipped(dag) == of("other", "events")


@pytest.mark.parametrize(
    "error",
    [
        TerminalError("source-missing", tried="x", found="y", next="z"),
        ValueError("a bug of the planner"),
    ],
)
def test_what_keeps_one_flow_from_being_planned_is_raised_in_its_own_task(
    dag: DAG, plans: dict[str, Any], error: Exception
) -> None:
    plans["events"] = error
    assert skipped(dag) == of("other")
    with pytest.raises(
        (AirflowException, ValueError), match=r"source-missing|a bug of the planner"
    ):
        skipped(dag, "events.plan")


def test_a_lake_that_takes_no_report_is_said_by_each_flow(
    dag: DAG, plans: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", full)
    assert skipped(dag) == set()
    with pytest.raises(AirflowException, match="disk-full"):
        skipped(dag, "events.plan")


def test_a_run_for_one_flow_skips_the_others(dag: DAG, plans: dict[str, Any]) -> None:
    plans["events"] = IDLE.model_copy(update={"drain": True})
    assert skipped(dag, flow="events") == of("daily", "hourly", "other")
    assert not _report(dag, "other"), "it was not looked at"
    assert skipped(dag, flow="daily") == of(*tree.FLOWS)


def test_compaction_that_is_asked_for_skips_no_flow(dag: DAG, plans: dict[str, Any]) -> None:
    assert skipped(dag, force_compact=True) == set()


@pytest.mark.parametrize("conf", [{"max_batchs": 3}, {"mode": "replay"}, {"again": True}])
def test_params_that_no_flow_can_run_with_end_the_run(
    dag: DAG, plans: dict[str, Any], conf: dict[str, Any]
) -> None:
    with pytest.raises(AirflowException, match="bad-params"):
        skipped(dag, **conf)


def test_a_plan_of_a_flow_skips_its_own_steps_and_leaves_itself_to_a_cleared_one(
    dag: DAG, plans: dict[str, Any]
) -> None:
    run = Steps(dag)
    assert run.run("hourly.plan") == {"hourly.plan": "success"}
    assert run.skipped == of("hourly") - {"hourly.plan"}
    assert run.run("hourly.drain")["hourly.drain"] == "skipped", "by the plan that was left for it"
    plans["hourly"] = IDLE.model_copy(update={"check": True})
    assert skipped(dag, "hourly.plan") == set()


def test_a_broken_suite_is_raised_by_its_flow(
    dag: DAG, plans: dict[str, Any], tmp_path: Path
) -> None:
    path = PIPELINES / "tree.yaml"
    path.write_text(PIPELINE.replace("landing/other/*.json, format: json}", "landing/other/*.json, format: json}\n"
                                     "    expectations: broken"))  # fmt: skip
    suite = PIPELINES.parents[1] / "expectations" / "broken.json"
    Document(str(suite)).write({"name": "broken"})
    try:
        suite.write_text("{")
        found = skipped(dags(str(PIPELINES.parent / "draindown_dags.py"))["tree"])
        assert found == of("daily", "events", "hourly")
    finally:
        suite.unlink()


@pytest.mark.long
def test_in_a_real_run_skipped_flows_start_no_task_and_stop_none(
    database: None, told: Path, dag: DAG, plans: dict[str, Any]
) -> None:
    def states() -> dict[str, str]:
        done = dag.test(logical_date=None)
        assert str(done.state) == "success"
        return {ti.task_id: str(ti.state) for ti in done.get_task_instances()}

    assert states() == {"plan-all": "success"} | dict.fromkeys(of(*tree.FLOWS), "skipped")
    assert not (told / "calls").exists()
    plans["hourly"] = IDLE.model_copy(update={"drain": True, "check": True})
    found = states()
    assert {task for task, state in found.items() if state == "success"} == {
        *("plan-all", "hourly.plan", "hourly.drain", "hourly.check", "daily.plan"),
    }
    assert set(found.values()) == {"success", "skipped"}
