"""The DAGs as Airflow sees them: structure, params, broken files, and what parsing costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import CronDataIntervalTimetable
from airflow.sdk.definitions.timetables.simple import NullTimetable
from airflow.utils.dates import cron_presets

from draindown.airflow.factory import dags, params
from draindown.airflow.outcome import StepFailed
from draindown.airflow.requests import PARAMS
from draindown.config.schedule import PRESETS
from draindown.lake.home import FlowHome
from draindown.runs import starts

REPOSITORY = Path(__file__).resolve().parents[2]
FLOWS = ("first", "second")
TIMES = [None, "2026-01-31T12:00:00Z", "2026-01-31T12:00", "2026-01-31T12:00:00.000+05:45"]
NO_TIMES = [
    *(
        "",
        "today",
        "2026-01-31",
        1767225600,
        "2026-01-31T12:00:00Z\n",
        "--from 2026-01-31T12:00:00Z",
        "spark.driver.x",
    ),
    *("2026-01-31T12:00:00Z; touch x", "$(id)", "{{ ds }}", "٢٠٢٦-01-31T12:00:00Z"),
]


@pytest.fixture(scope="module")
def bag(database: None) -> DagBag:
    return DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])


def test_no_import_errors_and_one_dag_per_file(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == {"good", "broken"}


def test_presets_are_those_of_airflow() -> None:
    assert set(PRESETS) == set(cron_presets)


def test_each_step_of_a_flow_follows_the_other_and_flows_that_read_nothing_of_each_other_are_branches(
    bag: DagBag,
) -> None:
    dag = bag.dags["good"]
    for flow in ("first", "second"):
        steps = [f"{flow}.{step}" for step in ("plan", "drain", "check", "compact")]
        assert dag.get_task(steps[0]).upstream_task_ids == {"plan-all"}
        for task, following in pairwise(steps):
            assert dag.get_task(task).downstream_task_ids == {following}
        assert dag.get_task(steps[-1]).downstream_task_ids == set()
    assert len(dag.tasks) == 9 and dag.max_active_tasks == 1


def test_every_task_is_careful(bag: DagBag) -> None:
    for task in bag.dags["good"].tasks:
        assert task.owner == "tests"
        assert task.retries == 3
        assert task.retry_delay.total_seconds() == 30
        assert task.retry_exponential_backoff == 2.0
        assert task.max_retry_delay.total_seconds() == 600
        assert task.execution_timeout is not None
        assert task.trigger_rule == "none_failed"
        assert task.max_active_tis_per_dag == 1
        assert not task.template_fields


def test_the_dag_says_what_it_does(bag: DagBag) -> None:
    dag = bag.dags["good"]
    assert (dag.catchup, dag.max_active_runs) == (False, 1)
    assert dag.tags == {"draindown"}
    for word in ("retry", "clear", "backfill", "mode replay", "`none`", "`landing/first/*.json`"):
        assert word in dag.doc_md
    assert dag.fileloc.endswith("dags/draindown_dags.py")


def test_the_factory_file_survives_safe_mode_and_stays_small() -> None:
    text = (REPOSITORY / "dags" / "draindown_dags.py").read_text()
    assert "airflow" in text.lower() and "dag" in text.lower()
    assert len(text.splitlines()) <= 15


def test_a_broken_file_is_a_red_dag_that_names_file_and_line(bag: DagBag) -> None:
    dag = bag.dags["broken"]
    assert "invalid-spec" in dag.tags
    assert "bro ken.yaml:3:1" in dag.doc_md
    (task,) = dag.tasks
    assert task.retries == 0
    with pytest.raises(StepFailed, match=r"bro ken\.yaml:3:1"):
        task.execute({})


def test_a_run_of_a_broken_file_leaves_a_report_in_every_flow_that_is_known(
    project: Path, bag: DagBag
) -> None:
    ran = FlowHome(str(project / "lake"), "broken", "ran_before", "ran_before")
    Path(ran.home).mkdir(parents=True)
    (task,) = bag.dags["broken"].tasks
    with pytest.raises(StepFailed):
        task.execute({"run_id": "r"})
    (left,) = starts.newest(ran, "r")
    assert left.outcome == "failed" and left.error is not None
    assert left.error["code"] == "invalid-pipeline" and "bro ken.yaml:3:1" in left.error["found"]


SCHEDULED = """\
pipeline: shop
schedule: "*/15 * * * *"
lake: lake
flows:
  f:
    source: {files: in/*, format: json}
    columns: {id: string not null}
"""
MANUAL = SCHEDULED.replace('schedule: "*/15 * * * *"\n', "")
OWN = "*/15 * * * *"

# What lies at shop_file.yaml, the DAG that stands for it, and its schedule.
BROKEN: dict[str, tuple[bytes, str, str | None]] = {
    "a wrong type": (SCHEDULED.replace("string", "strng").encode(), "shop", OWN),
    "a column that a rule misspells": (
        f"{SCHEDULED}    rules: {{r: idd > 'a'}}\n".encode(),
        "shop",
        OWN,
    ),
    "no YAML below the schedule": (SCHEDULED.encode() + b"  g: [\n", "shop", OWN),
    "cut short": (SCHEDULED[: SCHEDULED.index("  f:")].encode(), "shop", OWN),
    "cut short before the schedule": (b"pipeline: shop\n", "shop", "@hourly"),
    "a tab": (SCHEDULED.replace("    source", "\tsource").encode(), "shop", OWN),
    "merge markers": (b"<<<<<<< HEAD\n" + SCHEDULED.encode() + b"=======\n", "shop", OWN),
    "not UTF-8": (SCHEDULED.encode() + b"description: caf\xe9\n", "shop", OWN),
    "UTF-16": (SCHEDULED.encode("utf-16"), "shop_file", "@hourly"),
    "empty": (b"", "shop_file", "@hourly"),
    "bytes": (bytes(range(256)), "shop_file", "@hourly"),
    "a list": (b"- pipeline: shop\n", "shop_file", "@hourly"),
    "a bad schedule": (SCHEDULED.replace("*/15", "61").encode(), "shop", "@hourly"),
    "a schedule that never comes": (
        SCHEDULED.replace(OWN, "0 0 31 2 *").encode(),
        "shop",
        "@hourly",
    ),
    "a schedule that is a list": (SCHEDULED.replace(f'"{OWN}"', "[1]").encode(), "shop", "@hourly"),
    "a misspelt schedule": (SCHEDULED.replace("schedule:", "shedule:").encode(), "shop", "@hourly"),
    "a schedule of the environment": (
        SCHEDULED.replace(f'"{OWN}"', "${CRON:-@daily}").replace("string", "strng").encode(),
        *("shop", "@daily"),
    ),
    "a variable that is not set": (
        SCHEDULED.replace(f'"{OWN}"', "${NO_CRON}").encode(),
        "shop",
        "@hourly",
    ),
    "a manual one": (MANUAL.replace("string", "strng").encode(), "shop", None),
    "two documents": (SCHEDULED.encode() + b"---\n" + MANUAL.encode(), "shop", OWN),
    "the name of another": (
        SCHEDULED.replace("shop", "good").replace("string", "strng").encode(),
        "shop_file",
        OWN,
    ),
}


def _folder(home: Path) -> Path:
    """A DAG folder of its own with one good pipeline; returns where pipelines are."""
    pipelines = home / "dags" / "pipelines"
    pipelines.mkdir(parents=True)
    shutil.copy(REPOSITORY / "dags" / "draindown_dags.py", home / "dags")
    (pipelines / "good.yaml").write_text(MANUAL.replace("shop", "good").replace("  f:", "  g:"))
    return pipelines


def _bagged(home: Path) -> DagBag:
    """What Airflow makes of the folder: never an error of the file that all pipelines share."""
    bag = DagBag(str(home / "dags"))
    assert bag.import_errors == {}
    assert "invalid-spec" not in bag.dags["good"].tags
    return bag


def _is_red(dag: Any, schedule: str | None) -> None:
    if schedule is None:
        assert isinstance(dag.timetable, NullTimetable)
    else:
        assert dag.timetable == CronDataIntervalTimetable(schedule, timezone="UTC")
    assert "invalid-spec" in dag.tags and dag.max_active_runs == 1 and not dag.catchup
    (task,) = dag.tasks
    with pytest.raises(StepFailed, match="shop") as caught:
        task.execute({})
    assert str(caught.value) in dag.doc_md


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_breaks_keeps_its_name_and_schedule_and_no_other_pipeline_minds(
    database: None, tmp_path: Path, what: str
) -> None:
    content, name, schedule = BROKEN[what]
    (_folder(tmp_path) / "shop_file.yaml").write_bytes(content)
    bag = _bagged(tmp_path)
    assert set(bag.dags) == {"good", name}
    _is_red(bag.dags[name], schedule)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,  # opening it would wait for its writer, and every pipeline with it
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_file_is_a_red_dag_by_the_name_it_lies_under(
    database: None, tmp_path: Path, what: str
) -> None:
    UNREADABLE[what](_folder(tmp_path) / "shop.yaml")
    _is_red(_bagged(tmp_path).dags["shop"], "@hourly")


def test_a_file_that_may_not_be_read_is_a_red_dag(
    database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_folder(tmp_path) / "shop.yaml").write_text(SCHEDULED)
    opened = Path.open

    def refusing(self: Path, *arguments: Any, **named: Any) -> Any:  # root may read everything
        if self.name == "shop.yaml":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", refusing)
    _is_red(_bagged(tmp_path).dags["shop"], "@hourly")


@pytest.mark.parametrize(
    "where", ["draindown.config.loader.load", "draindown.airflow.factory._pipeline"]
)
def test_what_nobody_foresaw_in_one_file_stops_no_other(
    database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (_folder(tmp_path) / "shop.yaml").write_text(SCHEDULED)
    module, _, name = where.rpartition(".")
    real = getattr(sys.modules[module], name)

    def failing(found: Any, *more: Any) -> Any:
        if "shop" in str(getattr(found, "pipeline", found)):
            raise ZeroDivisionError("not foreseen")
        return real(found, *more)

    monkeypatch.setattr(where, failing)
    _is_red(_bagged(tmp_path).dags["shop"], OWN)


def test_a_run_of_a_broken_pipeline_fails_and_the_mended_file_has_its_dag_back(
    database: None,
) -> None:
    folder = os.environ["AIRFLOW__CORE__DAGS_FOLDER"]
    path = Path(folder) / "pipelines" / "shop.yaml"
    try:
        path.write_text(SCHEDULED.replace("string", "strng"))
        _is_red(DagBag(folder).dags["shop"], OWN)
        path.write_text(SCHEDULED)
        mended = DagBag(folder).dags["shop"]
    finally:
        path.unlink()
    assert "invalid-spec" not in mended.tags and mended.tasks[0].task_id == "plan-all"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("mode", ["drain", "replay"], ["rebuild", "", None, 1, "drain\n", "replay --yes"]),
        *((name, TIMES, NO_TIMES) for name in ("from", "to")),
        ("again", [True, False], ["yes", 1, None]),
        ("flow", [None, "first", "second"], ["third", "", "../first", "first; id", 1]),
        ("max_batches", [None, 1, 20], [0, -1, 1.5, "1", "1; rm -rf /", 10**400]),
        ("max_minutes", [None, 1, 0.5], [0, -1, "soon", 1e308]),
        ("force_compact", [True, False], ["yes", 1, None]),
    ],
)
def test_params_are_typed(name: str, good: list[Any], bad: list[Any]) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    for value in good:
        assert params(FLOWS)[name].resolve(value) == value
    for value in bad:
        with pytest.raises(ParamValidationError):
            params(FLOWS)[name].resolve(value)


def test_the_form_asks_in_an_order_and_explains_itself() -> None:
    asked = params(FLOWS)
    bounds = ["max_batches", "max_minutes"]
    assert (
        list(asked)
        == ["mode", "from", "to", "again", "flow", *bounds, "force_compact"]
        == list(PARAMS)
    )
    assert all(param.description and param.schema["title"] for param in asked.values())


def test_a_scheduled_run_has_an_interval_which_a_backfill_can_replay(tmp_path: Path) -> None:
    text = (Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]) / "pipelines" / "good.yaml").read_text()
    (tmp_path / "good.yaml").write_text(text + 'schedule: "*/15 * * * *"\n')
    timetable = dags(str(tmp_path / "dags.py"), tmp_path)["good"].timetable
    assert timetable == CronDataIntervalTimetable("*/15 * * * *", timezone="UTC")


def _project_of(home: Path, pipelines: int) -> Path:
    """A DAG file with so many pipelines beside it."""
    (home / "pipelines").mkdir(parents=True)
    example = (REPOSITORY / "dags" / "pipelines" / "flights.yaml").read_text()
    for number in range(pipelines):
        text = example.replace("pipeline: flights", f"pipeline: p{number}")
        for form in (
            "\n  {}:",
            "{{table: {}}}",
            "from {} group",
        ):  # a table has one pipeline that writes it
            for flow in ("flights", "departures_hourly", "carrier_month"):
                text = text.replace(form.format(flow), form.format(f"{flow}_{number}"))
        (home / "pipelines" / f"p{number}.yaml").write_text(text)
    script = home / "draindown_dags.py"
    script.write_text((REPOSITORY / "dags" / "draindown_dags.py").read_text())
    return script


def test_parsing_imports_nothing_heavy_and_costs_each_pipeline_the_same(
    tmp_path: Path, project: Path
) -> None:
    """Cost is counted in calls, which are the same on every machine."""
    few, many = _project_of(tmp_path / "few", 5), _project_of(tmp_path / "many", 50)
    code = f"""
import runpy, sys
import airflow.sdk, airflow.providers.apache.spark.operators.spark_submit
import draindown.airflow.factory
def calls(script, pipelines):
    made = 0
    def count(frame, event, argument):
        nonlocal made
        made += event == "call"
    sys.setprofile(count)
    found = runpy.run_path(script)
    sys.setprofile(None)
    assert sum(type(v).__name__ == "DAG" for v in found.values()) == pipelines, list(found)
    assert not any("invalid-spec" in v.tags for v in found.values() if type(v).__name__ == "DAG")
    return made
calls({str(few)!r}, 5)  # what is imported and cached once
few, many = calls({str(few)!r}, 5), calls({str(many)!r}, 50)
heavy = {{"pyspark", "deltalake", "duckdb", "great_expectations", "pandas", "pyarrow", "numpy"}} & set(sys.modules)
assert not heavy, heavy
assert many <= 10 * few * 1.05, (few, many)
print(few)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 500, "calls were counted"


def test_two_parses_make_the_same_dags(project: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    made = [dags(str(project / "dags" / "draindown_dags.py")) for _ in range(2)]
    first, second = (
        {name: DagSerialization.to_dict(dag) for name, dag in found.items()} for found in made
    )
    assert first == second
