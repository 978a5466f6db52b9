"""A driver with one planned fault: at a given step and batch it is killed, blocks, or receives
SIGTERM.

`python -m draindown.spark.job.fault_driver PLAN`. PLAN is a file with a JSON list of entries;
`main.attempt` does each in turn, in one session, until one fails:

    request   as `Request.encode` writes it; of a drain, or of a check, which has no fault
    home      directory of the marker files below
    place     [step, batch], batches from 0; absent for a drain without a fault
    tuning    fields of `Tuning`, other than the defaults
    act       kill: SIGKILL to JVM and Python (default); wait: until <home>/go exists; term: one SIGTERM
    version   the table version that the batch commits, for step `commit`; default: batch + 1

Steps are those that a drain reports (`begun`, `read`, `quarantined`, `remembered`, `merged`,
`recorded`), and:

    intake     files were taken in
    data       a data file of the batch's write appears
    commit     the commit's file, or the temporary file that is renamed to it, appears in the Delta log
    committed  the checkpoint's commit file of the batch appears
    time       milliseconds since the drain began, given in place of the batch

<home>/fired appears when the fault happens and contains the JVM's process id; <home>/outcome.json
has the outcome of the last step that ended by itself, its exit code, and the code of its error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import generation
from draindown.lake.home import FlowHome
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark.job import steps
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from draindown.spark.runs.drain import drain
from draindown.spark.session import session
from draindown.spark.tuning import Tuning

_POLL = 0.02
_DATA = (".parquet", ".bin")
_BEFORE_DATA = "read"
"""A step of every batch after which files of the table appear only as it is written."""


class PlannedFault:
    """One fault in one drain, which happens once."""

    def __init__(
        self, spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]
    ) -> None:
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        self._layout, self._home = request.layout, home
        place: Sequence[Any] = entry.get("place") or ("", 0)
        self._step, self._batch = str(place[0]), int(place[1])
        self._act, self._version = entry.get("act", "kill"), entry.get("version", self._batch + 1)
        self._over, self._parent, self._stop = threading.Event(), os.getppid(), Stop()

    def reached(self, step: str) -> None:
        """What a drain tells after each step."""
        if self._step == "data" and step == _BEFORE_DATA and self._is_now():
            self._watch(new_file(Path(self._layout.tables.target.path)))
        if step == self._step and (step == "intake" or self._is_now()):
            self.fire()

    def progress(self, line: str) -> None:
        """Called with each line for people: the first one about a backlog follows the intake."""
        sys.stderr.write(f"{line}\n")
        if "waiting" in line:
            self.reached("intake")

    @contextmanager
    def armed(self, stop: Stop) -> Iterator[None]:
        """Watch for the steps that no callback reports (files, time) until the block ends. `stop`:
        of the drain.
        """
        self._stop = stop
        there = self._there(self._layout)
        if there:
            self._watch(there)
        try:
            yield
        finally:
            self._over.set()

    def _is_now(self) -> bool:
        """Return whether the newest batch that Spark planned is the one for the fault."""
        planned = Checkpoint(self._layout.checkpoint(generation(self._layout))).last_offset
        return planned is not None and planned.batch == self._batch

    def _there(self, layout: FlowHome) -> Callable[[], bool] | None:
        if self._step == "commit":
            log, name = Path(layout.tables.target.path, "_delta_log"), f"{self._version:020}.json"
            return lambda: any(name in found for found in _names(log))
        if self._step == "committed":
            commits = Path(layout.checkpoint(generation(layout)), "commits")
            return lambda: str(self._batch) in _names(commits)
        if self._step == "time":
            until = time.monotonic() + self._batch / 1000
            return lambda: self._over.wait(0.001) or time.monotonic() > until
        return None

    def _watch(self, there: Callable[[], bool]) -> None:
        def look() -> None:
            while not there():
                if self._over.is_set():
                    return
            if not self._over.is_set():
                self.fire()

        threading.Thread(target=look, daemon=True).start()

    def fire(self) -> None:
        """Write the marker file, then act."""
        temporary = self._home / ".fired"
        temporary.write_text(str(self._jvm))
        temporary.replace(self._home / "fired")
        if self._act == "kill":
            self._die()
        elif self._act == "term":
            # to the main thread: it waits for Spark, and Python runs signal handlers only in the
            # main thread
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            self._wait(lambda: bool(self._stop.why))
        else:
            self._wait((self._home / "go").exists)

    def _wait(self, over: Callable[[], bool]) -> None:
        """Wait until `over()` is true. Die if the parent process is gone."""
        while not over():
            if os.getppid() != self._parent:
                self._die()
            time.sleep(_POLL)

    def _die(self) -> None:
        os.kill(self._jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def new_file(directory: Path) -> Callable[[], bool]:
    """Return a function that tells whether a data file was added since this call."""
    before = _data_files(directory)
    return lambda: not _data_files(directory) <= before


def _data_files(directory: Path) -> set[str]:
    """Return the paths of data files and deletion vectors in all partitions."""
    found: set[str] = set()
    for place, below, names in os.walk(directory):
        below[:] = [name for name in below if name != "_delta_log"]
        found |= {f"{place}/{name}" for name in names if name.endswith(_DATA)}
    return found


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 (polled: faster than iterdir)
    except FileNotFoundError:
        time.sleep(0.001)
        return []


def done(spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]) -> Exit:
    """Do the step of `entry`, a drain under its fault. Returns the exit code, unless the fault
    killed this process.
    """
    is_drain = request.step == "drain"
    work = _drain(spark, request, home, entry) if is_drain else partial(steps.work, request, spark)
    report, code = attempt(request, work)
    said = {
        "outcome": report.outcome,
        "code": int(code),
        "error": (report.error or {}).get("code", ""),
    }
    (home / "outcome.json").write_text(json.dumps(said))
    return code


def _drain(
    spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]
) -> Callable[[Stop], StepReport]:
    fault, tuning = PlannedFault(spark, request, home, entry), Tuning(**entry.get("tuning", {}))

    def work(stop: Stop) -> StepReport:
        with fault.armed(stop):
            return drain(
                request,
                spark,
                stop=stop,
                progress=fault.progress,
                reached=fault.reached,
                tuning=tuning,
            )

    return work


def main(plan: Sequence[Mapping[str, Any]]) -> int:
    """Do the entries of the plan in turn. Returns the exit code of the first that failed, or of the
    last.
    """
    spark = session("draindown fault", size="small")
    codes = (
        done(spark, Request.decode(entry["request"]), Path(entry["home"]), entry) for entry in plan
    )
    return next((code for code in codes if code), Exit.DONE)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
