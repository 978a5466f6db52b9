"""The batches of a derived flow: keys that a slice touches, recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.base.progress import StepHook
from draindown.config.derived import DerivedFlow
from draindown.flow import generations
from draindown.lake.home import FlowHome, table_of_unit
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.slices import Slice, Unit
from draindown.sources.tables.division import Division
from draindown.sources.tables.followed import Followed
from draindown.sources.tables.source import by_table
from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.derive import derive
from draindown.spark.derived.scope import Bucket, KeyRange
from draindown.spark.targets.commit import stamp_after
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.outlets import outlets_of
from draindown.spark.tuning import Tuning


@dataclass
class Deriving:
    """The `Batches` of a derived flow.

    `kind`: the writer's kind. `verify`: raises if a source is another table than the pinned one.
    """

    request: Request
    flow: DerivedFlow
    generation: int
    tuning: Tuning
    kind: str
    verify: Callable[[Sequence[Unit]], None]
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Look at the flow's sinks. They are connected to by each batch."""
        self._outlets = outlets_of(self.request)

    def run(self, spark: SparkSession, number: int, read: Slice, reached: StepHook) -> BatchRow:
        """Derive a slice. Raises like `derive`."""
        reached("begun")
        layout, started = self.request.layout, now()
        writer = TableWriter(layout, self.flow, self.generation, number, self.kind)
        batch = DeriveBatch(
            writer=writer,
            flow=self.flow,
            slice=self._table_slice(read),
            run_id=self.request.run_id,
            changed_at=stamp_after(ledger_table.newest_stamp(layout), started),
            started_at=started,
            start=self.request.start,
            reached=reached,
            tuning=self.tuning,
            places=self.request.places,
            verify=lambda: self.verify(read.units),
            outlets=self._outlets,
            note=self.findings.append,
        )
        row = derive(spark, batch)
        if row.late:
            self.findings.append(_late(row, is_fill=batch.slice.is_fill))
        return row

    def _table_slice(self, pinned: Slice) -> TableSlice:
        """Return what a slice pins, its tables in the order in which the flow names them.

        A replay reads rows as the newest batch of the stream has them: what the slice touched may
        have changed since. No replay begins between two buckets of a range, whose keys are at two
        versions.
        """
        layout, source = self.request.layout, self.flow.source
        newest = pinned
        if self.kind != "drain":
            newest = self._newest() or pinned
        pinned_units = by_table(source, pinned.units)
        newest_units = by_table(source, newest.units)
        tables: list[Versions] = []
        for table, unit, last in zip(source.read, pinned_units, newest_units, strict=True):
            if unit is None or last is None:
                continue
            read_at = last.until
            if newest is not pinned:
                read_at = Followed(table, layout).readable(last)
            tables.append(_versions(layout, unit, read_at))
        row = pinned.units[0].row
        bucket = bucket_of(row, self.flow.derivation.scope_keys)
        decided = row["decided_from"], newest.units[0].row["decided"]
        return TableSlice(pinned.number, tables, bucket, decided)

    def _newest(self) -> Slice | None:
        layout, generation = self.request.layout, self.generation
        return next(
            intake.slices(layout, generation, generations.first_unread(layout, generation) - 1),
            None,
        )


def _late(row: BatchRow, *, is_fill: bool) -> Finding:
    detail = (
        "came later than the flow accepts, or went; they are left out until someone releases them"
    )
    if is_fill and 2 * row.late > row.records:
        detail += (
            f". They are most of the {count(row.records, 'row')} there: is `allowed_lateness` shorter "
            f"than its files are old?"
        )
    where = f"draindown late list {row.pipeline}/{row.flow}"
    return Finding(kind="late", subject=count(row.late, "late row"), detail=detail, next=where)


def bucket_of(own: Mapping[str, Any], keys: Sequence[str]) -> Bucket:
    """Return the bucket that a row of the intake pins."""
    division = Division.of(own["division"])
    at, number = division.place(own["bucket"])
    within = (
        KeyRange(keys.index(division.by), division.kind, *division.ends(at))
        if division.starts
        else None
    )
    return Bucket(number, division.parts[at], within)


def _versions(layout: FlowHome, unit: Unit, at: int) -> Versions:
    own = unit.row
    return Versions(
        path=layout.tables.other(table_of_unit(unit.name)).path,
        unit=unit.name,
        start=None if own["fill"] else unit.start,
        until=unit.until,
        rows=own["rows"],
        bytes=unit.bytes,
        changes=own["changes"],
        read_at=at,
    )
