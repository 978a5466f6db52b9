"""The flow graph as a DAG: a flow runs after the check of those that it reads, and a failure stops
its branch alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG

from draindown.airflow.factory import dags
from draindown.planning import plan
from draindown.runs.report import Backlog, PlanPart
from tests.airflow import tree

PIPELINES = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "pipelines"
PIPELINE = f"""\
pipeline: tree
lake: lake
airflow: {{retries: 0, max_active_tasks: 3}}
{tree.DECLARED}"""
WORK = PlanPart(backlog=Backlog(units=2, bytes=10), batches=1, drain=True, check=True, compact=True)


@pytest.fixture
def dag(database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[DAG]:
    path = PIPELINES / "tree.yaml"
    path.write_text(PIPELINE)
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (WORK, []))
    yield dags(str(PIPELINES.parent / "draindown_dags.py"))["tree"]
    path.unlink()


def states(dag: DAG) -> dict[str, str]:
    done = dag.test(logical_date=None, run_conf={"force_compact": True})
    return {ti.task_id: str(ti.state) for ti in done.get_task_instances()}


def test_the_dag_shows_the_graph(dag: DAG) -> None:
    assert {task.task_id for task in dag.tasks} == {
        "plan-all",
        *(
            f"{flow}.{step}"
            for flow in tree.FLOWS
            for step in ("plan", "drain", "check", "compact")
        ),
    }
    above = {flow: dag.get_task(f"{flow}.plan").upstream_task_ids for flow in tree.FLOWS}
    assert above == {
        "events": {"plan-all"},
        "other": {"plan-all"},
        "hourly": {"events.check"},
        "daily": {"hourly.check"},
    }
    assert dag.get_task("events.check").downstream_task_ids == {"events.compact", "hourly.plan"}
    assert dag.max_active_tasks == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("fails", "stopped"),
    [
        ("events.drain", {"events.check", "events.compact", *(f"{f}.{s}" for f in ("hourly", "daily") for s in
                                                               ("plan", "drain", "check", "compact"))}),
        ("hourly.check", {"hourly.compact", "daily.plan", "daily.drain", "daily.check", "daily.compact"}),
        ("events.compact", set()),
        ("other.drain", {"other.check", "other.compact"}),
    ],
)  # fmt: skip
def test_a_failing_branch_stops_only_what_depends_on_it(
    dag: DAG, told: Path, fails: str, stopped: set[str]
) -> None:
    (told / f"{fails}.code").write_text("78")
    (told / f"{fails}.error").write_text("table-mismatch")
    found = states(dag)
    assert found.pop(fails) == "failed"
    assert {task for task, state in found.items() if state == "upstream_failed"} == stopped
    assert {state for task, state in found.items() if task not in stopped} == {"success"}


@pytest.mark.long
def test_a_flow_runs_after_those_that_it_reads(dag: DAG, told: Path) -> None:
    assert set(states(dag).values()) == {"success"}
    did = (told / "did").read_text().split()
    order = [
        did.index(step) for step in ("events.check", "hourly.drain", "hourly.check", "daily.drain")
    ]
    assert order == sorted(order)
