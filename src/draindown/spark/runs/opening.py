"""Open a flow from a Spark driver: the JVM holds the lease too, and Spark restores table properties
after a crash.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from draindown.base.progress import StepHook, ignore_step
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.lease.lease import Lease
from draindown.recovery import opening
from draindown.recovery.opening import Needs, OpenFlow
from draindown.runs.request import Request
from draindown.spark import cluster
from draindown.spark.targets import swap


@dataclass(frozen=True)
class _Driver:
    """The engine that `recovery.opening.open_flow` uses: this process and its JVM."""

    spark: SparkSession
    request: Request

    def hold(self, lease: Lease) -> None:
        """Make the JVM hold the lease too, because it can outlive the Python process and still
        commit.
        """
        cluster.refuse_unfit(self.spark, self.request)
        lease.hand_to_jvm(self.spark._jvm)

    def restore_properties(
        self, layout: FlowHome, flow: FlowSpec | DerivedFlow, source: str
    ) -> None:
        """Set what the swap sets once its rows are there."""
        swap.take_properties(self.spark, layout.tables.target.path, source, flow)


def open_flow(
    request: Request, spark: SparkSession, needs: Needs, *, reached: StepHook = ignore_step
) -> AbstractContextManager[OpenFlow]:
    """Open the request's flow with `recovery.opening.open_flow`, with this driver as the engine.

    On a cluster, raises the errors of `cluster.refuse_unfit` before anything is read.
    """
    return opening.open_flow(
        request.spec,
        request.flow,
        needs,
        owner=request.owner,
        run_id=request.run_id,
        engine=_Driver(spark, request),
        reached=reached,
        again=request.resume,
    )
