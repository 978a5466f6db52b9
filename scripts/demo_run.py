"""What the demos have in common: a pipeline of this clone through its Airflow DAG, and what became
of it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_local

from draindown.base import clock
from draindown.base.errors import TerminalError
from draindown.config.loader import load
from draindown.config.project import rooted, suite
from draindown.lake.presence import Lake
from draindown.runs import store
from draindown.runs.request import STEPS, Request

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.lake.home import FlowHome

ROOT = airflow_local.ROOT
HOME = Path(os.environ.get("DRAINDOWN_DEMO_HOME") or ROOT / "demo").resolve()
LAKE = HOME / "lake"
# The output of Spark and Airflow goes to the log; only draindown's own lines are shown.
_TASK = re.compile(r"\[DAG TEST\] (?:starting|end(?: task)?) task_id=(\S+)")
_BEGINS = re.compile(r"\[DAG TEST\] running task <TaskInstance: ([^.\s]+)\.(\S+) (\S+) ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LOGGER = re.compile(r"\s+\[airflow\.task[\w.]*\].*$")
_COUNTED = r"[\d,]+ (?:of [\d,]+ )?(?:file|record)s?"
_OWN_LINE = re.compile(
    rf"(?:^|\s)((?:batch \d|{_COUNTED} waiting|[\d,]+ of [\d,]+ files|waiting: ).*)"
)

Question = tuple[str, str, str]
"""(title, path of a Delta table, SQL that calls it t)"""


@dataclass(frozen=True)
class DemoRun:
    """A pipeline in `dags/pipelines` of this clone, with the lake of the demos.

    `settings`: environment variables that its file names. `again`: the command that runs the demo.
    """

    pipeline: str
    settings: Mapping[str, str]
    log: Path
    again: str

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the demo's commands."""
        return {
            **os.environ,
            **self.settings,
            "DRAINDOWN_ROOT": str(ROOT),
            "DRAINDOWN_LAKE": str(LAKE),
        }

    def requests(self) -> list[Request]:
        """Return a request for each flow of the pipeline, in the order they run in."""
        spec = rooted(
            load(ROOT / "dags" / "pipelines" / f"{self.pipeline}.yaml", self.environ), ROOT
        )
        return [_request(spec, flow) for flow in spec.graph.order]

    def layouts(self) -> dict[str, FlowHome]:
        """Return where each flow's tables lie, by the flow's name."""
        return {request.flow: request.layout for request in self.requests()}

    def begin_lake(self) -> None:
        """Begin the lake on purpose if it is absent: the clone may have another one on record, or
        one since removed.
        """
        lake = Lake.look(str(LAKE), ROOT, self.pipeline)
        if lake.answer in ("absent", "elsewhere"):
            lake.accept("demo")

    def has_work(self) -> bool:
        """Return whether a plan, made without Airflow and without a JVM, has a step to run for some
        flow.
        """
        from draindown.planning.plan import plan

        parts = [plan(request, clock.now())[0] for request in self.requests()]
        return any(part.drain or part.check or part.compact for part in parts)

    def is_proven(self) -> bool:
        """Return whether the tables as they are now were compared, and were right."""
        kept = self._proof()
        return kept.exists() and kept.read_text() == self._versions()

    def keep_proof(self) -> None:
        """Keep that the tables as they are now are right."""
        self._proof().write_text(self._versions())

    def _proof(self) -> Path:
        return self.log.with_suffix(".proven")

    def _versions(self) -> str:

        logs = {flow: layout.tables.target for flow, layout in self.layouts().items()}
        return json.dumps(
            {flow: [log.id, log.version] if log.exists else None for flow, log in logs.items()}
        )

    def through_airflow(self) -> None:
        """Run the DAG once, without servers, and show its tasks' output. Raises TerminalError
        `demo-run-failed`.
        """
        environ = self.environ
        environ |= airflow_local.env(environ)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        airflow = [sys.executable, "-m", "airflow"]
        with self.log.open("w") as log:
            say(
                f"The DAG {self.pipeline} through Airflow: plan, drain, check, compact of each flow (log: {self.log})"
            )
            code = subprocess.call(
                [*airflow, "db", "migrate"], env=environ, cwd=ROOT, stdout=log, stderr=log
            )
            if code == 0:
                dag_file = ROOT / "dags" / "draindown_dags.py"
                logs = Path(
                    environ.get("AIRFLOW__LOGGING__BASE_LOG_FOLDER")
                    or f"{environ['AIRFLOW_HOME']}/logs"
                )
                code = _followed(
                    [*airflow, "dags", "test", self.pipeline, "-f", str(dag_file)],
                    environ,
                    log,
                    logs,
                )
        if code != 0:
            raise self._failed(code)

    def _failed(self, code: int) -> TerminalError:
        last_words = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
        return TerminalError(
            "demo-run-failed",
            tried=f"run the DAG {self.pipeline} with `airflow dags test`",
            found=f"exit code {code}; the end of its log:\n{last_words}",
            changed="what was drained before it failed stays; the next run goes on from there",
            next=[f"less {self.log}", self.again],
            in_order=True,
        )

    def show(self, questions: Iterable[Question]) -> None:
        """Print the run card, and the answers of tables that exist, read without Spark."""
        from draindown.lake.table import Table
        from draindown.runs.card import card

        steps = []
        for layout in self.layouts().values():
            newest = store.runs(layout, 1)
            steps += [store.read(layout, newest[0], step) for step in STEPS] if newest else []
        say("Run card")
        print(card([step for step in steps if step is not None]))
        for title, path, sql in questions:
            if Table(path).exists:
                say(title)
                _print_rows(Table(path).query(sql).to_pylist())


def _request(spec: PipelineSpec, flow: str) -> Request:
    named = spec.declared(flow).expectations
    judged_by = suite(ROOT, named) if named else None
    return Request(
        spec=spec, flow=flow, step="plan", run_id="demo", root=str(ROOT), suite=judged_by
    )


def _followed(command: list[str], environ: dict[str, str], log: Any, logs: Path) -> int:
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    started, of_task = time.monotonic(), TaskLogs(logs)
    for line in process.stdout:
        log.write(line)
        of_task.add(line)
        for own in _own_lines(line):
            print(f"  {time.monotonic() - started:5.0f} s  {own}", flush=True)
    return process.wait()


@dataclass
class TaskLogs:
    """Writes each task's part of what `airflow dags test` prints to where Airflow's UI looks for
    its log.

    `dags test` runs all tasks in its own process, which keeps no log of any. `folder`: Airflow's
    log folder, with its default names of files.
    """

    folder: Path
    _file: Path | None = None

    def add(self, line: str) -> None:
        """Add a line of output."""
        line = _COLOUR.sub("", line)
        if found := _BEGINS.search(line):
            dag, task, run = found.groups()
            self._file = (
                self.folder
                / f"dag_id={dag}"
                / f"run_id={run}"
                / f"task_id={task}"
                / "attempt=1.log"
            )
            self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(line)
        if (ended := _TASK.search(line)) and "starting" not in ended[0]:
            self._file = None


def _own_lines(line: str) -> Iterator[str]:
    line = _LOGGER.sub("", _COLOUR.sub("", line.rstrip()))
    if found := _TASK.search(line):
        if "starting" in line:
            yield found[1]
    elif found := _OWN_LINE.search(line):
        yield f"  {found[1][:110]}"


def _print_rows(rows: list[dict[str, Any]]) -> None:
    cells = [[str(value)[:60] for value in row.values()] for row in rows]
    lines = [list(rows[0]), *cells] if rows else [["none"]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for line in lines:
        print(
            "  "
            + "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
        )


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)
