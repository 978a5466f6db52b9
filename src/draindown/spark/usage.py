"""Resource usage of a batch: persisted rows in memory and on disk, garbage collection time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import SparkSession

from draindown.base.progress import StepHook
from draindown.sources.batch_size import Load

_DELTAS_OWN = "Delta Table State"
"""Prefix of the names of RDDs in which Delta caches the state of a table's log."""


@dataclass(frozen=True)
class Persisted:
    """Bytes of all persisted RDDs, and how many of them are on disk (`spilled`)."""

    bytes: int
    spilled: int


def persisted(spark: SparkSession) -> Persisted:
    """Return the size of all RDDs persisted now, without Delta's cached log state."""
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    stored = [one for one in found if not str(one.name()).startswith(_DELTAS_OWN)]
    spilled = sum(one.diskSize() for one in stored)
    return Persisted(spilled + sum(one.memSize() for one in stored), spilled)


class ResourceUsage:
    """Measures one batch, from construction on.

    On a cluster memory is the sum over all executors, and garbage collection time is the driver's.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._begun, self._collected = spark, time.monotonic(), _gc_seconds(spark)
        self._kept = self._spilled = 0

    def beside(self, reached: StepHook) -> StepHook:
        """Return a progress hook that takes a measurement and then calls `reached`."""

        def look_and_tell(step: str) -> None:
            self._look()
            reached(step)

        return look_and_tell

    def _look(self) -> None:
        """Measure what is persisted now, and keep the maximum."""
        now = persisted(self._spark)
        self._spilled = max(self._spilled, now.spilled)
        self._kept = max(self._kept, now.bytes)

    def load(self, raw_bytes: int, heap_bytes: int) -> Load | None:
        """Return the measurements of a batch that is done; None if nothing was persisted in any
        step.
        """
        if not self._kept:
            return None
        seconds, collected = (
            time.monotonic() - self._begun,
            _gc_seconds(self._spark) - self._collected,
        )
        return Load(
            raw_bytes, self._kept, self._spilled, round(collected, 2), round(seconds, 2), heap_bytes
        )


def _gc_seconds(spark: SparkSession) -> float:
    beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()  # type: ignore[union-attr]
    return float(sum(bean.getCollectionTime() for bean in beans)) / 1000
