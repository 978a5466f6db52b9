"""The input of a batch: a slice, or records that someone kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from pyspark.sql import SparkSession

from draindown.base.errors import DraindownError
from draindown.config.landing import FlowSpec
from draindown.sources.port import Source
from draindown.sources.slices import Slice, Unit
from draindown.spark.sources import raw
from draindown.spark.sources.place import Block, BlockOrigin, micros
from draindown.spark.sources.port import Read, SliceReader


@dataclass(frozen=True)
class SliceInput:
    """A slice of a source, as an `Input`."""

    source: Source
    slice: Slice
    reader: SliceReader

    @property
    def number(self) -> int:
        """Number of the slice."""
        return self.slice.number

    @property
    def noun(self) -> str:
        """What the source calls a unit."""
        return self.source.unit

    @property
    def units(self) -> Sequence[Unit]:
        """The units of the slice."""
        return self.slice.units

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the reader."""
        return self.reader.settings

    def read(self, spark: SparkSession, flow: FlowSpec, spool: str) -> list[Read]:
        """Return the records of the slice: from the lake what it keeps, all else from the
        source.
        """
        kept = [unit for unit in self.units if unit.kept]
        there = [replace(unit, name=self._place(unit.name)) for unit in self.units if not unit.kept]
        reads = self.reader.read(spark, flow, there, spool) if there or not kept else []
        return [*reads, Read(raw.read(spark, kept))] if kept else reads

    def alone(self, unit: Unit) -> SliceInput:
        """Return the input of one unit."""
        return replace(self, slice=self.slice.only([unit.name]))

    def name(self, unit: str) -> str:
        """As `SliceReader.name`, of a unit that is under another name now the one it was pinned
        by.
        """
        name = self.reader.name(unit)
        return self._pinned.get(name, name)

    def _place(self, name: str) -> str:
        return self.source.named.place(name) if self.source.named else name

    @cached_property
    def _pinned(self) -> Mapping[str, str]:
        return {
            place: unit.name
            for unit in self.units
            if (place := self._place(unit.name)) != unit.name
        }

    def origins(self, blocks: Sequence[Block]) -> list[BlockOrigin]:
        """Return the origin of every block: positions by the reader's offsets, arrivals as the
        intake has them.
        """
        latest_first = sorted(self.units, key=lambda unit: unit.arrived_at, reverse=True)
        arrived = {
            unit.name: micros(unit.arrived_at) for unit in latest_first
        }  # of several ranges: the earliest
        logs = {unit.name: unit.log for unit in self.units}
        named = [(at, self.name(at[0])) for at in self.reader.offsets(blocks)]
        return [BlockOrigin(*at, unit, arrived[unit], logs[unit]) for at, unit in named]

    def refuse_miscounted(self, blocks: Sequence[Block]) -> None:
        """Compare the records that were read with those of the slice. Raises as
        `Source.refuse_miscounted`.
        """
        read: Counter[str] = Counter()
        for unit, _, records, _ in blocks:
            read[self.name(unit)] += records
        self.source.refuse_miscounted(self.number, self.units, read)

    def failed(self, error: BaseException) -> DraindownError | None:
        """Return what the source says of a failure that the reader knows as its own."""
        failure = self.reader.failure(error)
        perishable = self.source.perishable
        return perishable.read_failed(failure, self.units) if failure and perishable else None

    @property
    def by_name(self) -> bool:
        """Whether a person names units of the source one by one."""
        return self.source.named is not None

    def leaving_out(self, units: Iterable[str]) -> str:
        """Return the command that leaves units out of the batch."""
        return self.source.leaving_out(units)


@dataclass(frozen=True)
class GivenRecords:
    """Records that were read before, as an `Input`.

    PLACE has the names of their units, and as id their positions. Each has an ARRIVED of its own.
    """

    reads: Sequence[Read] = ()
    number: int = 0
    noun: str = "unit"
    units: Sequence[Unit] = ()
    by_name: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def read(self, spark: SparkSession, flow: FlowSpec, spool: str) -> list[Read]:  # noqa: ARG002
        """Return the records."""
        return list(self.reads)

    def alone(self, unit: Unit) -> GivenRecords:
        """Not possible: there are no units."""
        raise LookupError(unit.name)

    def name(self, unit: str) -> str:
        """Return the name, which PLACE has as it is."""
        return unit

    def origins(self, blocks: Sequence[Block]) -> list[BlockOrigin]:
        """Return the origin of every block, which PLACE has as it is."""
        return [BlockOrigin(unit, block, 0, unit, arrived_us=0) for unit, block, _, _ in blocks]

    def refuse_miscounted(self, blocks: Sequence[Block]) -> None:
        """Refuse nothing: no unit was counted."""

    def failed(self, error: BaseException) -> None:
        """Explain nothing: the records are not at the source."""

    def leaving_out(self, units: Iterable[str]) -> str:
        """Not possible: there are no units."""
        raise LookupError(", ".join(units))
