"""Slices: what each batch reads, written down before it is read.

A slice is one commit of the flow's intake, a Delta table: commit N holds the rows of slice N, and
version 0 only creates the table. A batch reads exactly the units of its slice, at every attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

FIRST = 1
"""The number of the first slice."""


def slice_of(batch: int) -> int:
    """Return the number of the slice that a source batch reads. Batches count from 0, slices from
    1.
    """
    return batch + FIRST


def unread_after(batch: int | None) -> int:
    """Return the first slice that no batch up to `batch` has read; None stands for no batch at
    all.
    """
    return FIRST if batch is None else slice_of(batch) + 1


@dataclass(frozen=True)
class Unit:
    """A range of input that a slice pins: a whole file, a range of offsets, versions of a table.

    Attributes:
        name: identifies it in messages and origins: absolute path, `topic/partition`, path of a
            table within the lake.
        start, until: its range, in the positions of its source. A whole file is 0 and the number of
            its lines or rows.
        bytes, unpacked: size as its source stores it, and uncompressed.
        records: number of its records; None if only reading tells.
        arrived_at: when it arrived, which is never later than `first_seen` of its slice.
        log: what tells the unit from a later one of its name, where its source tells them apart.
        kept: the table of raw records that holds the range; empty if it is read at its source.
        row: its row of the intake. Only the source that wrote it and the reader of that source look
            into it.
    """

    name: str
    start: int
    until: int
    bytes: int
    unpacked: int
    records: int | None
    arrived_at: datetime
    row: Mapping[str, Any] = field(repr=False, compare=False)
    log: str = ""
    kept: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Unit:
        """Return the unit that a row of an intake pins."""
        return cls(
            name=row["input"],
            start=row["start"],
            until=row["until"],
            bytes=row["bytes"],
            unpacked=row["unpacked"],
            records=row["records"],
            arrived_at=row["arrived_at"],
            row=dict(row),
        )

    @property
    def range(self) -> str:
        """The name of this range of the unit, of which other slices may hold other ranges."""
        return f"{self.name}:{self.start}-{self.until}"

    def is_among(self, names: Collection[str]) -> bool:
        """Return whether one of `names` means this: the name of the unit, or of the range."""
        return self.name in names or (bool(names) and self.range in names)


@dataclass(frozen=True)
class Slice:
    """The input of one batch: the units of one commit of the intake. `first_seen`: when they were
    pinned.
    """

    number: int
    first_seen: datetime
    units: tuple[Unit, ...]

    def only(self, wanted: Collection[str]) -> Slice:
        """Return the slice with the units that one of these names means."""
        return replace(self, units=tuple(unit for unit in self.units if unit.is_among(wanted)))

    def but(self, left_out: Collection[str]) -> Slice:
        """Return the slice without the units that one of these names means."""
        return replace(
            self, units=tuple(unit for unit in self.units if not unit.is_among(left_out))
        )

    @property
    def bytes(self) -> int:
        """Size of its units."""
        return sum(unit.bytes for unit in self.units)

    @property
    def unpacked(self) -> int:
        """Size of its units, uncompressed."""
        return sum(unit.unpacked for unit in self.units)


def slices_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Slice]:
    """Yield the slices that rows of an intake make up. The rows are ordered by slice."""
    for number, group in groupby(rows, key=lambda row: row["slice"]):
        some: Sequence[Mapping[str, Any]] = list(group)
        yield Slice(int(number), max(row["first_seen"] for row in some), tuple(map(Unit.of, some)))
