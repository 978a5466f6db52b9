"""Rows of Parquet and ORC files in blocks, by pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as parquet

from draindown.base import orc_zones


@dataclass(frozen=True)
class _Rows:
    """A row group of which no column is read."""

    num_rows: int


BEYOND = b"a time beyond nanoseconds"
"""What stands for each value of a column of ORC with a time outside of 1677 to 2262, which pyarrow
can't read.
"""
_INSTANT = pa.timestamp("us", "UTC")
Blocks = Callable[[list[str]], Iterator[Any]]
"""Blocks of rows with the columns asked for, in the file's order. A block without columns still
knows its rows.
"""


def _parquet(path: str) -> tuple[Blocks, Mapping[str, pa.DataType]]:
    # Spark takes INT96 for an instant; as nanoseconds, which is how it is read by default, most
    # years don't fit
    reader = parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
    leaves = [reader.schema.column(at) for at in range(len(reader.schema))]
    instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}

    def with_instants(block: pa.Table) -> pa.Table:
        for at, name in enumerate(block.column_names):
            if name in instants:
                block = block.set_column(at, name, block.column(at).cast(_INSTANT))
        return block

    def read(wanted: list[str]) -> Iterator[Any]:
        for group in range(reader.num_row_groups):
            rows = reader.metadata.row_group(group).num_rows
            yield (
                with_instants(reader.read_row_group(group, columns=wanted))
                if wanted
                else _Rows(rows)
            )

    return read, {f.name: _INSTANT if f.name in instants else f.type for f in reader.schema_arrow}


def _orc(path: str) -> tuple[Blocks, Mapping[str, pa.DataType]]:
    reader = orc.ORCFile(path)
    zones = orc_zones.zones(path, reader.schema)
    schema = orc_zones.with_instants(reader.schema) if zones else reader.schema

    def read(wanted: list[str]) -> Iterator[Any]:
        for number in range(reader.nstripes):
            stripe = _Stripe(reader, number, zones[number] if zones else None)
            try:
                yield stripe.read(wanted or None)
            except pa.ArrowInvalid:
                yield stripe.beyond(wanted or reader.schema.names)

    return read, {field.name: field.type for field in schema}


@dataclass(frozen=True)
class _Stripe:
    """A stripe of an ORC file. `zone`: that of its writer, if its times are instants."""

    file: orc.ORCFile
    number: int
    zone: str | None

    def read(self, names: list[str] | None) -> pa.RecordBatch:
        """Return its rows. Raises ArrowInvalid if a time can't be read."""
        rows = self.file.read_stripe(self.number, columns=names)
        return orc_zones.as_instants(rows, self.zone) if self.zone else rows

    def beyond(self, wanted: list[str]) -> pa.Table:
        """Return rows of which some columns can't be read, with BEYOND in these: it casts to no
        type of a time.
        """
        read = dict(self._readable(wanted))
        others = read or dict(self._readable(self.file.schema.names))
        lost = pa.array([BEYOND] * len(next(iter(others.values()))))
        return pa.table({name: read.get(name, lost) for name in wanted})

    def _readable(self, names: list[str]) -> Iterator[tuple[str, pa.Array]]:
        for name in names:
            with suppress(pa.ArrowInvalid):
                yield name, self.read([name]).column(0)


_COLUMNAR = {"parquet": _parquet, "orc": _orc}


def blocks(path: str, form: str) -> tuple[Blocks, Mapping[str, pa.DataType]]:
    """Return a reader of a columnar file's rows in blocks, and the types of its columns."""
    return _COLUMNAR[form](path)
