"""What a drain step does, as its request says: drain, read input again, or replay refused rows. Chosen here only."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.sources.files.listing import SourceListing
from draindown.spark.limits import Stop
from draindown.spark.runs import replay_input, replay_rows
from draindown.spark.runs.drain import drain


def run_drain(
    request: Request,
    spark: SparkSession,
    *,
    stop: Stop | None = None,
    progress: Callable[[str], None] = print,
    source: SourceListing | None = None,
) -> StepReport:
    """Do what `request` asks of its drain step. Each mode is idempotent and raises what it documents.

    `source`: what the run's plan saw of the source, if this process made one.
    """
    if request.replay is not None:
        return replay_input.replay(request, spark, stop=stop, progress=progress)
    if request.quarantine_ids is not None:
        return replay_rows.replay(request, spark)
    return drain(request, spark, stop=stop, progress=progress, source=source)
