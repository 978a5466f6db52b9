"""Dispatch a drain step by its request: drain, replay of input, or replay of quarantined rows."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.sources.port import Source
from draindown.spark.limits import Stop
from draindown.spark.runs import replay_input, replay_rows
from draindown.spark.runs.drain import drain


def run_drain(
    request: Request,
    spark: SparkSession,
    *,
    stop: Stop | None = None,
    progress: Callable[[str], None] = print,
    source: Source | None = None,
) -> StepReport:
    """Run the drain step of `request` in the mode that it asks for. Idempotent.

    `source`: the source as the run's plan saw it, if this process made the plan. Raises the errors
    of the mode's function.
    """
    if request.replay is not None:
        return replay_input.replay(request, spark, stop=stop, progress=progress)
    if request.quarantine_ids is not None:
        return replay_rows.replay(request, spark)
    return drain(request, spark, stop=stop, progress=progress, source=source)
