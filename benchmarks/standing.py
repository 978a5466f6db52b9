"""An Airflow that stands at a place, and runs of the pipeline's DAG in it.

Its settings are those of `make up`; api-server, scheduler and dag-processor are a process each, as
docker-compose.yaml deploys them, on SQLite, and only the api-server listens, on the loopback
interface. A project is laid out as a team has it: DAGs, jobs, the pipeline, its suite. How runs
went is read from Airflow's database, which costs Airflow nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.measure import Cost, watched
from benchmarks.place import ROOT, Failed, Place
from draindown.airflow.process import die_with_parent
from draindown.launch.settings import class_path

sys.path.insert(0, str(ROOT / "scripts"))
import airflow_local

sys.path.remove(str(ROOT / "scripts"))

_PROGRAMS = ROOT / "benchmarks" / "programs"
_UP_SECONDS = 240.0
_RUN_SECONDS = 3600.0
_DOWN_SECONDS = 60.0  # for all parts to end by themselves
_LOOK = 0.1  # seconds between two looks at the database; how exact wall times are


def airflow(place: Place) -> contextlib.AbstractContextManager[None]:
    """Airflow over the place's pipeline, from when it has read the DAG. Leaves no process behind.
    Raises Failed.
    """
    return _standing(place, _project(place))


def by_hand(place: Place) -> contextlib.AbstractContextManager[None]:
    """The same over the hand-written job's DAG."""
    return _standing(place, _by_hand(place))


@contextlib.contextmanager
def _standing(place: Place, project: Path) -> Iterator[None]:
    settings = _settings(place, project)
    _home(place).joinpath("url").write_text(settings["AIRFLOW__API__BASE_URL"])
    migrated = subprocess.run(
        _airflow("db", "migrate"), env=settings, cwd=place.home, check=False, capture_output=True
    )
    if migrated.returncode:
        raise Failed(
            f"Airflow made no database: {migrated.stderr.decode(errors='replace')[-2000:]}"
        )
    parts: list[subprocess.Popen[bytes]] = []
    try:
        parts += [_started(place, settings, name) for name in airflow_local.PARTS]
        _until(
            lambda: _ready(place, parts),
            _UP_SECONDS,
            f"Airflow does not stand: see its logs in {_home(place)}",
        )
        yield
    finally:
        _end(parts)


def dag_run(place: Place) -> Cost:
    """One run of the pipeline's DAG in the Airflow that stands, from the trigger until Airflow says
    that it ended.

    Raises Failed if it does not end within an hour.
    """
    token = _token(place)
    cost = watched(lambda: _run(place, token))
    (place.home / "err.txt").write_text(_told(place) if cost.exit_code else "")
    return cost


def idle(seconds: float) -> Cost:
    """What all that stands costs while nothing is asked of it."""

    def wait() -> int:
        time.sleep(seconds)
        return 0

    return watched(wait)


def _home(place: Place) -> Path:
    return place.home / "airflow"


def _project(place: Place) -> Path:
    """A project that holds this pipeline only."""
    project = place.home / "project"
    for folder in ("jobs", "plugins"):
        shutil.copytree(ROOT / folder, project / folder)
    shutil.copytree(place.shape.root / "expectations", project / "expectations")
    (project / "dags" / "pipelines").mkdir(parents=True)
    shutil.copy(ROOT / "dags" / "draindown_dags.py", project / "dags")
    shutil.copy(place.shape.pipeline, project / "dags" / "pipelines")
    return project


def _by_hand(place: Place) -> Path:
    """A project of the hand-written DAG."""
    project = place.home / "project"
    (project / "plugins").mkdir(parents=True)
    (project / "dags").mkdir()
    shutil.copy(_PROGRAMS / "hand_written_dag.py", project / "dags")
    return project


def _settings(place: Place, project: Path) -> dict[str, str]:
    """The environment of every process of Airflow."""
    environ = place.environment()
    chosen = {
        "DRAINDOWN_AIRFLOW_HOME": str(_home(place)),
        "DRAINDOWN_AIRFLOW_PORT": str(_free_port()),
    }
    own = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "plugins"),
        "DRAINDOWN_ROOT": str(project),
        "BENCH_SHAPE": place.shape.name,
        "BENCH_PROGRAM": str(_PROGRAMS / "hand_written.py"),
        "BENCH_CLASS_PATH": class_path(),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '')}",
    }
    return environ | airflow_local.env(environ | chosen) | own


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _airflow(*words: str) -> list[str]:
    return [sys.executable, "-m", "airflow", *words]


def _started(place: Place, settings: Mapping[str, str], name: str) -> subprocess.Popen[bytes]:
    with (_home(place) / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            _airflow(name, *airflow_local.PARTS[name]),
            env=settings,
            cwd=place.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _ready(place: Place, parts: list[subprocess.Popen[bytes]]) -> bool:
    """Whether Airflow is well and has read the DAG. Raises Failed if a part of it ended."""
    if any(part.poll() is not None for part in parts):
        raise Failed(f"a part of Airflow ended: see its logs in {_home(place)}")
    well = airflow_local.healthy((_home(place) / "url").read_text())
    return well and bool(
        _rows(place, "select 1 from dag where dag_id = ? and is_paused = 0", place.shape.name)
    )


def _end(parts: list[subprocess.Popen[bytes]]) -> None:
    """Ask every part to end, the server last, and kill what is left of them or of what they
    started.
    """
    below = [one for part in parts for one in _tree(part.pid)]
    until = time.monotonic() + _DOWN_SECONDS
    for part in reversed(parts):
        part.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            part.wait(max(0.1, until - time.monotonic()))
    for process in [
        *below,
        *(one for part in parts if part.poll() is None for one in _tree(part.pid)),
    ]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # which looks first whether the id is still the same process's
    for part in parts:
        part.wait()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        leader = psutil.Process(pid)
        return [*leader.children(recursive=True), leader]
    except psutil.NoSuchProcess:
        return []


def _run(place: Place, token: str) -> int:
    """Trigger the DAG, as a person does, and wait; 0 if the run ended well."""
    asked: dict[str, Any] = {"logical_date": None, "conf": {}}
    run = _asked(place, f"/api/v2/dags/{place.shape.name}/dagRuns", asked, token)["dag_run_id"]
    ended = ("success", "failed")
    _until(
        lambda: _state(place, run) in ended,
        _RUN_SECONDS,
        f"{run} does not end: see the logs in {_home(place)}",
    )
    return int(_state(place, run) != "success")


def _state(place: Place, run: str) -> str:
    (row,) = _rows(
        place, "select state from dag_run where dag_id = ? and run_id = ?", place.shape.name, run
    )
    return str(row[0])


def _told(place: Place) -> str:
    """How the tasks of the newest run stand, and the end of each log of a task that is not well."""
    newest = "(select run_id from dag_run order by id desc limit 1)"
    tasks = _rows(
        place,
        f"select task_id, try_number, state, run_id from task_instance where run_id = {newest}",
    )
    lines = [f"{task}: try {number}, {state}" for task, number, state, _ in tasks]
    for task, _, state, run in tasks:
        if state not in ("success", "skipped"):
            logs = sorted(_home(place).glob(f"logs/dag_id=*/run_id={run}/task_id={task}/*.log"))
            lines += [log.read_text(errors="replace")[-3000:] for log in logs]
    return "\n".join(lines)


def _token(place: Place) -> str:
    passwords: dict[str, str] = json.loads((_home(place) / "passwords.json").read_text())
    (login,) = [{"username": user, "password": password} for user, password in passwords.items()]
    return str(_asked(place, "/auth/token", login)["access_token"])


def _asked(place: Place, path: str, content: Mapping[str, Any], token: str = "") -> dict[str, Any]:
    """What the server answers to a POST of some content. Raises OSError."""
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    body = json.dumps(content).encode()
    request = urllib.request.Request((_home(place) / "url").read_text() + path, body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def _rows(place: Place, question: str, *values: str) -> list[tuple[Any, ...]]:
    database = f"file:{_home(place)}/airflow.db?mode=ro"
    with contextlib.closing(sqlite3.connect(database, uri=True, timeout=30)) as db:
        return db.execute(question, values).fetchall()


def _until(true: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait until something is true. Raises Failed."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise Failed(otherwise)
        time.sleep(_LOOK)
