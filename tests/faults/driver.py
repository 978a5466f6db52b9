"""A driver that dies, waits or is told to end where it is asked to. `driver.py PLAN`, a JSON list of entries:

    home     of the lake                      flow    what `Landing` takes
    place    [step, batch] or none            act     kill | wait | term
    step     drain (default), compact, check  beside  drain this lake's witness in another thread at the same time
    notes    directory for the files below (default: home)

Entries are done in turn through `runner.attempt`. Steps are those that a batch tells, and: `start` before the step;
`intake` after files were taken in; `begun` when Spark hands over the batch; `data` when a data file of the target's
write appears, `commit` when version batch + 1 of the target does or is about to, `logged` when it is in the log,
`committed` when Spark says the batch is done; `judging` inside the gate.
The file <notes>/fired says that it happened, and names the JVM; `wait` ends when the file <notes>/go is there;
<notes>/ready says that Spark runs, <notes>/outcome.json how the entry ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import generation
from draindown.runs.report import StepReport
from draindown.spark.checks.check import check
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from draindown.spark.session import session
from tests.faults.lakes import witness
from tests.faults.rebuilding import rebuilt
from tests.landing import Landing


class Fault:
    """Strikes once, at its place."""

    def __init__(self, notes: Path, landing: Landing, spark: SparkSession, entry: dict[str, Any]) -> None:
        self.step, self.batch = entry.get("place") or (None, 0)
        self._act, self._notes, self._landing = entry.get("act", "kill"), notes, landing
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr, operator]
        self._struck = threading.Lock()
        self.stop: Stop | None = None

    def reached(self, step: str) -> None:
        if self.step == "data" and step == "remembered" and self._now() == self.batch:
            self.watch(_new_file(Path(self._landing.layout.table)))
        if step == self.step and (step in ("intake", "start", "judging") or self._now() == self.batch):
            self.strike()

    def progress(self, line: str) -> None:
        if "waiting" in line:
            self.reached("intake")

    def _now(self) -> int:
        """The batch at hand: the newest that Spark planned."""
        planned = Checkpoint(self._landing.layout.checkpoint(generation(self._landing.layout))).last_offset
        return -1 if planned is None else planned.batch

    def watch_files(self, step: str) -> None:
        """Strike as soon as a file is there that no step tells of."""
        layout = self._landing.layout
        if self.step == "commit":
            log, version = Path(layout.table, "_delta_log"), f"{self.batch + 1:020}.json"
            self.watch(lambda: any(version in name for name in _names(log)))
        elif self.step == "logged":
            self.watch(Path(layout.table, "_delta_log", f"{self.batch + 1:020}.json").exists)
        elif self.step == "committed":
            commits = Path(layout.checkpoint(1), "commits")
            self.watch(lambda: str(self.batch) in _names(commits))
        elif self.step == "data" and step != "drain":
            self.watch(_new_file(Path(layout.table)))

    def watch(self, there: Callable[[], bool]) -> None:
        def look() -> None:
            while not there():
                pass
            self.strike()

        threading.Thread(target=look, daemon=True).start()

    def strike(self) -> None:
        if not self._struck.acquire(blocking=False):
            return
        _write(self._notes / "fired", str(self._jvm))
        if self._act == "kill":
            os.kill(self._jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._act == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            while not (self.stop and self.stop.why):
                time.sleep(0.01)
        else:
            while not (self._notes / "go").exists():
                time.sleep(0.02)


class Told:
    """A `Stop` that tells the fault when a batch is handed over: the first thing a batch does is to ask it."""

    def __init__(self, stop: Stop, fault: Fault) -> None:
        self._stop, self._fault = stop, fault
        fault.stop = stop

    @property
    def why(self) -> str | None:
        self._fault.reached("begun")
        return self._stop.why


def _new_file(directory: Path) -> Callable[[], bool]:
    before = _names(directory)
    return lambda: any(name.endswith((".parquet", ".bin")) for name in _names(directory) - before)


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))  # noqa: PTH208 (as fast as it gets)
    except FileNotFoundError:
        time.sleep(0.001)
        return set()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.replace(path)


def _work(landing: Landing, spark: SparkSession, fault: Fault, entry: dict[str, Any]) -> Callable[[Stop], StepReport]:
    step = entry.get("step", "drain")
    request = landing.request(suite=entry.get("suite"), force=step == "compact").model_copy(update={"step": step})

    def work(stop: Stop) -> StepReport:
        fault.reached("start")
        fault.watch_files(step)
        if step == "drain":
            told: Any = Told(stop, fault)
            return drain(request, spark, stop=told, progress=fault.progress, reached=fault.reached)
        if step == "compact":
            return compact(request, spark)
        from draindown.spark.checks import judge as checks_judge

        right = checks_judge.judge

        def judge(*given: Any) -> Any:
            fault.reached("judging")
            return right(*given)

        with mock.patch.object(checks_judge, "judge", judge):
            return check(request, spark)

    return work


def _beside(home: Path, spark: SparkSession) -> threading.Thread:
    other = witness(home)
    thread = threading.Thread(target=lambda: drain(other.request(), spark, progress=lambda _: None), daemon=True)
    thread.start()
    return thread


def _do(entry: dict[str, Any], spark: SparkSession) -> int:
    home = Path(entry["home"])
    notes, landing = Path(entry.get("notes") or home), Landing(home, **entry["flow"])
    if entry.get("rebuild"):
        return int(rebuilt(spark, landing.request(), home, entry))
    fault = Fault(notes, landing, spark, entry)
    _write(notes / "ready", "")
    thread = _beside(home, spark) if entry.get("beside") else None
    started = time.monotonic()
    step = entry.get("step", "drain")
    request = landing.request().model_copy(update={"step": step})
    report, code = attempt(request, _work(landing, spark, fault, entry))
    if thread:
        thread.join()
    outcome = {"outcome": report.outcome, "code": int(code), "error": report.error}
    _write(notes / "outcome.json", json.dumps(outcome | {"seconds": time.monotonic() - started}, default=str))
    print(home.name, report.outcome, int(code), report.error, flush=True)
    return int(code)


def main(plan: list[dict[str, Any]]) -> int:
    """Do everything in the plan; the worst exit code."""
    spark = session("faults", master="local[2]", short=True)
    return max([_do(entry, spark) for entry in plan])


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
