"""What the demos have in common: a pipeline of this clone through its Airflow DAG, and what became of it."""

from __future__ import annotations

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
from draindown.runs import store
from draindown.runs.request import STEPS, Request
from draindown.spec.loader import load
from draindown.spec.project import rooted, suite

if TYPE_CHECKING:
    from draindown.lake.layout import FlowLayout
    from draindown.spec.models import PipelineSpec

ROOT = airflow_local.ROOT
HOME = Path(os.environ.get("DRAINDOWN_DEMO_HOME") or ROOT / "demo").resolve()
LAKE = HOME / "lake"
# The output of Spark and Airflow goes to the log; only draindown's own lines are shown.
_TASK = re.compile(r"\[DAG TEST\] (?:starting|end) task_id=(\S+)")
_LOGGER = re.compile(r"\s+\[airflow\.task[\w.]*\].*$")
_COUNTED = r"[\d,]+ (?:of [\d,]+ )?(?:file|record)s?"
_OWN_LINE = re.compile(rf"(?:^|\s)((?:batch \d|{_COUNTED} waiting|[\d,]+ of [\d,]+ files|waiting: ).*)")

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
        return {**os.environ, **self.settings, "DRAINDOWN_ROOT": str(ROOT), "DRAINDOWN_LAKE": str(LAKE)}

    def requests(self) -> list[Request]:
        """Return a request for each flow of the pipeline, in the order they run in."""
        spec = rooted(load(ROOT / "dags" / "pipelines" / f"{self.pipeline}.yaml", self.environ), ROOT)
        return [_request(spec, flow) for flow in spec.graph.order]

    def layouts(self) -> dict[str, FlowLayout]:
        """Return where each flow's tables lie, by the flow's name."""
        return {request.flow: request.layout for request in self.requests()}

    def has_work(self) -> bool:
        """Return whether a plan, made without Airflow and without a JVM, has a step to run for some flow."""
        from draindown.planning.plan import plan

        parts = [plan(request, clock.now())[0] for request in self.requests()]
        return any(part.drain or part.check or part.compact for part in parts)

    def through_airflow(self) -> None:
        """Run the DAG once, without servers, and show its tasks' output. Raises TerminalError `demo-run-failed`."""
        environ = self.environ
        environ |= airflow_local.env(environ)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        airflow = [sys.executable, "-m", "airflow"]
        with self.log.open("w") as log:
            say(f"The DAG {self.pipeline} through Airflow: plan, drain, check, compact of each flow (log: {self.log})")
            print("  `airflow dags test` runs all tasks in one process: what they log is in that file, not in the UI")
            code = subprocess.call([*airflow, "db", "migrate"], env=environ, cwd=ROOT, stdout=log, stderr=log)
            if code == 0:
                dag_file = ROOT / "dags" / "draindown_dags.py"
                code = _followed([*airflow, "dags", "test", self.pipeline, "-f", str(dag_file)], environ, log)
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
        from draindown.lake.table_log import TableLog
        from draindown.runs.card import card

        steps = []
        for layout in self.layouts().values():
            newest = store.runs(layout, 1)
            steps += [store.read(layout, newest[0], step) for step in STEPS] if newest else []
        say("Run card")
        print(card([step for step in steps if step is not None]))
        for title, path, sql in questions:
            if TableLog(path).exists:
                say(title)
                _print_rows(TableLog(path).query(sql).to_pylist())


def _request(spec: PipelineSpec, flow: str) -> Request:
    named = spec.declared(flow).expectations
    judged_by = suite(ROOT, named) if named else None
    return Request(spec=spec, flow=flow, step="plan", run_id="demo", root=str(ROOT), suite=judged_by)


def _followed(command: list[str], environ: dict[str, str], log: Any) -> int:
    process = subprocess.Popen(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    started = time.monotonic()
    for line in process.stdout:
        log.write(line)
        for own in _own_lines(line):
            print(f"  {time.monotonic() - started:5.0f} s  {own}", flush=True)
    return process.wait()


def _own_lines(line: str) -> Iterator[str]:
    line = _LOGGER.sub("", re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip()))
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
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}", flush=True)
