"""One slice of a table as a derive batch."""

from __future__ import annotations

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.progress import Reached
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources.slices import Slice
from draindown.spark.batch.commit import stamp_after
from draindown.spark.derived.derive import DeriveBatch, TableSlice, derive
from draindown.spark.derived.scope import Bucket
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.tuning import Tuning
from draindown.spec.derived import DerivedFlow


def derive_slice(
    request: Request,
    flow: DerivedFlow,
    spark: SparkSession,
    generation: int,
    number: int,
    pinned: Slice,
    *,
    reached: Reached,
    tuning: Tuning,
) -> BatchRow:
    """Derive a pinned slice as batch `number` of a generation. Raises like `derive`."""
    (unit,) = pinned.units
    own, started = unit.row, now()
    piece = TableSlice(
        number=pinned.number,
        path=unit.name,
        start=None if own["fill"] else unit.start,
        until=unit.until,
        bucket=Bucket(own["bucket"], own["buckets"]),
        rows=own["rows"],
        changes=own["changes"],
    )
    batch = DeriveBatch(
        writer=TableWriter(request.layout, flow, generation, number),
        flow=flow,
        slice=piece,
        run_id=request.run_id,
        changed_at=stamp_after(ledger_table.newest_stamp(request.layout), started),
        started_at=started,
        start=request.start,
        reached=reached,
        tuning=tuning,
    )
    return derive(spark, batch)
