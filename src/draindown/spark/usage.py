"""What a batch weighs while it runs: its rows in Spark's memory and on disk, and the collector's time."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyspark.sql import SparkSession

from draindown.base.progress import Reached
from draindown.sources.batch_size import Load

_DELTAS_OWN = "Delta Table State"
"""How the names of what Delta keeps of a table's log begin."""


@dataclass(frozen=True)
class Persisted:
    """Bytes of all that lies persisted, of which `spilled` lie on disk."""

    bytes: int
    spilled: int


def persisted(spark: SparkSession) -> Persisted:
    """What lies persisted now, of whatever batch; what Delta keeps of logs is left out."""
    found = spark.sparkContext._jsc.sc().getRDDStorageInfo()
    stored = [one for one in found if not str(one.name()).startswith(_DELTAS_OWN)]
    spilled = sum(one.diskSize() for one in stored)
    return Persisted(spilled + sum(one.memSize() for one in stored), spilled)


class Gauge:
    """Weighs one batch, from now on. On a cluster its memory is that of all executors, the collector the driver's."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._begun, self._collected = spark, time.monotonic(), _gc_seconds(spark)
        self._kept = self._spilled = 0

    def beside(self, reached: Reached) -> Reached:
        """Look after each step that `reached` is told."""

        def look_and_tell(step: str) -> None:
            self._look()
            reached(step)

        return look_and_tell

    def _look(self) -> None:
        """Look at what lies persisted now; the most that was ever seen counts."""
        now = persisted(self._spark)
        self._spilled = max(self._spilled, now.spilled)
        self._kept = max(self._kept, now.bytes)

    def load(self, raw_bytes: int, heap_bytes: int) -> Load | None:
        """What the batch weighed, once it is done; None if nothing of it was ever persisted."""
        if not self._kept:
            return None
        seconds, collected = time.monotonic() - self._begun, _gc_seconds(self._spark) - self._collected
        return Load(raw_bytes, self._kept, self._spilled, round(collected, 2), round(seconds, 2), heap_bytes)


def _gc_seconds(spark: SparkSession) -> float:
    beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()  # type: ignore[union-attr]
    return float(sum(bean.getCollectionTime() for bean in beans)) / 1000
