"""The steps as Airflow runs them, in one real DAG run and by themselves, with a script in the place
of spark-submit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.observability import stats

from draindown.airflow.numbers import publish, summary
from draindown.airflow.operators import StepOperator
from draindown.airflow.outcome import StepFailed
from draindown.base.clock import now
from draindown.config.project import rooted
from draindown.drill.process import alive
from draindown.lake.documents import Document
from draindown.lake.home import FlowHome
from draindown.pages import overview
from draindown.planning import plan
from draindown.runs import report as reports
from draindown.runs import starts, store
from draindown.runs.card import card
from draindown.runs.driver_log import DriverLog
from draindown.runs.report import Backlog, PlanPart
from draindown.runs.request import Request, Step
from tests.airflow.steps import Steps

Plans = dict[str, PlanPart]
Run = Callable[..., tuple[str, dict[str, str]]]
Asked = Callable[..., Steps]
FIRST = ("first.plan", "first.drain", "first.check", "first.compact")
ALL = PlanPart(backlog=Backlog(units=2, bytes=10), batches=5, drain=True, check=True, compact=True)
IDLE = PlanPart(backlog=Backlog(), reasons={"drain": "nothing is waiting"})


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Plans:
    """What the planner finds for each flow."""
    found: Plans = {"first": ALL, "second": ALL}
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (found[request.flow], []))
    return found


@pytest.fixture
def dag(database: None) -> DAG:
    return DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["good"]


@pytest.fixture
def run(dag: DAG) -> Callable[..., tuple[str, dict[str, str]]]:
    """Run the DAG once; returns the run's state and that of each task."""

    def once(conf: dict[str, Any] | None = None) -> tuple[str, dict[str, str]]:
        for task in dag.tasks:
            task.retries = 0
        done = dag.test(logical_date=None, run_conf=conf)
        return str(done.state), {ti.task_id: str(ti.state) for ti in done.get_task_instances()}

    return once


@pytest.fixture
def steps(dag: DAG) -> Asked:
    """Makes the steps of a run with the conf that it is given."""
    return lambda conf=None: Steps(dag, conf)


def calls(told: Path) -> list[str]:
    """The steps for which a driver was started, in order."""
    path = told / "calls"
    return path.read_text().split() if path.exists() else []


def did(told: Path) -> list[str]:
    """The steps that drivers did, in order."""
    path = told / "did"
    return path.read_text().split() if path.exists() else []


def log_of(request: Request, step: Step) -> Path:
    """The driver log of this start of a step: other runs of the project have logs as well."""
    return Path(request.layout.start(request.run_id, step, request.start).log)


def test_a_dag_run_does_what_the_plan_says_stops_a_branch_that_fails_and_shows_no_secret(
    told: Path, plans: Plans, project: Path, monkeypatch: Any, capfd: Any, database: None
) -> None:
    """S8, and what a scheduler adds to the steps: order, skips that do not cascade, branches, asset
    events.
    """
    canary = "canary-4f1d8a3b"
    connection: dict[str, Any] = {
        "conn_type": "spark",
        "host": "local[2]",
        "login": canary,
        "password": canary,
    }
    connection["extra"] = {
        "token": canary,
        "spark.hadoop.fs.s3a.secret.key": canary,
        "principal": None,
    }
    monkeypatch.setenv("AIRFLOW_CONN_CANARY", json.dumps(connection))
    monkeypatch.setenv("DRAINDOWN_SPARK_CONN", "canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", canary)
    dag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["good"]
    for task in dag.tasks:
        task.retries = 0
    plans["second"] = PlanPart(backlog=Backlog(), check=True)
    (told / "second.check.code").write_text("65")
    (told / "second.check.error").write_text("gate-failed")
    done = dag.test(logical_date=None, run_conf={"force_compact": True})
    found = {ti.task_id: str(ti.state) for ti in done.get_task_instances()}
    assert str(done.state) == "failed"
    assert found == dict.fromkeys(("plan-all", *FIRST), "success") | {
        "second.plan": "success",
        "second.drain": "skipped",
        "second.check": "failed",
        "second.compact": "upstream_failed",
    }
    assert sorted(calls(told)) == ["first.compact", "first.drain", "second.check"], (
        "the check is done by the drain's"
    )
    assert [step for step in did(told) if step.startswith("first")] == list(FIRST[1:])
    (event,) = events_of(done.run_id)
    assert (event["version"], event["rows"]) == (3, 7)
    cards = [
        run.card
        for view in overview.flows(project / "dags" / "pipelines", project)
        for run in view.runs
    ]
    left = [path for home in (told, project) for path in home.rglob("*") if path.is_file()]
    left += list(Path(os.environ["AIRFLOW_HOME"]).glob("airflow.db*"))
    assert len(left) > 10
    assert not [path for path in left if canary.encode() in path.read_bytes()]
    assert cards
    logs = capfd.readouterr()
    for said in (*cards, *logs):
        assert canary not in said
    ended = "".join(logs).partition("Task exited")[2]
    assert "next: draindown x" in ended and 'File "' not in "".join(logs), (
        "what to type is last, and no traceback"
    )


def events_of(run_id: str) -> list[dict[str, Any]]:
    """What the asset events of a run say."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        return [
            dict(event.extra) for event in session.query(AssetEvent).filter_by(source_run_id=run_id)
        ]


@pytest.mark.long
def test_all_steps_of_all_flows_run_in_order(told: Path, plans: Plans, run: Run) -> None:
    state, tasks = run({"force_compact": True})
    assert state == "success"
    assert set(tasks.values()) == {"success"}
    for flow in ("first", "second"):
        steps = [f"{flow}.{step}" for step in ("drain", "check", "compact")]
        assert [step for step in did(told) if step.startswith(flow)] == steps


@pytest.mark.long
def test_skips_do_not_cascade(told: Path, plans: Plans, run: Run) -> None:
    plans["first"] = PlanPart(backlog=Backlog(), check=True)
    state, tasks = run()
    assert state == "success"
    assert sorted(calls(told)) == ["first.check", "second.drain"]
    assert sorted(did(told)) == ["first.check", "second.check", "second.drain"]
    assert (tasks["first.drain"], tasks["first.compact"]) == ("skipped", "skipped")


@pytest.mark.long
def test_a_failed_gate_fails_at_once_and_stops_what_follows(
    told: Path, plans: Plans, run: Run
) -> None:
    (told / "first.check.code").write_text("65")
    (told / "first.check.error").write_text("gate-failed")
    state, tasks = run()
    assert state == "failed"
    assert tasks["first.check"] == "failed"
    assert tasks["first.compact"] == "upstream_failed"
    assert sorted(did(told)) == ["first.check", "first.drain", "second.check", "second.drain"]
    assert sorted(calls(told)) == ["first.drain", "second.drain"]


@pytest.mark.parametrize(
    ("conf", "hint"),
    [
        ({"max_batchs": 3}, "did you mean 'max_batches'"),
        ({"flow": "second", "zzz": 1}, "there is no param 'zzz'"),
    ],
)
def test_the_nearest_param_is_named_no_retry_is_made_and_a_report_is_left(
    told: Path, plans: Plans, project: Path, dag: DAG, conf: dict[str, Any], hint: str
) -> None:
    """Of a flow that the run is not for either: the conf may have misspelt it."""
    context = {"dag": dag, "dag_run": SimpleNamespace(conf=conf), "params": conf, "run_id": "r"}
    for task in dag.tasks:
        with pytest.raises(StepFailed, match="bad-params: ") as caught:
            task.execute(context)
        assert hint in str(caught.value)
    assert calls(told) == []
    for flow in ("first", "second"):
        left = starts.newest(FlowHome(str(project / "lake"), "good", flow, flow), "r")
        assert {(one.outcome, (one.error or {})["code"]) for one in left} == {
            ("failed", "bad-params")
        }
        assert "FAILED" in card(left) and hint in card(left)


def test_an_idle_run_starts_no_driver(told: Path, plans: Plans, steps: Asked) -> None:
    plans["first"] = IDLE
    assert list(steps().run(*FIRST).values()) == ["success", *["skipped"] * 3]
    assert calls(told) == []


def test_a_driver_that_died_is_not_excused_by_the_report_of_an_earlier_try(
    told: Path, plans: Plans, steps: Asked, project: Path
) -> None:
    run = steps()
    assert run.run("first.plan", "first.drain")["first.drain"] == "success"
    (told / "first.drain.silent").touch()
    assert run.run("first.drain")["first.drain"] == "failed"


def test_compact_starts_no_driver_without_evidence(told: Path, plans: Plans, steps: Asked) -> None:
    assert steps().run("first.plan", "first.compact")["first.compact"] == "skipped"
    assert calls(told) == []


def test_force_compact_overrides_the_plan(told: Path, plans: Plans, steps: Asked) -> None:
    plans["first"] = IDLE
    found = steps({"force_compact": True}).run(*FIRST)
    assert list(found.values()) == ["success", "skipped", "skipped", "success"]
    assert calls(told) == ["first.compact"]


def test_what_a_person_types_reaches_the_job_inside_the_request_only(
    told: Path, plans: Plans, steps: Asked, project: Path
) -> None:
    found = steps({"max_batches": 3, "max_minutes": 2}).run("second.plan", "second.check")
    assert found["second.check"] == "success"
    argv = json.loads((told / "second.check.argv").read_text())
    request = Request.decode(argv[-1])
    assert argv[-3:-1] == [str(project / "jobs" / "check.py"), "--request"]
    assert (request.flow, request.step, request.max_batches, request.max_duration) == (
        "second",
        "check",
        3,
        120.0,
    )
    assert request.root == str(project)
    assert request.spec.lake == str(project / "lake")
    assert request.suite == {"name": "some", "expectations": []}
    assert request.owner.startswith("good manual__")
    assert argv[argv.index("--master") + 1] == "local[2]"


HOSTILE = (
    *(
        '"; touch {marker} #',
        "$(touch {marker})",
        "`touch {marker}`",
        "\ntouch {marker}",
        "x\x00y",
        "../../etc",
    ),
    *(
        "--conf spark.driver.extraJavaOptions=-XX:OnError=touch",
        "--jars http://127.0.0.1/x.jar",
        "--py-files x.py",
    ),
    *(
        "spark.driver.extraClassPath=x",
        "{{{{ 7 * 7 }}}}",
        "{{% raw %}}",
        "file:///etc/passwd",
        "first; touch {marker}",
    ),
)


def test_s1_hostile_params_are_refused_before_anything_runs(
    told: Path, plans: Plans, run: Run, dag: DAG
) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    marker, names = told / "marker", set(dag.params)
    assert len(names) == 8
    for name, text in product(names, HOSTILE):
        with pytest.raises(ParamValidationError):
            dag.params.get_param(name).resolve(text.format(marker=marker))
    with pytest.raises(ValueError, match="param from"):  # Airflow does ask the schema
        run({"from": HOSTILE[0].format(marker=marker)})
    assert calls(told) == []
    assert not marker.exists()


def test_s1_s5_a_run_that_is_given_more_than_params_starts_no_driver(
    told: Path, plans: Plans, dag: DAG, project: Path
) -> None:
    marker = told / "marker"
    texts = [text.format(marker=marker) for text in HOSTILE]
    names = (
        "application",
        "application_args",
        "conf",
        "jars",
        "py_files",
        "env_vars",
        "spark_binary",
        "root",
        "lake",
    )
    hostile = (
        dict.fromkeys(names, texts)
        | {text: text for text in texts}
        | {"__class": "os.system", "spec": {}}
    )
    for conf in (hostile, *({name: value} for name, value in hostile.items())):
        context = {"dag_run": SimpleNamespace(conf=conf), "params": conf, "run_id": "r", "dag": dag}
        with pytest.raises(StepFailed, match="bad-params: ") as caught:
            dag.get_task("first.drain").execute(context)
        assert len(str(caught.value)) < 2000 and len(str(caught.value).splitlines()) <= 5
    assert calls(told) == []
    assert not marker.exists()


def test_s1_the_command_line_holds_one_argument_that_depends_on_the_run(
    told: Path, plans: Plans, steps: Asked, project: Path
) -> None:
    def driver(conf: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
        assert steps(conf).run("first.plan", "first.drain")["first.drain"] == "success"
        argv = json.loads((told / "first.drain.argv").read_text())
        request = Request.decode(argv.pop()).model_dump(mode="json")
        return argv, {
            name: value
            for name, value in request.items()
            if name not in ("run_id", "owner", "start")
        }

    argv, request = driver(None)
    assert argv[-2:] == [str(project / "jobs" / "drain.py"), "--request"]
    assert driver({"max_batches": 3, "flow": "first"}) == (argv, request | {"max_batches": 3})


def test_the_task_s_log_has_our_words_and_the_driver_log_has_spark_s(
    told: Path, plans: Plans, steps: Asked, project: Path, capfd: Any
) -> None:
    another = steps()
    another.run_id = "manual__0"
    for run in (another, steps()):
        capfd.readouterr()
        run.run("first.plan", "first.drain")
    said = "".join(capfd.readouterr())
    request = json.loads((told / "first.drain.argv").read_text())[-1]
    log = log_of(Request.decode(request), "drain")
    kept = log.read_text()
    assert "the job's own words about first.drain" in said and str(log) in said
    assert "Spark's words" not in said and request not in said and "--conf" not in said
    assert "WARN: Spark's words about first.drain" in kept and "own words" not in kept
    assert request in kept and kept.startswith("== ")  # the command, to be typed again


def test_a_driver_that_left_no_report_is_told_with_its_log(
    told: Path, plans: Plans, steps: Asked
) -> None:
    (told / "first.drain.silent").touch()
    (told / "first.drain.code").write_text("1")
    run = steps()
    assert run.run("first.plan", "first.drain")["first.drain"] == "failed"
    said = run.errors["first.drain"]
    assert "driver-died: the driver ended with exit code 1" in said
    assert re.search(r"drain@\S+\.log   # what Spark said last", said)


def test_a_driver_that_could_not_write_its_report_is_told_by_what_it_printed(
    told: Path, plans: Plans, steps: Asked, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(DriverLog, "of", lambda *_: DriverLog(str(told / "elsewhere.log")))
    (told / "first.drain.silent").touch()
    (told / "first.drain.code").write_text("78")
    run = steps()
    assert run.run("first.plan", "first.drain")["first.drain"] == "failed"
    said = run.errors["first.drain"]
    assert (
        "report-not-written: the driver ended in order, with exit code 78" in said
        and "retry" not in said
    )
    assert f"less {told / 'elsewhere.log'} " in said, "which the lake did not take either"
    (told / "first.drain.error").write_text("disk-full")
    run = steps()
    assert run.run("first.plan", "first.drain")["first.drain"] == "failed"
    assert "disk-full: f" in run.errors["first.drain"]
    assert "the driver exited but could not write its report" in "".join(capfd.readouterr())


def test_a_task_that_ends_before_its_job_starts_leaves_a_report(
    told: Path, plans: Plans, steps: Asked, project: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DRAINDOWN_SPARK_SUBMIT", str(project / "nowhere"))
    assert steps().run("first.plan", "first.drain")["first.drain"] == "failed" and calls(told) == []
    shown = overview.flows(project / "dags" / "pipelines", project)[0].runs[0]
    assert shown.mark == "FAILED" and shown.what.startswith("drain: no-spark-submit")
    assert "export DRAINDOWN_SPARK_SUBMIT=" in shown.card


def before(project: Path) -> tuple[StepOperator, Request]:
    task = operator()
    return task, request_of(task, project).model_copy(update={"spec": rooted(task.spec, project)})


def test_no_task_of_a_missing_lake_writes_a_report_into_another(
    project: Path, told: Path, plans: Plans, steps: Asked
) -> None:
    plans["first"] = plans["second"] = IDLE
    assert steps().run("first.plan") == {"first.plan": "success"}
    shutil.rmtree(project / "lake")
    done = steps()
    assert set(done.run("plan-all", *FIRST).values()) == {"success", "failed"}
    assert all(
        done.states[task] == "failed" and "lake-missing" in done.errors[task] for task in FIRST
    )
    assert not (project / "lake").exists() and calls(told) == []


def test_a_try_tells_of_one_before_whose_driver_died(
    project: Path, capfd: Any, database: None
) -> None:
    task, asked = before(project)
    Document(asked.layout.start("r", "drain").at_work).write(
        {"pid": 20434, "host": "vm", "at": "2026-01-01T00:00:00+00:00"},
    )
    task._log_earlier_try(asked)
    said = "".join(capfd.readouterr())
    assert "an earlier try left no report: drain was at work since 2026-01-01 00:00:00 UTC" in said
    assert "process 20434 on vm" in said


def test_a_try_tells_of_one_before_that_airflow_never_heard_of(
    project: Path, capfd: Any, database: None
) -> None:
    task, asked = before(project)
    store.write(asked.layout, reports.of(asked, now(), "idle"))
    task._log_earlier_try(asked)
    assert "an earlier try ended well at " in "".join(capfd.readouterr())


@pytest.mark.parametrize(("code", "told_of"), [("stopped", True), ("lease-held", False)])
def test_a_try_tells_of_one_before_that_failed_and_of_no_wait(
    project: Path, capfd: Any, database: None, code: str, told_of: bool
) -> None:
    task, asked = before(project)
    store.write(asked.layout, reports.of(asked, now(), "failed", error={"code": code}))
    task._log_earlier_try(asked)
    said = "".join(capfd.readouterr())
    assert (("an earlier try failed at " in said) and (f"drain: {code}" in said)) == told_of


def test_a_first_try_tells_of_none(project: Path, capfd: Any, database: None) -> None:
    task, asked = before(project)
    task._log_earlier_try(asked)
    assert "earlier try" not in "".join(capfd.readouterr())


def test_a_check_that_publishes_nothing_tells_nobody(
    told: Path, plans: Plans, steps: Asked
) -> None:
    run = steps()
    assert run.run("first.plan", "first.check")["first.check"] == "success"
    assert (run.events["first.check"]["version"], run.events["first.check"]["rows"]) == (3, 7)
    (told / "first.check.outcome").write_text("idle")
    run = steps()
    assert run.run("first.plan", "first.check")["first.check"] == "skipped" and not run.events


def test_a_retry_tells_what_an_earlier_try_published(
    told: Path, plans: Plans, steps: Asked, monkeypatch: Any
) -> None:
    from draindown.gate import published

    def pointer(layout: FlowHome) -> published.Published | None:
        if not (told / "first.check.argv").exists():  # the plan asks, too
            return None
        of_this_run = Request.decode(json.loads((told / "first.check.argv").read_text())[-1]).run_id
        return published.Published(
            version=3,
            table_id="t",
            changed_at=None,
            at=AT or now(),
            run_id=of_this_run,
            rows=7,
            changed_rows=5,
        )

    AT = None
    (told / "first.check.outcome").write_text("idle")
    monkeypatch.setattr(published, "published", pointer)
    run = steps()
    assert run.run("first.plan", "first.check")["first.check"] == "success"
    assert run.events["first.check"]["rows"] == 5, "what was published, not what was left to judge"
    AT = now()  # as where Airflow does a run again: it is planned again, after it published
    run = steps()
    assert run.run("first.plan", "first.check")["first.check"] == "skipped" and not run.events


def test_what_a_killed_try_committed_is_in_the_numbers_of_the_run(
    told: Path,
    plans: Plans,
    steps: Asked,
    project: Path,
    capfd: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for mark in ("silent", "committed"):
        (told / f"first.drain.{mark}").touch()
    assert steps().run("first.plan", "first.drain")["first.drain"] == "failed"
    first = Request.decode(json.loads((told / "first.drain.argv").read_text())[-1])
    assert "by the ledger it committed 1 batch: 200,000 records -> 200,000 applied" in "".join(
        capfd.readouterr()
    )
    (told / "first.drain.silent").unlink()
    (told / "first.drain.committed").unlink()
    task = operator()
    again = first.model_copy(update={"start": "again"})
    task.prepare(again, size="small")
    assert task._submit(DriverLog.of(again.layout, again.run_id, "drain"), again) == 0
    report = store.read(first.layout, first.run_id, "drain", "again")
    assert report is not None
    numbers = summary(report)
    assert (numbers["records"], numbers["run_records"], numbers["run_applied"]) == (
        7,
        200_000,
        200_000,
    )
    assert numbers["start"] == "again" and "run_quarantined_share" in numbers
    gauges: dict[str, tuple[float, dict[str, str]]] = {}
    monkeypatch.setattr(
        stats, "gauge", lambda name, number, tags: gauges.update({name: (number, tags)})
    )
    assert report.drain is not None
    more = {"quarantined_share": 0.25, "sinks": {"alerts": {"sent": 3, "unsendable": 1}}}
    publish(report.model_copy(update={"drain": report.drain.model_copy(update=more)}))
    tags = {"pipeline": "good", "flow": "first"}
    assert gauges["draindown.drain.run_records"] == (200_000, tags)
    assert gauges["draindown.drain.records"] == (7, tags)
    assert gauges["draindown.drain.quarantined_share"] == (0.25, tags)
    assert gauges["draindown.drain.sink_alerts_sent"] == (3, tags)
    assert gauges["draindown.drain.sink_alerts_unsendable"] == (1, tags)
    assert gauges["draindown.drain.failed"] == (0, tags)
    assert "draindown.drain.outcome" not in gauges
    shown = overview.flows(project / "dags" / "pipelines", project)[0]
    assert [row["records"] for row in shown.ledger] == [200_000]
    assert "by other starts: 0 files, 199,993 records" in shown.runs[0].card


def operator(**more: Any) -> StepOperator:
    from draindown.config.loader import load

    spec = load(
        Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "pipelines" / "good.yaml", os.environ
    )
    return StepOperator(task_id="drain", spec=spec, flow="first", step="drain", **more)


def request_of(task: StepOperator, project: Path) -> Request:
    return Request(spec=task.spec, flow="first", step="drain", run_id="r", root=str(project))


def test_without_a_connection_spark_runs_here_not_on_yarn(
    told: Path, project: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    task = operator()
    task.prepare(request_of(task, project), size="small")
    command = task._hook._build_spark_submit_command(task.application)
    assert command[command.index("--master") + 1] == "local[*]"
    assert any(word.startswith("spark.driver.host=127.0.0.1") for word in command)


def test_a_connection_to_a_cluster_sends_executors_the_jars_and_nothing_that_suits_one_machine(
    told: Path, project: Path, monkeypatch: Any
) -> None:
    connection = {"conn_type": "spark", "host": "spark://m", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    monkeypatch.setenv("DRAINDOWN_SPARK_CONN", "cluster")
    task = operator()
    task.prepare(request_of(task, project), size="small")
    command = task._hook._build_spark_submit_command(task.application)
    assert command[command.index("--master") + 1] == "spark://m:7077"
    given = dict(word.split("=", 1) for flag, word in pairwise(command) if flag == "--conf")
    assert given["spark.jars"].split(",") == given["spark.driver.extraClassPath"].split(":")
    assert (
        not {"spark.driver.host", "spark.sql.shuffle.partitions", "spark.memory.fraction"}
        & given.keys()
    )


def test_cluster_deploy_mode_is_refused(told: Path, project: Path, monkeypatch: Any) -> None:
    from draindown.base.errors import TerminalError

    connection = {
        "conn_type": "spark",
        "host": "spark://m:7077",
        "extra": {"deploy-mode": "cluster"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
    monkeypatch.setenv("DRAINDOWN_SPARK_CONN", "cluster")
    task = operator()
    with pytest.raises(TerminalError) as caught:
        task.prepare(request_of(task, project), size="small")
    assert caught.value.code == "cluster-deploy-mode"


@pytest.fixture
def hanging(told: Path, project: Path) -> Iterator[tuple[StepOperator, list[int]]]:
    """A drain that runs, and the process ids of its driver and of the driver's child."""
    (told / "first.drain.sleep").touch()
    task = operator()
    task.prepare(request_of(task, project), size="small")
    request = request_of(task, project)
    log = DriverLog.of(request.layout, "r", "drain")
    thread = threading.Thread(target=task._submit, args=(log, request), daemon=True)
    thread.start()
    yield task, wait_for_pids(told)
    task.on_kill()
    thread.join(30)


def wait_for_pids(told: Path) -> list[int]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if (told / "pids").exists() and len(found := (told / "pids").read_text().split()) == 2:
            return [int(pid) for pid in found]
        time.sleep(0.05)
    raise AssertionError("the fake driver did not start")


def gone(pids: list[int], seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_a_killed_task_leaves_no_process(hanging: tuple[StepOperator, list[int]]) -> None:
    task, pids = hanging
    assert all(map(alive, pids))
    started = time.monotonic()
    task.on_kill()
    assert time.monotonic() - started < 4
    assert gone(pids)


def test_a_task_whose_supervisor_dies_leaves_no_process(told: Path, project: Path) -> None:
    (told / "first.drain.sleep").touch()
    task = operator()
    task.prepare(request_of(task, project), size="small")
    log = DriverLog.of(request_of(task, project).layout, "r", "drain")
    supervisor = os.fork()
    if supervisor == 0:
        try:
            if (runner := os.fork()) == 0:
                signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # as Airflow's runner does
                task._submit(log, request_of(task, project))
            else:
                (told / "runner").write_text(str(runner))
                time.sleep(60)
        finally:
            os._exit(0)
    pids = [*wait_for_pids(told), int((told / "runner").read_text())]
    assert all(map(alive, pids))
    os.kill(supervisor, signal.SIGKILL)
    os.waitpid(supervisor, 0)
    try:
        assert gone(pids)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_the_driver_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "from draindown.airflow.process import die_with_parent\n"
        "p = subprocess.Popen(['sleep', '600'], preexec_fn=die_with_parent, start_new_session=True)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone([child])
