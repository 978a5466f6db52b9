"""Airflow as on-call has it before them: what they press and type, and what it shows them. REST,
CLI, task logs, pages.

What Airflow knows is read from its database where a test only waits; what people are told is read
where people read it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draindown.drill.process import end_group
from tests.e2e.evening.orders import Orders
from tests.faults.deployment import Airflow, airflow_local

STEPS = ("plan", "drain", "check", "compact")
SETTINGS = {
    "DRAINDOWN_DRIVER_MEMORY": "768m",
    "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "12",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
}
_OVER = ("success", "failed")
_CLI_SECONDS = 400
_STOP_SECONDS = 240


@dataclass(frozen=True)
class Refusal(Exception):
    """An answer of the REST API that is no success."""

    status: int
    text: str


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout; None where there is none."""
        with contextlib.suppress(ValueError):
            return json.loads(self.out)
        return None


class Shift(Airflow):
    """One evening's Airflow over some pipelines; started when the block is entered."""

    look_seconds = 0.25

    def __init__(self, *pipelines: Orders) -> None:
        super().__init__(*pipelines, settings=SETTINGS)
        self.pipelines = {orders.spec.pipeline: orders for orders in pipelines}
        for orders in pipelines:
            orders.write_yaml()
        self._token = ""

    def __enter__(self) -> Shift:
        super().__enter__()
        self.start()
        self.until(lambda: {*self.pipelines} <= self._known(), "DAGs read")
        return self

    def _known(self) -> set[str]:
        return {
            row[0]
            for row in self.ask("select dag_id from dag where is_paused = 0 and is_stale = 0")
        }

    # ---- pressing and typing

    def call(
        self, method: str, path: str, content: dict[str, Any] | None = None, *, accept: str = "json"
    ) -> Any:
        """Answer of the REST API or of a page, as the admin. Raises Refusal."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._login()}"}
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise Refusal(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if accept == "json" and text else text

    def _login(self) -> str:
        if not self._token:
            password = json.loads((self.home / "passwords.json").read_text())[airflow_local.USER]
            login = {"username": airflow_local.USER, "password": password}
            self._token = self._post("/auth/token", login)["access_token"]
        return self._token

    def press(self, orders: Orders, **conf: Any) -> str:
        """Trigger a run; its id."""
        content = {"logical_date": None, "conf": conf}
        return str(
            self.call("POST", f"/api/v2/dags/{orders.spec.pipeline}/dagRuns", content)["dag_run_id"]
        )

    def clear(self, orders: Orders, run_id: str, *steps: str) -> None:
        """Clear these steps of a run and have it go on, as the button does; without steps, all."""
        which = {"task_ids": [f"f.{step}" for step in steps]} if steps else {}
        content = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": False,
            "reset_dag_runs": True,
            **which,
        }
        self.call("POST", f"/api/v2/dags/{orders.spec.pipeline}/clearTaskInstances", content)

    def mark(self, orders: Orders, run_id: str, step: str, state: str) -> None:
        """Mark a task of a run as failed or success."""
        place = (
            f"/api/v2/dags/{orders.spec.pipeline}/dagRuns/{_quoted(run_id)}/taskInstances/f.{step}"
        )
        self.call("PATCH", place, {"new_state": state})

    def airflow(self, *words: str) -> Said:
        """Type a command of Airflow."""
        return self._type([sys.executable, "-m", "airflow", *words])

    def draindown(self, *words: str) -> Said:
        """Type a command of draindown, in the project."""
        return self._type(self._words(words))

    def _words(self, words: tuple[str, ...]) -> list[str]:
        return [
            sys.executable,
            "-m",
            "draindown.cli",
            *words,
        ]  # from the project: commands name no root then

    def _type(self, command: list[str]) -> Said:
        done = subprocess.run(
            command,
            env=self._environ,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=_CLI_SECONDS,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def typing(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command of draindown at work beside the block; it ends with it, whatever happens."""
        with subprocess.Popen(
            self._words(words),
            env=self._environ,
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                end_group(process)

    # ---- waiting

    def run_state(self, run_id: str) -> str:
        """The state of a DAG run."""
        found = self.ask(f"select state from dag_run where run_id = '{run_id}'")
        return str(found[0][0]) if found else ""

    def task(self, run_id: str, step: str) -> tuple[str, int]:
        """State and number of the newest try of a task."""
        question = f"select state, try_number from task_instance where run_id = '{run_id}' and task_id = 'f.{step}'"
        state, number = self.ask(question)[0]
        return str(state), int(number)

    def over(self, *runs: str, patience: float = 900) -> list[str]:
        """Wait until these runs are over; their states."""
        self.until(
            lambda: all(self.run_state(run) in _OVER for run in runs), f"over: {runs}", patience
        )
        return [self.run_state(run) for run in runs]

    def tried_again(self, run_id: str, step: str, number: int) -> None:
        """Wait until a step's try of this number, or a later one, has begun."""
        self.until(
            lambda: (
                self.task(run_id, step)[1] >= number and self.task(run_id, step)[0] == "running"
            ),
            "retried",
        )

    def settled(self, patience: float = 900) -> None:
        """Wait until no run is under way and no driver at work."""
        still = "select count(*) from dag_run where state in ('running', 'queued')"
        self.until(lambda: self.ask(still)[0][0] == 0 and not self.drivers(), "settled", patience)

    def stop(self, meanwhile: Callable[[], None]) -> None:
        """Stop all of Airflow as `make down` does, by SIGINT, the server last; `meanwhile` once the
        others are told.
        """
        self.signal(self.leaders("scheduler", "dag-processor"), signal.SIGINT)
        meanwhile()
        for name in ("dag-processor", "scheduler"):
            self.part(name).wait(_STOP_SECONDS)
        self.signal(self.leaders("api-server"), signal.SIGINT)
        self.part("api-server").wait(_STOP_SECONDS)

    def started_runs(self, orders: Orders, kind: str) -> list[str]:
        """Ids of a pipeline's runs of a kind (`scheduled`, `backfill`, `manual`), the oldest
        first.
        """
        where = f"dag_id = '{orders.spec.pipeline}' and run_type = '{kind}'"
        return [row[0] for row in self.ask(f"select run_id from dag_run where {where} order by id")]

    # ---- what it shows

    def xcom(self, orders: Orders, run_id: str, step: str) -> dict[str, Any] | None:
        """What a step handed on, as the UI shows it; None where it handed on nothing."""
        place = (
            f"/api/v2/dags/{orders.spec.pipeline}/dagRuns/{_quoted(run_id)}/taskInstances/f.{step}"
        )
        try:
            value = self.call("GET", f"{place}/xcomEntries/return_value")["value"]
        except Refusal as refusal:
            assert refusal.status == 404, refusal
            return None
        return dict(json.loads(value) if isinstance(value, str) else value)

    def log(self, run_id: str, step: str, number: int | None = None) -> str:
        """The log of a try of a task, of the newest unless said otherwise; empty where there is
        none.
        """
        task = f"f.{step}" if step in STEPS else step
        tries = list(self.home.glob(f"logs/dag_id=*/run_id={run_id}/task_id={task}/attempt=*.log"))
        found = {int(path.stem.partition("=")[2]): path for path in tries}
        if not found or number not in (None, *found):
            return ""
        lines = found[number or max(found)].read_text(errors="replace").splitlines()
        return "\n".join(_event(line) for line in lines)

    def asset_events(self, orders: Orders, run_id: str) -> list[dict[str, Any]]:
        """The asset events of a run: their numbers, the oldest first."""
        asked = urllib.parse.urlencode(
            {"source_dag_id": orders.spec.pipeline, "source_run_id": run_id}
        )
        found = self.call("GET", f"/api/v2/assets/events?{asked}")["asset_events"]
        return [event["extra"] for event in sorted(found, key=lambda event: event["id"])]

    def page(self, orders: Orders) -> str:
        """The page of a pipeline's flows."""
        return str(self.call("GET", f"/draindown/dag/{orders.spec.pipeline}", accept="html"))

    def processes_of(self, words: str) -> set[int]:
        """Every process with these words in its command line that was started for this project,
        Airflow's own too.
        """
        found, ours = set(), f"DRAINDOWN_ROOT={self.project}\0".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if (
                    words.encode() in path.read_bytes()
                    and ours in path.with_name("environ").read_bytes()
                ):
                    found.add(int(path.parent.name))
        return found


def wait_for(process: subprocess.Popen[str], patience: float = 600) -> Said:
    """What a command at work said, once it has ended."""
    out, err = process.communicate(timeout=patience)
    return Said(process.returncode, out, err)


def _event(line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    if not isinstance(found, dict):
        return line
    detail = "\n".join(
        f"{one.get('exc_type')}: {one.get('exc_value')}" for one in found.get("error_detail") or []
    )
    return f"{found.get('event', '')}\n{detail}".rstrip()


def _quoted(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")
