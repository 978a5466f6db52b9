"""Airflow as docker-compose.yaml deploys it, on SQLite: api-server, scheduler and dag-processor, a
process each.

Its settings are those of `make up`; DAGs, database and logs are under a directory of the test. What
Airflow knows is read from its database, so that it can be asked while nothing of it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from draindown.drill.process import alive
from scripts.kafka_broker import free_ports
from tests.faults.lakes import ROOT
from tests.landing import Landing

sys.path.insert(0, str(ROOT / "scripts"))
import airflow_local

sys.path.remove(str(ROOT / "scripts"))

_PATIENCE = 240


class Airflow:
    """Airflow over the pipelines of some landings; the first one's home is the project. Leaves no
    process behind.
    """

    look_seconds = 0.05

    def __init__(self, *landings: Landing, settings: dict[str, str] | None = None) -> None:
        self.project = landings[0].home
        self.home = self.project / "airflow"
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()
        self._environ = _environ(self.home, self.project) | (settings or {})
        self._url = self._environ["AIRFLOW__API__BASE_URL"]
        pipelines = lay_out(self.project)
        for landing in landings:
            path = pipelines / f"{landing.spec.pipeline}.yaml"
            path.write_text(yaml.safe_dump(landing.declared, sort_keys=False))

    def __enter__(self) -> Self:
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(
            migrate,
            env=self._environ,
            cwd=self.project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = self.drivers()
        self.signal(self.processes(), signal.SIGKILL)
        for part in self._parts.values():
            part.wait(60)
        self.signal({*left, *self.drivers()}, signal.SIGCONT, signal.SIGKILL)

    def start(self, *names: str) -> None:
        """Start these parts, or all, and wait until Airflow says that it is well; what ran before
        was told to end.
        """
        for name in names or airflow_local.PARTS:
            if name in self._parts:
                self._parts[name].wait(60)
            with (self.home / f"{name}.log").open("ab") as log:
                self._parts[name] = subprocess.Popen(
                    [sys.executable, "-m", "airflow", name, *airflow_local.PARTS[name]],
                    env=self._environ,
                    cwd=self.project,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._sessions.add(self._parts[name].pid)
        self.until(lambda: airflow_local.healthy(self._url), "healthy")

    def trigger(self, *dags: str) -> None:
        """Start a run of each, as a person does, once Airflow has read them."""
        read = "select dag_id from dag where is_paused = 0"
        self.until(lambda: {*dags} <= {row[0] for row in self.ask(read)}, "DAGs read")
        password = json.loads((self.home / "passwords.json").read_text())[airflow_local.USER]
        login = {"username": airflow_local.USER, "password": password}
        token = self._post("/auth/token", login)["access_token"]
        for dag in dags:
            self._post(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": {}}, token)

    def leaders(self, *names: str) -> set[int]:
        """The process that was started of each of these parts, or of all; not what it started."""
        return {self._parts[name].pid for name in names or self._parts}

    def processes(self) -> set[int]:
        """Every process of Airflow that was started here and lives, down to those that tasks run
        in; no drivers.
        """
        return {pid for pid in _all() if _session(pid) in self._sessions}

    def tasks(self) -> set[int]:
        """The processes that tasks run in: Airflow gives each a process group, in the scheduler's
        session.
        """
        return {pid for pid in self.processes() - self.leaders() if os.getpgid(pid) == pid}

    def drivers(self) -> set[int]:
        """JVM and Python of each driver at work for this project, by the job in their command
        line.
        """
        jobs = str(self.project / "jobs").encode()
        return {
            pid
            for pid in _all()
            if jobs in _read(pid, "cmdline") and _session(pid) not in self._sessions
        }

    @staticmethod
    def signal(pids: Iterable[int], *numbers: int) -> None:
        """Send signals to processes that were started here; those that are gone are no concern."""
        for pid in pids:
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def part(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a part, as it was started last."""
        return self._parts[name]

    def ended(self, patience: float) -> bool:
        """Whether every part ends in time."""
        until = time.monotonic() + patience
        while (
            any(part.poll() is None for part in self._parts.values()) and time.monotonic() < until
        ):
            time.sleep(0.05)
        return all(part.poll() is not None for part in self._parts.values())

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """Rows of its database."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.home}/airflow.db?mode=ro", uri=True, timeout=30)
        ) as db:
            return db.execute(question).fetchall()

    def states(self, task: str | None = None) -> dict[str, str]:
        """The state of each DAG's run, or of that task in it."""
        if task is None:
            return dict(self.ask("select dag_id, state from dag_run"))
        return dict(self.ask(f"select dag_id, state from task_instance where task_id = '{task}'"))

    def history(self) -> str:
        """What became of each try of the drains, in words."""
        tries = "select dag_id, try_number, state from {} where task_id = 'f.drain'"
        rows = self.ask(
            f"{tries.format('task_instance_history')} union {tries.format('task_instance')} order by 1, 2"
        )
        return ", ".join(f"{dag} try {number} {state}" for dag, number, state in rows)

    def until(self, true: Callable[[], bool], what: str, patience: float = _PATIENCE) -> None:
        """Wait for something to become true; if it does not, AssertionError with the end of every
        log.
        """
        until = time.monotonic() + patience
        while not true():
            assert time.monotonic() < until, f"not {what}: {self.history()}\n{self.logs()}"
            time.sleep(self.look_seconds)

    def logs(self) -> str:
        """The end of each log, tasks included."""
        paths = [*self.home.glob("*.log"), *self.home.glob("logs/dag_id=*/*/task_id=f.drain/*.log")]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)

    def _post(self, path: str, content: dict[str, Any], token: str = "") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        request = urllib.request.Request(self._url + path, json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))


def lay_out(project: Path) -> Path:
    """Write what a project's DAGs need beside its pipeline files. Return the directory of these."""
    pipelines = project / "dags" / "pipelines"
    for place in (pipelines, project / "jobs"):
        place.mkdir(parents=True, exist_ok=True)
    for job in (ROOT / "jobs").glob("*.py"):
        shutil.copy(job, project / "jobs")
    shutil.copy(ROOT / "dags" / "draindown_dags.py", project / "dags")
    return pipelines


def run_once(project: Path, dag: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a project's DAG once, task by task in one process, without servers. stdout has what its
    tasks logged.
    """
    environ = _environ(project / "airflow", project) | settings
    airflow, said = (
        [sys.executable, "-m", "airflow"],
        {"env": environ, "cwd": project, "text": True},
    )
    subprocess.run([*airflow, "db", "migrate"], check=True, capture_output=True, **said)
    command = [*airflow, "dags", "test", dag, "-f", str(project / "dags" / "draindown_dags.py")]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **said
    )


def _environ(home: Path, project: Path) -> dict[str, str]:
    (port,) = free_ports(1)
    chosen = {"DRAINDOWN_AIRFLOW_HOME": str(home), airflow_local.PORT_VARIABLE: str(port)}
    return {
        **os.environ,
        **airflow_local.env(chosen),
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "DRAINDOWN_ROOT": str(project),
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', '')}",
    }


def _all() -> list[int]:
    return [
        pid
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
        if alive(pid)
    ]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
