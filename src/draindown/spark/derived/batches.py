"""The batches of a derived flow: keys that a slice touches, recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.base.progress import StepHook
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources.slices import Slice, Unit
from draindown.spark.derived.derive import DeriveBatch, TableSlice, derive
from draindown.spark.derived.scope import Bucket
from draindown.spark.targets.commit import stamp_after
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.tuning import Tuning
from draindown.spec.derived import DerivedFlow


@dataclass
class Deriving:
    """The `Batches` of a derived flow. `verify`: raises if the source is another table than the pinned one."""

    request: Request
    flow: DerivedFlow
    generation: int
    tuning: Tuning
    verify: Callable[[Sequence[Unit]], None]
    findings: list[Finding] = field(default_factory=list)

    def run(self, spark: SparkSession, number: int, read: Slice, reached: StepHook) -> BatchRow:
        """Derive a slice. Raises like `derive`."""
        reached("begun")
        layout, started = self.request.layout, now()
        writer = TableWriter(layout, self.flow, self.generation, number)
        if not writer.is_done():
            self.verify(read.units)
        batch = DeriveBatch(
            writer=writer,
            flow=self.flow,
            slice=_piece(read),
            run_id=self.request.run_id,
            changed_at=stamp_after(ledger_table.newest_stamp(layout), started),
            started_at=started,
            start=self.request.start,
            reached=reached,
            tuning=self.tuning,
        )
        row = derive(spark, batch)
        if row.late:
            self.findings.append(_late(row))
        return row


def _late(row: BatchRow) -> Finding:
    detail = "came later than the flow accepts, or went; they count in no window until someone applies them"
    where = f"draindown late list {row.pipeline} --flow {row.flow}"
    return Finding(kind="late", subject=count(row.late, "late row"), detail=detail, next=where)


def _piece(read: Slice) -> TableSlice:
    (unit,) = read.units
    own = unit.row
    return TableSlice(
        number=read.number,
        path=unit.name,
        start=None if own["fill"] else unit.start,
        until=unit.until,
        bucket=Bucket(own["bucket"], own["buckets"]),
        rows=own["rows"],
        bytes=unit.bytes,
        changes=own["changes"],
        decided=(own["decided_from"], own["decided"]),
    )
