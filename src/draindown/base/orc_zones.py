"""Times of ORC files that Spark wrote: instants, of which the file has what the clocks of their
writer showed.

ORC's type `timestamp` is a wall clock. Spark writes its instants as that type, by the clocks of its
JVM, and notes in the file that it wrote it. Each stripe's footer names the zone, and pyarrow
doesn't tell it: so footers are read here.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow

UTC = frozenset(("UTC", "Etc/UTC", "GMT", "Etc/GMT"))
"""Names of the zone in which what the clocks show is the instant."""
_SPARK = b"org.apache.spark.version"  # Spark's wall clocks are numbers in the file, so no time there is one
_NONE, _ZLIB, _SNAPPY, _, _LZ4, _ZSTD = range(6)
_BLOCK = 256 * 1024


def zones(path: str, schema: pyarrow.Schema) -> list[str]:
    """Return the zone of each stripe's writer, where times of the file are instants: Spark wrote
    it. Else nothing.

    `schema`: as pyarrow reads it. Raises ValueError if a footer is packed as LZO, which is not read
    here.
    """
    if _SPARK not in (schema.metadata or {}) or with_instants(schema) == schema:
        return []
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        tail = _read(file, max(size - 256, 0), min(size, 256))
        about = dict(_fields(tail[-1 - tail[-1] : -1]))
        codec, block = about.get(2, _NONE), about.get(3, _BLOCK)
        footer = _unpacked(_read(file, size - 1 - tail[-1] - about[1], about[1]), codec, block)
        stripes = [dict(_fields(stripe)) for number, stripe in _fields(footer) if number == 3]
        return [_zone(file, stripe, codec, block) for stripe in stripes]


def _zone(file: BinaryIO, stripe: dict[int, Any], codec: int, block: int) -> str:
    data = _read(file, stripe[1] + stripe.get(2, 0) + stripe.get(3, 0), stripe[4])
    return bytes(dict(_fields(_unpacked(data, codec, block))).get(3, b"UTC")).decode()


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _unpacked(data: bytes, codec: int, block: int) -> bytes:
    """Return a footer. Packed, it is chunks with a header of three bytes: the length, and whether
    it is plain.
    """
    if codec == _NONE:
        return data
    parts, at = [], 0
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        parts.append(chunk if head & 1 else _decompressed(chunk, codec, block))
        at += 3 + (head >> 1)
    return b"".join(parts)


def _decompressed(chunk: bytes, codec: int, block: int) -> bytes:
    import pyarrow

    if codec == _ZLIB:
        return zlib.decompress(chunk, -15)
    if codec == _ZSTD:
        return bytes(pyarrow.CompressedInputStream(pyarrow.BufferReader(chunk), "zstd").read())
    if codec == _SNAPPY:
        return bytes(pyarrow.decompress(chunk, _varint(chunk, 0)[0], "snappy").to_pybytes())
    if codec != _LZ4:
        raise ValueError(
            "Spark wrote its times, whose zone is in footers that are packed as LZO; deliver it as zstd"
        )

    def fits(size: int) -> bool:
        try:
            return bool(pyarrow.decompress(chunk, size, "lz4_raw"))
        except OSError:
            return False

    # LZ4 doesn't tell it, and fails for less
    size = bisect_left(range(block + 1), True, 1, key=fits)
    return bytes(pyarrow.decompress(chunk, size, "lz4_raw").to_pybytes())


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of a message of Protocol Buffers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: Any = None
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def with_instants(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Return a schema with each time as an instant, at any depth."""
    import pyarrow

    return pyarrow.schema([field.with_type(_kind(field.type)) for field in schema], schema.metadata)


def _kind(kind: pyarrow.DataType) -> pyarrow.DataType:
    import pyarrow.types

    if pyarrow.types.is_timestamp(kind):
        return pyarrow.timestamp(kind.unit, "UTC")
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct(
            [one.with_type(_kind(one.type)) for one in map(kind.field, range(kind.num_fields))]
        )
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(
            *(one.with_type(_kind(one.type)) for one in (kind.key_field, kind.item_field))
        )
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_kind(kind.value_type)))
    return kind


def as_instants(rows: pyarrow.RecordBatch, zone: str) -> pyarrow.RecordBatch:
    """Return a stripe with the types of `with_instants`. Raises ArrowInvalid at a time that its
    clocks show twice.
    """
    import pyarrow

    columns = [instants(column, zone) for column in rows.columns]
    return pyarrow.RecordBatch.from_arrays(columns, schema=with_instants(rows.schema))


def instants(values: pyarrow.Array, zone: str) -> pyarrow.Array:
    """Return the values of a column of a stripe, as `as_instants` does."""
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.types

    kind, wanted = values.type, _kind(values.type)
    if kind == wanted:
        return values
    if pyarrow.types.is_timestamp(kind):
        return pc.assume_timezone(values, zone).cast(wanted)
    if pyarrow.types.is_struct(kind):
        parts = [instants(values.field(at), zone) for at in range(kind.num_fields)]
        return pyarrow.StructArray.from_arrays(parts, fields=list(wanted), mask=values.is_null())
    starts = values.offsets
    if pyarrow.types.is_map(kind):
        both = instants(values.keys, zone), instants(values.items, zone)
        return pyarrow.MapArray.from_arrays(starts, *both, type=wanted, mask=values.is_null())
    return pyarrow.ListArray.from_arrays(
        starts, instants(values.values, zone), type=wanted, mask=values.is_null()
    )
