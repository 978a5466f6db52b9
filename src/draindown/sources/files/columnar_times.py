"""Times in the schemas of columnar files: which of Parquet's are instants, and what of an ORC file
is no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow


def with_instants(schema: pyarrow.Schema, physical: Iterable[str]) -> pyarrow.Schema:
    """Return a schema with INT96 as an instant, at any depth: so Spark takes it, while pyarrow
    gives it no zone.

    `physical`: Parquet's types of the leaves, in the order in which the file has them.
    """
    import pyarrow

    leaves = iter(physical)
    return pyarrow.schema([_with_instants(field, leaves) for field in schema])


def _with_instants(field: pyarrow.Field, leaves: Iterator[str]) -> pyarrow.Field:
    import pyarrow

    inner = _within(field.type)
    if not inner:
        return field.with_type(pyarrow.timestamp("us", "UTC")) if next(leaves) == "INT96" else field
    found = [_with_instants(one, leaves) for one in inner]
    return field if found == inner else field.with_type(_of(field.type, found))


def _of(kind: pyarrow.DataType, inner: list[pyarrow.Field]) -> pyarrow.DataType:
    """Return a nested type with other types within."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        return pyarrow.struct(inner)
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(*_within(inner[0].type))
    if pyarrow.types.is_large_list(kind):
        return pyarrow.large_list(inner[0])
    return pyarrow.list_(inner[0], kind.list_size if pyarrow.types.is_fixed_size_list(kind) else -1)


def timeless(fields: Iterable[pyarrow.Field]) -> list[str]:
    """Return the names by which all is selected from an ORC file that is no time, nor within a map
    or list of times.
    """
    return [name for field in fields for name in _timeless(field, field.name)]


def _timeless(field: pyarrow.Field, path: str) -> Iterator[str]:
    import pyarrow

    kind = field.type
    if not times([field]):
        yield path
    elif pyarrow.types.is_struct(kind):
        for one in _within(kind):
            yield from _timeless(one, f"{path}.{one.name}")
    elif pyarrow.types.is_list(kind):  # a list has no name of its own for its items
        yield from _timeless(kind.value_field, path) if _within(kind.value_type) else ()


def times(fields: Iterable[pyarrow.Field]) -> int:
    """Return the number of leaves that are times."""
    import pyarrow

    return sum(times(_within(one.type)) + pyarrow.types.is_timestamp(one.type) for one in fields)


def _within(kind: pyarrow.DataType) -> list[pyarrow.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]
