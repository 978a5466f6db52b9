"""The port of batches: what one batch of a flow does with a slice. `spark.runs.batches` lists the
kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import SparkSession

from draindown.base.findings import Finding
from draindown.base.progress import StepHook
from draindown.ledger.rows import BatchRow
from draindown.sources.slices import Slice


class Batches(Protocol):
    """The batches of one drain or replay, which runs them one after the other."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What a person should know about the batches so far."""

    def run(self, spark: SparkSession, number: int, read: Slice, reached: StepHook) -> BatchRow:
        """Apply a slice as batch `number` and return its ledger row. No-op if the target already
        contains the batch.

        `reached` is called with `begun`, then with each step's name when the step completes. An
        exception it raises aborts the batch before the next step.
        """
