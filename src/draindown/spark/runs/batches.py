"""The kind of a flow's batches: the one place that chooses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from draindown.config.derived import DerivedFlow
from draindown.runs.request import Request
from draindown.sources.port import Source
from draindown.sources.slices import Unit
from draindown.spark.batch.landing import Landing
from draindown.spark.batch.port import Batches
from draindown.spark.contract import analysis
from draindown.spark.derived.batches import Deriving
from draindown.spark.tuning import TUNING, Tuning


def batches_of(
    request: Request,
    source: Source,
    generation: int,
    *,
    kind: str = "drain",
    verify: Callable[[Sequence[Unit]], None] | None = None,
    tuning: Tuning = TUNING,
) -> Batches:
    """Return what runs the batches of a drain, or of a replay of `kind`, for the request's flow.

    `verify`: raises if units are not as they were pinned; default: `Source.refuse_changed`.
    """
    flow = request.declared
    if isinstance(flow, DerivedFlow):
        return Deriving(request, flow, generation, tuning, kind, source.refuse_changed)
    return Landing(request, source, generation, tuning, kind, verify or source.refuse_changed)


def refuse_unresolved(request: Request, spark: SparkSession) -> None:
    """Refuse expressions of the flow that Spark can't resolve, before anything is pinned.

    A derivation is resolved by each batch, against its source. Raises TerminalError
    `invalid-pipeline`.
    """
    if isinstance(request.declared, DerivedFlow):
        return
    analysis.refuse_unresolved(request, spark)
