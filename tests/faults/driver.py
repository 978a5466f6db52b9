"""A driver that dies, waits or is told to end where it is asked to. `driver.py PLAN`, a JSON list
of entries:

    home     of the lake                      flow    what `Landing` takes
    place    [step, batch] or none            act     kill | wait | term
    step     drain (default), compact, check  beside  drain this lake's witness in another thread at the same time
    notes    directory for the files below (default: home)

Entries are done in turn by `main.attempt`. Places and marks are those of
`draindown.spark.job.fault_driver`, with <notes> for its home, and: `start` before the step;
`judging` inside the gate; `logged` when version batch + 1 of the target is in the log; `data` of a
compaction when a data file of it appears. <notes>/ready says that Spark runs.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from draindown.lake.home import FlowHome
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark.checks import judge as checks_judge
from draindown.spark.checks.check import check
from draindown.spark.job.fault_driver import PlannedFault, new_file
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from draindown.spark.session import session
from tests.faults.lakes import witness
from tests.faults.rebuilding import rebuilt
from tests.landing import Landing


class Fault(PlannedFault):
    """A fault at steps of a check or a compaction as well."""

    def __init__(
        self, notes: Path, landing: Landing, spark: SparkSession, entry: dict[str, Any]
    ) -> None:
        super().__init__(spark, landing.request(), notes, entry)
        self._work = entry.get("step", "drain")

    def reached(self, step: str) -> None:
        if step == self._step and step in ("start", "judging"):
            self.fire()
        else:
            super().reached(step)

    def _there(self, layout: FlowHome) -> Callable[[], bool] | None:
        if self._step == "logged":
            return Path(layout.tables.target.path, "_delta_log", f"{self._version:020}.json").exists
        if self._step == "data" and self._work != "drain":
            return new_file(Path(layout.tables.target.path))
        return super()._there(layout)


def _work(request: Request, spark: SparkSession, fault: Fault) -> Callable[[Stop], StepReport]:
    step = request.step

    def work(stop: Stop) -> StepReport:
        fault.reached("start")
        with fault.armed(stop):
            if step == "drain":
                return drain(
                    request, spark, stop=stop, progress=fault.progress, reached=fault.reached
                )
            if step == "compact":
                return compact(request, spark)
            return _checked(request, spark, fault)

    return work


def _checked(request: Request, spark: SparkSession, fault: Fault) -> StepReport:
    right = checks_judge.judge

    def judge(*given: Any) -> Any:
        fault.reached("judging")
        return right(*given)

    with mock.patch.object(checks_judge, "judge", judge):
        return check(request, spark)


def _beside(home: Path, spark: SparkSession) -> threading.Thread:
    other = witness(home)
    thread = threading.Thread(
        target=lambda: drain(other.request(), spark, progress=lambda _: None), daemon=True
    )
    thread.start()
    return thread


def _do(entry: dict[str, Any], spark: SparkSession) -> int:
    home = Path(entry["home"])
    notes, landing = Path(entry.get("notes") or home), Landing(home, **entry["flow"])
    if entry.get("rebuild"):
        return int(rebuilt(spark, landing.request(), home, entry))
    fault = Fault(notes, landing, spark, entry)
    (notes / "ready").touch()
    thread = _beside(home, spark) if entry.get("beside") else None
    started = time.monotonic()
    step = entry.get("step", "drain")
    request = landing.request(suite=entry.get("suite"), force=step == "compact").model_copy(
        update={"step": step}
    )
    report, code = attempt(request, _work(request, spark, fault))
    if thread:
        thread.join()
    outcome = {"outcome": report.outcome, "code": int(code), "error": report.error}
    (notes / "outcome.json").write_text(
        json.dumps(outcome | {"seconds": time.monotonic() - started}, default=str)
    )
    print(home.name, report.outcome, int(code), report.error, flush=True)
    return int(code)


def main(plan: list[dict[str, Any]]) -> int:
    """Do everything in the plan; the worst exit code."""
    spark = session("faults", master="local[2]", size="small")
    return max([_do(entry, spark) for entry in plan])


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
