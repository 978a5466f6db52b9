"""Parquet and ORC files read through, once it is clear that Spark reads their columns too.

pyarrow reads more than Spark does, and at a schema that Spark refuses the whole batch fails, not a row: such a file
must not get into one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

_DIGITS = 38
"""Digits of the longest decimal that Spark has."""
# names of Parquet's annotations, as pyarrow writes them in JSON
_REFUSED = frozenset(("Time", "Float16", "UUID", "Interval", "Variant", "Geometry", "Geography"))


class Unsupported(Exception):
    """A readable file with a column that Spark refuses. `reason` is a stable name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def parquet_batches(path: str) -> Iterator[Any]:
    """All rows, a few thousand at a time. Raises Unsupported before the first."""
    import pyarrow.parquet  # 0.1 s that flows of text files don't pay

    with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
        # the file's own types: what pyarrow makes of them may follow a note of who wrote it, which Spark doesn't read
        for at in range(len(file.schema)):
            _refuse_leaf(file.schema.column(at))
        refuse(file.schema_arrow)
        yield from file.iter_batches(batch_size=8192, use_threads=False)


def orc_batches(path: str) -> Iterator[Any]:
    """All rows, a stripe at a time. Raises Unsupported before the first."""
    import pyarrow.orc

    file = pyarrow.orc.ORCFile(path)
    refuse(file.schema)
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe)


def refuse(schema: pyarrow.Schema) -> None:
    """Raise Unsupported if columns, or fields of a struct, share a name (case doesn't count), or one is a union."""
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
            raise Unsupported("duplicate-column", f"{seen[folded]} and {path} are one column to Spark; rename one")
        seen[folded] = path
        if pyarrow.types.is_union(field.type):
            raise _unsupported(path, "union")
        _refuse_fields(f"{path}.", (field.type.field(at) for at in range(field.type.num_fields)))


def _unsupported(path: str, kind: str) -> Unsupported:
    return Unsupported("unsupported-type", f"column {path} is of type {kind}, which Spark can't read")
