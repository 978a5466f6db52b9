"""Replays started from Airflow: by params, by a backfill, and what contradicts itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.param import process_params

from draindown.airflow import requests
from draindown.airflow.factory import dags
from draindown.base.errors import TerminalError
from draindown.config.loader import load
from draindown.config.models import PipelineSpec
from draindown.pages import overview
from draindown.runs import store
from draindown.runs.request import STEPS, Again, Request
from tests.airflow.steps import Steps
from tests.flowfiles import drained

PIPELINES = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "pipelines"
# flow f is that of tests.flowfiles: two files, first seen on 1 January 2026 at noon
PIPELINE = """\
pipeline: p
schedule: "@daily"
lake: lake
airflow: {retries: 0}
flows:
  g:
    source: {files: in/*, format: json}
    columns: {id: string not null}
  f:
    source: {files: in/*, format: json, max_files_per_trigger: 1}
    columns: {id: string not null, n: int not null}
    target: {keys: [id], sequence_by: [n]}
    max_batches: 1
"""
F = ("f.plan", "f.drain", "f.check", "f.compact")
NEW_YEAR = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T01:00:00+01:00"}
THAT_DAY = Again(since=datetime(2026, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 2, tzinfo=UTC))

Run = Callable[..., tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def file(database: None) -> Iterator[Path]:
    path = PIPELINES / "p.yaml"
    path.write_text(PIPELINE)
    yield path
    path.unlink()


@pytest.fixture
def dag(file: Path) -> DAG:
    """A DAG of its own for each test: `dag.test` leaves a run's params in it."""
    return dags(str(file.parents[1] / "draindown_dags.py"))["p"]


@pytest.fixture
def spec(file: Path) -> PipelineSpec:
    return load(file, os.environ)


@pytest.fixture(autouse=True)
def flow(project: Path) -> Iterator[None]:
    """Flow `f` is drained."""
    drained(project)
    yield
    shutil.rmtree(project / "in")


@pytest.fixture
def run(dag: DAG) -> Run:
    """Run the DAG once: the run's state and that of each task."""

    def once(conf: dict[str, Any], **more: Any) -> tuple[str, dict[str, str]]:
        done = dag.test(run_conf=conf, **{"logical_date": None, **more})
        return str(done.state), {ti.task_id: str(ti.state) for ti in done.get_task_instances()}

    return once


def did(told: Path) -> list[str]:
    """The steps that drivers did, in order."""
    path = told / "did"
    return path.read_text().split() if path.exists() else []


def asked_of(told: Path, step: str) -> Request:
    return Request.decode(json.loads((told / f"f.{step}.argv").read_text())[-1])


def test_a_run_in_mode_replay_plans_submits_and_shows_a_replay(
    told: Path, dag: DAG, spec: PipelineSpec, project: Path
) -> None:
    tasks = Steps(dag, {"mode": "replay", "flow": "f", **NEW_YEAR}).run()
    assert did(told) == ["f.drain", "f.check"]
    assert {task: state for task, state in tasks.items() if state != "skipped"} == dict.fromkeys(
        ("plan-all", "f.plan", "f.drain", "f.check"), "success"
    )
    request = asked_of(told, "drain")
    assert (request.replay, request.max_batches) == (
        THAT_DAY,
        None,
    )  # the flow's own bounds are about drains
    planned = store.read(request.layout, request.run_id, "plan")
    assert planned is not None and planned.plan is not None
    assert (planned.plan.backlog.units, planned.plan.batches) == (2, 2)
    assert "2026-01-01" in planned.plan.replay
    (shown,) = (view.runs for view in overview.flows(PIPELINES, project, {"p"}) if view.flow == "f")
    assert "replayed" in shown[0].what
    assert planned.plan.replay in shown[0].card


def test_a_range_in_which_nothing_was_seen_starts_no_drain(
    told: Path, dag: DAG, project: Path
) -> None:
    conf = {
        "mode": "replay",
        "flow": "f",
        "from": "2030-01-01T00:00:00Z",
        "to": "2030-01-02T00:00:00Z",
    }
    assert Steps(dag, conf).run(*F)["f.drain"] == "skipped"
    assert did(told) == ["f.check"]  # what is not published is judged, whoever left it
    (shown,) = (view.runs for view in overview.flows(PIPELINES, project, {"p"}) if view.flow == "f")
    assert "nothing to replay" in shown[0].what
    assert "no drained input was first seen then" in shown[0].card


def test_what_cannot_be_replayed_fails_in_the_plan_of_a_run_for_it_alone(
    told: Path, dag: DAG
) -> None:
    run = Steps(dag, {"mode": "replay", "flow": "g", **NEW_YEAR})
    assert run.run("plan-all", "g.plan") == {"plan-all": "success", "g.plan": "failed"}
    assert "replay-would-double" in run.errors["g.plan"] and run.skipped == set(F)


def test_a_flow_that_appends_is_left_out_of_a_run_for_all_flows(
    told: Path, dag: DAG, project: Path
) -> None:
    run = Steps(dag, {"mode": "replay", **NEW_YEAR})
    run.run("plan-all")
    assert run.skipped == {f"g.{step}" for step in STEPS}
    assert run.run(*F)["f.drain"] == "success" and did(told) == ["f.drain", "f.check"]
    (shown,) = (view.runs for view in overview.flows(PIPELINES, project, {"p"}) if view.flow == "g")
    assert "nothing to replay" in shown[0].what
    assert (
        "not-replayed  g  it appends" in shown[0].card and "draindown rebuild p/g" in shown[0].card
    )


def test_a_flow_that_appends_refuses_by_name(told: Path, spec: PipelineSpec, project: Path) -> None:
    from draindown.planning.plan import planned

    context = _context(run_type="backfill", flow="g")
    with pytest.raises(TerminalError) as caught:
        planned(requests.request_for(spec, "g", "plan", project, context))
    assert caught.value.code == "replay-would-double"


@pytest.mark.long
def test_a_run_of_a_backfill_replays_its_interval(
    told: Path, run: Run, dag: DAG, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made, expected in zip(
        _backfill(dag, monkeypatch), (["f.check"], ["f.drain", "f.check"]), strict=True
    ):
        (told / "did").unlink(missing_ok=True)
        state, _ = run({}, logical_date=made)
        assert state == "success"
        assert did(told) == expected
    assert asked_of(told, "drain").replay == THAT_DAY


def _backfill(dag: DAG, monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Have Airflow make a backfill of two days, and `dag.test` run its runs instead of ones of its
    own.
    """
    from airflow.models import dagrun
    from airflow.models.backfill import ReprocessBehavior, _create_backfill
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    dag.test(logical_date=None, mark_success_pattern=".*")  # writes the DAG into the database
    days = [datetime(2025, 12, 31, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    _create_backfill(
        dag_id=dag.dag_id,
        from_date=days[0],
        to_date=days[1],
        max_active_runs=1,
        reverse=False,
        dag_run_conf={"flow": "f"},
        triggering_user_name="me",
        reprocess_behavior=ReprocessBehavior.NONE,
    )

    def existing(*, dag: Any, session: Any, logical_date: datetime, **_: Any) -> Any:
        found = session.scalar(
            select(dagrun.DagRun).where(dagrun.DagRun.logical_date == logical_date)
        )
        assert found.run_type == "backfill"
        found.dag, found.state = dag, DagRunState.RUNNING
        session.commit()
        return found

    monkeypatch.setattr(dagrun, "get_or_create_dagrun", existing)
    return days


def _context(run_type: str = "manual", **params: Any) -> dict[str, Any]:
    day = {"data_interval_start": THAT_DAY.since, "data_interval_end": THAT_DAY.until}
    run = SimpleNamespace(run_id="r", run_type=run_type, **day)
    task = SimpleNamespace(dag_id="p", task_id="t", try_number=1)
    return {"dag_run": run, "params": params, "ti": task, "run_id": "r"}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"mode": "replay"}, "needs a time"),
        ({"mode": "replay", "from": NEW_YEAR["from"]}, "needs a time"),
        ({"mode": "replay", "from": NEW_YEAR["to"], "to": NEW_YEAR["from"]}, "a later one"),
        ({"mode": "replay", "from": NEW_YEAR["from"], "to": NEW_YEAR["from"]}, "a later one"),
        ({"mode": "replay", "from": "2026-02-30T00:00:00Z", "to": NEW_YEAR["to"]}, "is no time"),
        (
            {"mode": "replay", "from": NEW_YEAR["from"], "to": "9999-12-31T23:59:59-23:00"},
            "is no time",
        ),
        ({"mode": "drain", **NEW_YEAR}, "mode replay"),
        ({"again": True}, "mode replay"),
        ({"run_type": "backfill", "mode": "replay", **NEW_YEAR}, "its own interval"),
    ],
)
def test_contradictions_are_named(spec: PipelineSpec, params: dict[str, Any], words: str) -> None:
    with pytest.raises(TerminalError) as caught:
        requests.replay(spec, _context(**params))
    assert caught.value.code == "bad-params"
    assert words in caught.value.found


def test_params_that_airflow_drops_are_refused(
    dag: DAG, spec: PipelineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {"mode": "replay", "force_compact": False, **NEW_YEAR}
    run = SimpleNamespace(conf=conf)

    def context() -> dict[str, Any]:
        given = process_params(dag, dag.get_task("f.drain"), conf, suppress_exception=False)
        return {"dag_run": run, "params": given, "run_id": "r"}

    monkeypatch.setenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS", "False")
    with pytest.raises(TerminalError) as caught:
        requests.refuse_conf(spec, context())
    assert caught.value.code == "bad-params"
    assert (
        "mode, from, to: " in caught.value.found
        and "DAG_RUN_CONF_OVERRIDES_PARAMS" in caught.value.found
    )
    monkeypatch.delenv("AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS")
    requests.refuse_conf(spec, context())  # last: Airflow writes a run's params into its DAG


@pytest.mark.parametrize("more", ["", " --again"])
def test_next_of_a_replay_is_the_replay(spec: PipelineSpec, project: Path, more: str) -> None:
    day = "--from 2026-01-01T00:00:00+00:00 --to 2026-01-02T00:00:00+00:00"
    assert THAT_DAY.times == day
    context = _context("backfill", again=bool(more))
    asked = requests.request_for(spec, next(iter(spec.flows)), "drain", project, context)
    assert asked.resume == f"draindown replay {spec.pipeline}/{asked.flow} {day}{more} --yes"


def test_a_drain_and_a_time_without_a_zone(spec: PipelineSpec) -> None:
    assert requests.replay(spec, _context(mode="drain")) is None
    times = {"from": "2026-01-01T00:00", "to": "2026-01-02T00:00"}
    assert requests.replay(spec, _context(mode="replay", **times)) == THAT_DAY
    assert requests.replay(spec, _context("backfill", again=True)) == THAT_DAY.model_copy(
        update={"again": True}
    )


def test_a_derived_flow_is_replayed_by_a_run_for_it_alone_and_follows_any_other(
    spec: PipelineSpec, project: Path
) -> None:
    per = {"keys": ["id"], "sql": f"select id from {spec.flows['f'].table_name('f')} group by id"}
    derived = {"source": {"table": spec.flows["f"].table_name("f")}, "query": per}
    flows = {"f": spec.flows["f"].model_dump(exclude_none=True), "d": derived}
    whole = PipelineSpec.model_validate(spec.model_dump(exclude_none=True) | {"flows": flows})
    found = {
        only: requests.request_for(
            whole, "d", "plan", project, _context(mode="replay", flow=only, **NEW_YEAR)
        ).replay
        for only in (None, "f", "d")
    }
    assert found == {None: None, "f": None, "d": THAT_DAY}
