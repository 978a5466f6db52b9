"""A driver that dies or waits where it is told. `driver.py PLAN`, a JSON list of {home, flow, fault, act}.

Each entry is drained in turn through `runner.attempt`. `fault` is [step, n]: the n-th time that step is reached; step
`intake` is the moment after the intake's commit, `commit` the moment when version n of the target appears in its log.
There `act` is `kill` (JVM and Python at once, by SIGKILL) or `wait` (until the file <home>/go is there). The file
<home>/fired says that it happened, and names the JVM.
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

from pyspark.sql import SparkSession

from draindown.report import StepReport
from draindown.spark.drain import Stop, drain
from draindown.spark.runner import attempt
from draindown.spark.session import session
from tests.landing import Landing


class Fault:
    """Strikes once, at its place."""

    def __init__(self, home: Path, spark: SparkSession, place: tuple[str, int] | None, act: str) -> None:
        self._home, self._place, self._act, self._seen = home, place, act, 0
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr, operator]

    def reached(self, step: str) -> None:
        if not self._place or step != self._place[0]:
            return
        self._seen += 1
        if self._seen == self._place[1]:
            self.strike()

    def progress(self, line: str) -> None:
        if "waiting" in line:
            self.reached("intake")

    def watch_log(self, log: Path) -> None:
        """Strike as soon as version n, or the file it is about to be renamed from, is in the log."""
        if self._place and self._place[0] == "commit":
            threading.Thread(target=self._watch, args=(log, f"{self._place[1]:020}.json"), daemon=True).start()

    def _watch(self, log: Path, version: str) -> None:
        while True:
            try:
                if any(version in name for name in os.listdir(log)):  # noqa: PTH208 (as fast as it gets)
                    self.strike()
            except FileNotFoundError:
                time.sleep(0.001)

    def strike(self) -> None:
        temporary = self._home / ".fired"
        temporary.write_text(str(self._jvm))
        temporary.replace(self._home / "fired")
        if self._act == "kill":
            os.kill(self._jvm, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        while not (self._home / "go").exists():
            time.sleep(0.02)


def _work(landing: Landing, spark: SparkSession, fault: Fault) -> Callable[[Stop], StepReport]:
    def work(stop: Stop) -> StepReport:
        return drain(landing.request(), spark, stop=stop, progress=fault.progress, reached=fault.reached)

    return work


def main(plan: list[dict[str, Any]]) -> int:
    """Drain everything in the plan; the worst exit code."""
    spark = session("faults", master="local[2]", short=True)
    codes = []
    for entry in plan:
        home = Path(entry["home"])
        landing = Landing(home, **entry["flow"])
        place = entry.get("fault")
        fault = Fault(home, spark, tuple(place) if place else None, entry.get("act", "kill"))
        fault.watch_log(Path(landing.layout.table, "_delta_log"))
        report, code = attempt(landing.request(), _work(landing, spark, fault))
        (home / "outcome.json").write_text(json.dumps({"outcome": report.outcome, "code": int(code)}))
        print(home.name, report.outcome, int(code), report.error, flush=True)
        codes.append(int(code))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
