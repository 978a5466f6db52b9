"""Opening a flow from a driver: its JVM holds the lease too, and Spark gives the target what a crash left out."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from draindown.base.progress import Reached, untold
from draindown.lake.layout import FlowLayout
from draindown.lease.lease import Lease
from draindown.recovery import opening
from draindown.recovery.opening import Needs, OpenFlow
from draindown.runs.request import Request
from draindown.spark.targets import delta_target
from draindown.spec.models import FlowSpec


@dataclass(frozen=True)
class _Driver:
    """The engine of an opening: this process and its JVM."""

    spark: SparkSession

    def hold(self, lease: Lease) -> None:
        """Have the JVM hold the lease too: it can outlive Python, and still commit."""
        lease.hand_to_jvm(self.spark._jvm)

    def keep_bounds(self, layout: FlowLayout, flow: FlowSpec) -> None:
        """Have Delta keep bounds of the target's keys again."""
        delta_target.keep_bounds(self.spark, layout.table, flow)


def open_flow(
    request: Request, spark: SparkSession, needs: Needs, *, reached: Reached = untold
) -> AbstractContextManager[OpenFlow]:
    """Open the flow that a request is about, as `recovery.opening.open_flow` does, with this driver as its engine."""
    return opening.open_flow(
        request.spec,
        request.flow,
        needs,
        owner=request.owner,
        run_id=request.run_id,
        engine=_Driver(spark),
        reached=reached,
    )
