"""The batches of a landing flow: records of a slice, through the contract, into the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.progress import StepHook
from draindown.flow.release_intent import release_applied
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources import batch_size
from draindown.sources.port import Source
from draindown.sources.slices import Slice, Unit
from draindown.spark import cluster
from draindown.spark.batch import requarantine
from draindown.spark.batch.model import Batch
from draindown.spark.batch.process import process
from draindown.spark.batch.pruning_advice import Skipping
from draindown.spark.contract import transforms
from draindown.spark.contract.transforms import Transform
from draindown.spark.sources.registry import input_of
from draindown.spark.targets.commit import stamp_after
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.outlets import outlets_of
from draindown.spark.tuning import Tuning
from draindown.spark.usage import ResourceUsage


@dataclass
class Landing:
    """The `Batches` of a landing flow.

    `kind`: the writer's kind. `verify`: raises if units are not as they were pinned; called before
    a batch reads, and again when it has read everything and written nothing.
    """

    request: Request
    source: Source
    generation: int
    tuning: Tuning
    kind: str
    verify: Callable[[Sequence[Unit]], None]
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Load the transform, which may be refused, before the first batch."""
        self._outlets = outlets_of(self.request)
        self._skipping = Skipping(self.request.layout, self.request.flow_spec, self.tuning)
        _ = self._transform

    @cached_property
    def _transform(self) -> Transform | None:
        dotted = self.request.flow_spec.transform
        return transforms.load(self.request.root, dotted) if dotted else None

    def run(self, spark: SparkSession, number: int, read: Slice, reached: StepHook) -> BatchRow:
        """Apply a slice. Remembers what the batch weighed, and releases quarantined rows that it
        accepts.
        """
        reached("begun")
        usage, layout = ResourceUsage(spark), self.request.layout
        writer = Writer(layout, self.request.flow_spec, self.generation, number, kind=self.kind)
        row = process(
            spark, self._batch(writer, read, usage.beside(self._verifying(spark, read, reached)))
        )
        if load := usage.load(read.unpacked, cluster.workers(spark).memory):
            batch_size.remember(layout, load)
        if requarantine.concerns(writer):
            release_applied(layout, by=self.request.owner, reached=reached)
        if self._skipping.batch == number:
            self.findings += self._skipping.findings(row)
        return row

    def _verifying(self, spark: SparkSession, read: Slice, reached: StepHook) -> StepHook:
        """Return a hook that, on a cluster, verifies the units once more, right before sinks and
        target are written.

        Rows that a lost executor had persisted are read again.
        """
        if cluster.executors(spark.sparkContext) is None:
            return reached

        def verify(step: str) -> None:
            if step == "remembered":
                self.verify(read.units)
            reached(step)

        return verify

    def _batch(self, writer: Writer, read: Slice, reached: StepHook) -> Batch:
        started = now()
        return Batch(
            writer=writer,
            run_id=self.request.run_id,
            start=self.request.start,
            first_seen=read.first_seen,
            changed_at=stamp_after(ledger_table.newest_stamp(self.request.layout), started),
            started_at=started,
            input=input_of(self.request.flow_spec, self.source, read),
            transform=self._transform,
            reached=reached,
            verify=lambda: self.verify(read.units),
            compared=lambda held, pruning: self._skipping.look(writer.batch, held, pruning),
            tuning=self.tuning,
            outlets=self._outlets,
        )
