"""Read Parquet and ORC files through, measure them, and refuse those that Spark can't read.

pyarrow reads more than Spark does. A schema that Spark refuses fails the whole batch, not a row, so
such a file must not enter a batch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from draindown.base import orc_zones
from draindown.sources.files.columnar_times import timeless, times, with_instants

if TYPE_CHECKING:
    import pyarrow


_ROWS, _CELLS = 8192, 4_000_000
_TIME = 8  # bytes
_WIDE = 500
"""If a file has more columns, Spark reads a copy in which one struct column holds them all.

Spark's planning time is quadratic in the number of columns: minutes for 10,000.
"""
_DIGITS = 38
"""The largest precision of Spark's decimal type, in digits."""


# names of Parquet's annotations, as pyarrow writes them in JSON
_REFUSED = frozenset(("Time", "Float16", "UUID", "Interval", "Variant", "Geometry", "Geography"))
_ENCODINGS = frozenset(
    (
        *("PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"),
        *("DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    )
)
"""The encodings of Parquet that Spark reads. It does not read BYTE_STREAM_SPLIT (SPARK-56894)."""


class Unsupported(Exception):
    """A valid file that Spark can't read, or not in bounded memory. `reason` is a stable name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass
class Measured:
    """The content of a file: number of rows, bytes of all values without encoding, and bytes of the
    longest value.
    """

    rows: int = 0
    bytes: int = 0
    longest: int = 0

    def add(self, rows: int, columns: Iterable[Any]) -> None:
        """Count a block of columns."""
        self.rows += rows
        for column in columns:
            size, longest = _measure(column)
            self.bytes += size
            self.longest = max(self.longest, longest)


class ColumnarFormat(Protocol):
    """A format whose files have a schema of their own, as pyarrow reads it. Formats are listed in
    COLUMNAR.
    """

    magic: bytes

    def schema(self, path: str) -> pyarrow.Schema:
        """The columns, with the types that Spark gives them as far as pyarrow has them."""

    def shape(self, path: str) -> str:
        """The schema as text: files of one shape are read by one plan."""

    def blocks(self, path: str) -> Iterator[Any]:
        """All rows, a bounded number of bytes at a time. They can be cast to the schema of any file
        of their shape.
        """

    def measured(self, path: str, limit: int) -> Iterator[Measured]:
        """Read the file through; what was found so far after each block.

        Raises Unsupported before the first block if Spark can't read a column, or if the footer
        tells of values longer than `limit` bytes; after the last if Spark lacks the codec; at a
        time that only Spark can read, if the file needs a copy.
        """

    def needs_copy(self, path: str) -> bool:
        """Whether Spark is too slow for the columns, or fails at a type or an encoding that pyarrow
        reads.
        """


class Parquet:
    """Parquet."""

    magic = b"PAR1"

    def schema(self, path: str) -> pyarrow.Schema:
        """The schema of the footer, with INT96 as instants."""
        import pyarrow.parquet  # 0.1 s that flows of text files don't pay

        with pyarrow.parquet.ParquetFile(
            path, pre_buffer=False, coerce_int96_timestamp_unit="us"
        ) as file:
            leaves = (file.schema.column(at).physical_type for at in range(len(file.schema)))
            return with_instants(file.schema_arrow, leaves)

    def shape(self, path: str) -> str:
        """Parquet's own schema, not what pyarrow makes of it, and the encodings that only pyarrow
        reads.
        """
        import pyarrow.parquet

        metadata = pyarrow.parquet.read_metadata(path)
        own = str(metadata.schema).partition("\n")[2]  # the first line holds an address
        return "\n".join([own, *_unread_encodings(metadata)])

    def blocks(self, path: str) -> Iterator[Any]:
        """A few thousand rows at a time."""
        yield from _row_batches(path)

    def measured(self, path: str, limit: int) -> Iterator[Measured]:
        """As the protocol says."""
        yield from _measured(_parquet(path, limit))

    def needs_copy(self, path: str) -> bool:
        """Whether there are many columns, or one in an encoding that Spark doesn't read, in any of
        its row groups.
        """
        import pyarrow.parquet

        return len(self.schema(path)) > _WIDE or bool(
            _unread_encodings(pyarrow.parquet.read_metadata(path))
        )


class Orc:
    """ORC."""

    magic = b"ORC"

    def schema(self, path: str) -> pyarrow.Schema:
        """The schema of the footer, with times that Spark wrote as instants."""
        own = self._own(path)
        return orc_zones.with_instants(own) if self._zones(path, own) else own

    def _own(self, path: str) -> pyarrow.Schema:
        import pyarrow.orc

        return pyarrow.orc.ORCFile(Path(path)).schema

    def _zones(self, path: str, own: pyarrow.Schema) -> list[str]:
        try:
            return orc_zones.zones(path, own)
        except ValueError as error:
            raise Unsupported("unsupported-compression", str(error)) from None

    def shape(self, path: str) -> str:
        """The schema as text, and the zones by which Spark wrote instants."""
        own = self._own(path)
        return "\n".join([str(own), *sorted(set(self._zones(path, own)))])

    def blocks(self, path: str) -> Iterator[Any]:
        """A stripe at a time."""
        import pyarrow.orc

        stripes = pyarrow.orc.ORCFile(path)
        zones = self._zones(path, stripes.schema)
        for stripe in range(stripes.nstripes):
            rows = stripes.read_stripe(stripe)
            yield orc_zones.as_instants(rows, zones[stripe]) if zones else rows

    def measured(self, path: str, limit: int) -> Iterator[Measured]:  # noqa: ARG002
        """As the protocol says; the footer tells nothing of lengths. Times that pyarrow can't read
        are one a row.
        """
        schema, found = self.schema(path), Measured()
        refuse(schema)
        for rows in self._readable(path):
            found.add(rows.num_rows, rows.columns)
            found.bytes += (times(schema) - times(rows.schema)) * rows.num_rows * _TIME
            yield found

    def _readable(self, path: str) -> Iterator[Any]:
        """All stripes; without its times one of which a time can't be read, as none is that
        nanoseconds can't hold.
        """
        import pyarrow.orc

        file = pyarrow.orc.ORCFile(path)
        zones = self._zones(path, file.schema)
        for stripe in range(file.nstripes):
            try:
                rows = file.read_stripe(stripe)
                rows = orc_zones.as_instants(rows, zones[stripe]) if zones else rows
            except pyarrow.ArrowInvalid as error:
                rows = file.read_stripe(stripe, columns=timeless(file.schema))
                if all(times([field]) for field in file.schema) or self.needs_copy(path):
                    raise Unsupported("unsupported-time", f"{error}; {_IN_RANGE}") from error
            yield rows

    def needs_copy(self, path: str) -> bool:
        """Whether there are many columns, or times with local time zone, or instants of Spark
        elsewhere than in UTC.
        """
        import pyarrow.types

        own = self._own(path)
        zoned = any(pyarrow.types.is_timestamp(kind) and kind.tz for kind in _types(own))
        return len(own) > _WIDE or zoned or not orc_zones.UTC.issuperset(self._zones(path, own))


_IN_RANGE = f"where times have a zone, or a file more than {_WIDE} columns or times in each, they are of 1677 to 2262"
_IN_RANGE += ", and of Spark's none that its clocks show twice"
COLUMNAR: Mapping[str, ColumnarFormat] = {"parquet": Parquet(), "orc": Orc()}


def digest(shape: str) -> str:
    """Return a short name of a shape."""
    return hashlib.sha256(shape.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _measured(blocks: Iterable[Any]) -> Iterator[Measured]:
    found = Measured()
    for block in blocks:
        found.add(block.num_rows, block.columns)
        yield found


def _types(fields: Iterable[pyarrow.Field]) -> Iterator[pyarrow.DataType]:
    for field in fields:
        yield field.type
        yield from _types([field.type.field(i) for i in range(field.type.num_fields)])


def _row_batches(path: str, shared: Sequence[str] = ()) -> Iterator[Any]:
    """All rows, a few thousand at a time; `shared` columns come as dictionaries."""
    import pyarrow.parquet

    # INT96 in nanoseconds, the default, wraps round outside of 1677 to 2262
    options = {
        "pre_buffer": False,
        "read_dictionary": list(shared),
        "coerce_int96_timestamp_unit": "us",
    }
    with pyarrow.parquet.ParquetFile(path, **options) as file:
        rows = max(_CELLS // max(len(file.schema), 1), 1)
        yield from file.iter_batches(batch_size=min(rows, _ROWS), use_threads=False)


def _parquet(path: str, limit: int) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        # the Parquet types: pyarrow's may follow the ARROW:schema metadata of the writer, which
        # Spark ignores
        for at in range(len(file.schema)):
            _refuse_leaf(file.schema.column(at))
        refuse(file.schema_arrow)
        shared = _shared_values(file.metadata, file.schema_arrow)
        _refuse_long(file.metadata, limit)
        metadata = file.metadata
    yield from _row_batches(path, shared)
    _refuse_codec(metadata)


def _chunks(metadata: Any) -> list[Any]:
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    return [group.column(at) for group in groups for at in range(group.num_columns)]


def _unread_encodings(metadata: Any) -> list[str]:
    return sorted({name for chunk in _chunks(metadata) for name in chunk.encodings} - _ENCODINGS)


def _refuse_long(metadata: Any, limit: int) -> None:
    """Refuse long values by the footer: reading them to find out would take a multiple of their
    size.
    """
    for chunk in _chunks(metadata):
        if chunk.total_uncompressed_size > limit * max(chunk.num_values, 1):
            mean = chunk.total_uncompressed_size // max(chunk.num_values, 1)
            raise Unsupported(
                "record-too-long",
                f"column {chunk.path_in_schema} holds values of {mean} bytes on average",
            )


def _refuse_codec(metadata: Any) -> None:
    """Refuse a codec that Spark lacks. Called after the read: asked for an unknown codec, pyarrow
    ends the process.
    """
    for chunk in _chunks(metadata):
        if chunk.compression == "BROTLI":
            detail = f"column {chunk.path_in_schema} is packed as Brotli; deliver it as zstd, snappy or gzip"
            raise Unsupported("unsupported-compression", detail)


def _shared_values(metadata: Any, schema: pyarrow.Schema) -> list[str]:
    """Return the dictionary-encoded columns. Read as dictionaries, a long value of many rows is
    held once.
    """
    import pyarrow.types

    texts = (pyarrow.types.is_string, pyarrow.types.is_binary)
    names = {field.name for field in schema if any(test(field.type) for test in texts)}
    return sorted(
        {chunk.path_in_schema for chunk in _chunks(metadata) if chunk.has_dictionary_page} & names
    )


def _measure(column: Any) -> tuple[int, int]:
    """Return the bytes of all values without encoding, and of the longest value."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = column.type
    texts = (kinds.is_string, kinds.is_binary, kinds.is_large_string, kinds.is_large_binary)
    if kinds.is_dictionary(kind) and any(test(kind.value_type) for test in texts):
        lengths = pc.binary_length(column.dictionary)
        return pc.sum(lengths.take(column.indices)).as_py() or 0, pc.max(lengths).as_py() or 0
    if any(test(kind) for test in texts):
        lengths = pc.binary_length(column)
        return pc.sum(lengths).as_py() or 0, pc.max(lengths).as_py() or 0
    if kinds.is_struct(kind):
        parts = [_measure(part) for part in column.flatten()]
    elif kinds.is_map(kind):
        parts = [_measure(column.keys), _measure(column.items)]
    elif kinds.is_list(kind) or kinds.is_large_list(kind):
        parts = [_measure(column.flatten())]
    else:
        return column.nbytes, 0
    return sum(size for size, _ in parts), max((longest for _, longest in parts), default=0)


def refuse(schema: pyarrow.Schema) -> None:
    """Raise Unsupported if columns or fields of a struct share a name, compared without case, or
    one is a union.
    """
    _refuse_fields("", list(schema))


def _refuse_leaf(column: Any) -> None:
    kind = json.loads(column.logical_type.to_json())
    name = str(kind.get("Type", ""))
    too_long = name == "Decimal" and int(kind.get("precision", 0)) > _DIGITS
    if name in _REFUSED or too_long or column.converted_type == "INTERVAL":
        text = f"{name}({kind['precision']})" if too_long else str(column.logical_type)
        raise _unsupported(column.path, text)


def _refuse_fields(parent: str, fields: Iterable[pyarrow.Field]) -> None:
    import pyarrow.types

    seen: dict[str, str] = {}
    for field in fields:
        path, folded = f"{parent}{field.name}", field.name.lower()
        if folded in seen:
            raise Unsupported(
                "duplicate-column", f"{seen[folded]} and {path} are one column to Spark; rename one"
            )
        seen[folded] = path
        if pyarrow.types.is_union(field.type):
            raise _unsupported(path, "union")
        _refuse_fields(f"{path}.", (field.type.field(at) for at in range(field.type.num_fields)))


def _unsupported(path: str, kind: str) -> Unsupported:
    return Unsupported(
        "unsupported-type", f"column {path} is of type {kind}, which Spark can't read"
    )
