"""A DAG of a project with environments: what it is built for, and what another process may not
do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG

from draindown.airflow.factory import dags
from draindown.airflow.outcome import StepFailed
from tests.airflow.conftest import PROJECT
from tests.airflow.steps import Steps

FILE = "environments:\n  dev: {lake: dev}\n  prod: {lake: prod, schedule: '30 5 * * *'}\n"
PIPELINE = """\
pipeline: shop
airflow: {retries: 1, max_active_tasks: 2, pool: spark, queue: java, timezone: Europe/Berlin}
flows:
  orders: {source: {files: in/*, format: json}, columns: {id: string}}
"""
DAGS = PROJECT / "dags"


@pytest.fixture(autouse=True)
def file(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DRAINDOWN_ENV", "prod")
    written = (project / "draindown.yaml", DAGS / "pipelines" / "shop.yaml")
    for path, text in zip(written, (FILE, PIPELINE), strict=True):
        path.write_text(text)
    yield
    for path in written:
        path.unlink()


@pytest.fixture
def dag(database: None) -> DAG:
    return dags(str(DAGS / "draindown_dags.py"))["shop"]


def test_a_dag_says_for_which_environment_it_is_built(dag: DAG) -> None:
    assert dag.params["environment"] == "prod"
    assert dag.params.get_param("environment").schema["enum"] == ["prod"]
    assert "Environment: **prod**" in str(dag.doc_md)
    orders = dag.get_task("orders.drain")
    assert (orders.spec.lake, orders.spec.environment) == ("prod", "prod")


def test_settings_of_airflow_are_passed_on(dag: DAG) -> None:
    assert dag.max_active_tasks == 2
    for task in dag.tasks:
        assert (task.retries, task.pool, task.queue) == (1, "spark", "java")
    assert (str(dag.timetable.timezone), dag.timetable.expression) == (
        "Europe/Berlin",
        "30 5 * * *",
    )


@pytest.mark.parametrize("task", ["plan-all", "orders.plan", "orders.drain", "orders.compact"])
def test_a_process_of_another_environment_ends_before_it_looks(
    dag: DAG, project: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setenv("DRAINDOWN_ENV", "dev")
    steps = Steps(dag)
    assert steps.run(task) == {task: "failed"}
    assert steps.errors[task].startswith("environment-mismatch: it is for environment prod")
    with pytest.raises(StepFailed) as caught:
        dag.get_task(task).execute(steps._context(task, {}))
    assert (caught.value.code, caught.value.is_final) == (78, True)
    assert not (project / "dev").exists()
    assert not (project / "prod").exists()


def test_a_run_that_was_triggered_in_another_environment_does_nothing(
    dag: DAG, project: Path
) -> None:
    steps = Steps(dag, {"environment": "dev"})
    assert steps.run("plan-all") == {"plan-all": "failed"}
    assert steps.errors["plan-all"].startswith("environment-mismatch")
    assert not (project / "prod").exists()


def test_a_project_whose_environment_is_not_chosen_has_failing_dags(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRAINDOWN_ENV")
    made = dags(str(DAGS / "draindown_dags.py"))
    assert {name: "invalid-spec" in one.tags for name, one in made.items()} == dict.fromkeys(
        made, True
    )
    (task,) = made["shop"].tasks
    with pytest.raises(StepFailed, match="environment-not-chosen"):
        task.execute({})
