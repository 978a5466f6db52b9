"""A driver that dies, waits or is told to end where it is asked to, so that what survives can be looked at.

`python -m draindown.spark.job.fault_driver PLAN`, a JSON list of entries, each drained in turn by `main.attempt`:

    request   as `Request.encode` writes it
    home      directory for the files below
    place     [step, batch] or none; batches count from 0
    act       kill: JVM and Python at once, by SIGKILL (default); wait: until <home>/go is there; term: SIGTERM, once
    version   of the table that the batch's commit makes, for step `commit`; default: batch + 1

Steps are those that a drain tells (`begun`, `read`, `quarantined`, `remembered`, `merged`, `recorded`), and: `intake`,
after files were taken in; `data`, when a data file of the batch's write appears; `commit`, when the commit's file, or
the one it is about to be renamed from, does; `committed`, when the checkpoint has the batch done; `time`, so many
milliseconds after the drain began (in place of a batch). <home>/fired says that it happened, and names the JVM;
<home>/outcome.json says how the drain ended.
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
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import generation
from draindown.lake.layout import FlowLayout
from draindown.runs.request import Request
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from draindown.spark.runs.drain import drain
from draindown.spark.session import session

_POLL = 0.02
_DATA = (".parquet", ".bin")
_BEFORE_DATA = "remembered"
"""The last step before the table's own files are written."""


class Strike:
    """One fault on one flow: strikes once, at its place."""

    def __init__(self, spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]) -> None:
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        self._layout, self._home = request.layout, home
        place: Sequence[Any] = entry.get("place") or ("", 0)
        self._step, self._batch = str(place[0]), int(place[1])
        self._act, self._version = entry.get("act", "kill"), entry.get("version", self._batch + 1)
        self._over, self._parent, self._stop = threading.Event(), os.getppid(), Stop()

    def reached(self, step: str) -> None:
        """What a drain tells after each step."""
        if self._step == "data" and step == _BEFORE_DATA and self._is_now():
            self._watch(new_file(Path(self._layout.table)))
        if step == self._step and (step == "intake" or self._is_now()):
            self.strike()

    def progress(self, line: str) -> None:
        """What a drain tells people: its first line about a backlog comes right after the intake."""
        sys.stderr.write(f"{line}\n")
        if "waiting" in line:
            self.reached("intake")

    @contextmanager
    def armed(self, stop: Stop) -> Iterator[None]:
        """Look out for what no step tells of until the block ends. `stop` is what the driver asks whether to end."""
        self._stop = stop
        there = self._there(self._layout)
        if there:
            self._watch(there)
        try:
            yield
        finally:
            self._over.set()

    def _is_now(self) -> bool:
        """Whether the newest batch that Spark planned is the one to strike."""
        planned = Checkpoint(self._layout.checkpoint(generation(self._layout))).last_offset
        return planned is not None and planned.batch == self._batch

    def _there(self, layout: FlowLayout) -> Callable[[], bool] | None:
        if self._step == "commit":
            log, name = Path(layout.table, "_delta_log"), f"{self._version:020}.json"
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
                self.strike()

        threading.Thread(target=look, daemon=True).start()

    def strike(self) -> None:
        """Leave the mark, then act."""
        temporary = self._home / ".fired"
        temporary.write_text(str(self._jvm))
        temporary.replace(self._home / "fired")
        if self._act == "kill":
            self._die()
        elif self._act == "term":
            # to the main thread: that one waits for Spark, and only it runs handlers
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            self._wait(lambda: bool(self._stop.why))
        else:
            self._wait((self._home / "go").exists)

    def _wait(self, over: Callable[[], bool]) -> None:
        """Who waits for a parent that is gone waits for nothing, and dies."""
        while not over():
            if os.getppid() != self._parent:
                self._die()
            time.sleep(_POLL)

    def _die(self) -> None:
        os.kill(self._jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def new_file(directory: Path) -> Callable[[], bool]:
    """Whether a data file has come since."""
    before = _data_files(directory)
    return lambda: not _data_files(directory) <= before


def _data_files(directory: Path) -> set[str]:
    """Files of rows and of deletions, in all partitions."""
    found: set[str] = set()
    for place, below, names in os.walk(directory):
        below[:] = [name for name in below if name != "_delta_log"]
        found |= {f"{place}/{name}" for name in names if name.endswith(_DATA)}
    return found


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 (as fast as it gets)
    except FileNotFoundError:
        time.sleep(0.001)
        return []


def drained(spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]) -> Exit:
    """Drain under a fault (`place`, `act`, `version` of `entry`); the exit code, if anything is left to return it."""
    strike = Strike(spark, request, home, entry)

    def work(stop: Stop) -> Any:
        with strike.armed(stop):
            return drain(request, spark, stop=stop, progress=strike.progress, reached=strike.reached)

    report, code = attempt(request, work)
    (home / "outcome.json").write_text(json.dumps({"outcome": report.outcome, "code": int(code)}))
    return code


def main(plan: Sequence[Mapping[str, Any]]) -> int:
    """Drain everything in the plan; the worst exit code."""
    spark = session("draindown strike", short=True)
    return max(drained(spark, Request.decode(entry["request"]), Path(entry["home"]), entry) for entry in plan)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
