"""A rebuild that dies where it is told: at the n-th time of a step, or as version n of the live
table appears.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.spark.job.fault_driver import PlannedFault
from draindown.spark.job.main import attempt
from draindown.spark.limits import Stop
from draindown.spark.runs.rebuild import rebuild


class Death(PlannedFault):
    """Strikes at the n-th time of its step, whatever batch that is."""

    _seen = 0

    def reached(self, step: str) -> None:
        """What a rebuild tells after each step."""
        if step == self._step:
            self._seen += 1
            if self._seen == self._batch:
                self.fire()


def rebuilt(spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]) -> Exit:
    """Rebuild under `entry`'s `fault`; the exit code, if anything is left to return it."""
    fault = entry.get("fault")
    death = Death(spark, request, home, {"place": fault, "version": fault[1]} if fault else {})

    def work(stop: Stop) -> StepReport:
        with death.armed(stop):
            return rebuild(
                request, spark, stop=stop, progress=lambda line: None, reached=death.reached
            )

    _, code = attempt(request, work)
    return code
