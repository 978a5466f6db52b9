"""Airflow of its own for these tests: a home, a database and a project in a temporary directory, no
network.

Everything Airflow reads at import is set here, before any test module imports it.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from draindown.launch.settings import JARS
from tests.workers import together

REPOSITORY = Path(__file__).resolve().parents[2]
HOME = Path(tempfile.mkdtemp(prefix="draindown-airflow-"))
PROJECT = HOME / "project"
LAKE = PROJECT / "lake"
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

PIPELINE = """\
pipeline: {name}
description: for tests
lake: lake
airflow: {{retries: 3}}
owner: tests
flows:
  first:
    source: {{files: landing/first/*.json, format: json}}
    columns: {{id: string not null}}
  second:
    source: {{files: landing/second/*.json, format: json}}
    columns: {{id: string not null}}
    expectations: some
"""


def _make_project() -> None:
    (PROJECT / "dags" / "pipelines").mkdir(parents=True)
    (PROJECT / "jobs").mkdir()
    (PROJECT / "expectations").mkdir()
    (PROJECT / "jars").mkdir()
    for jar in JARS:
        (PROJECT / "jars" / f"{jar}-1.0.jar").touch()
    shutil.copy(REPOSITORY / "dags" / "draindown_dags.py", PROJECT / "dags")
    for step in ("drain", "check", "compact"):
        (PROJECT / "jobs" / f"{step}.py").touch()
    (PROJECT / "expectations" / "some.json").write_text(
        json.dumps({"name": "some", "expectations": []})
    )
    (PROJECT / "dags" / "pipelines" / "good.yaml").write_text(PIPELINE.format(name="good"))
    (PROJECT / "dags" / "pipelines" / "bro ken.yaml").write_text(
        "pipeline: broken\nlake: lake\nflow: {}\n"
    )


_make_project()
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(HOME / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
    "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Airflow warns about itself in ways no change here can silence; its start-up takes its
    time.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> None:
    """The metadata database, made by the first of all workers and copied by the others."""
    made = together(tmp_path_factory, worker_id) / "airflow.db"
    with FileLock(f"{made}.lock"):
        if made.exists():
            _copy(made, HOME / "airflow.db")
        else:
            from airflow.utils.db import initdb

            initdb()
            _copy(HOME / "airflow.db", made)


def _copy(one: Path, other: Path) -> None:
    with closing(sqlite3.connect(one)) as made, closing(sqlite3.connect(other)) as copy:
        made.backup(copy)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project the DAGs belong to, with an empty lake and jars that only exist."""
    monkeypatch.setenv("DRAINDOWN_JARS", str(PROJECT / "jars"))
    monkeypatch.delenv("DRAINDOWN_ROOT", raising=False)
    assert not LAKE.exists(), "a test wrote to the lake without this fixture"
    yield PROJECT
    _await_driver_logs()
    for made in (LAKE, PROJECT / ".draindown"):
        if made.exists():
            shutil.rmtree(made)


def _await_driver_logs() -> None:
    """Wait for the threads that write the logs of drivers: a file they open again would survive its
    lake.
    """
    for thread in threading.enumerate():
        if thread.name == "driver log":
            thread.join(30)
            assert not thread.is_alive(), "a driver still runs"


@pytest.fixture(autouse=True)
def process_restored() -> Iterator[None]:
    """Puts back what a DAG run changes in its process: variables, the import path, handlers of
    signals.
    """
    environ, path = dict(os.environ), list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)
    sys.path[:] = path
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path) -> Path:
    """The directory through which a test tells the fake spark-submit what to do."""
    script = tmp_path / "spark-submit"
    script.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent}/fake_spark_submit.py "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("DRAINDOWN_SPARK_SUBMIT", str(script))
    monkeypatch.setenv("FAKE_SUBMIT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "src"))
    return tmp_path
