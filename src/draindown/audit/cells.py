"""The cells of records that were accepted: each must be a value of its column's type, by the
audit's own grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from deltalake.exceptions import DeltaError

from draindown.audit.raw import cells_of
from draindown.audit.values import Check, Number, check_of, json_object, wrong
from draindown.audit.written import reader_of
from draindown.config.landing import FlowSpec
from draindown.lake.table import Table

_FLOATS = ("float", "double")
_BEFORE, _AFTER = -62_135_596_800, 253_402_300_800
"""Seconds since 1970 of the first moment of the year 1, and of the first after 9999."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6}
_TIMES = ("timestamp", "timestamp_ntz", "date")


def checked(flow: FlowSpec, table: Table) -> list[str]:
    """Return the columns whose cells are judged: those that every accepted record must have right.

    A record that deletes needs its keys and sequence only, and which records delete is decided by
    SQL. A column that was added to the table later was a field without a type to the records
    before.
    """
    names = list(flow.fields)
    try:
        first = {*Table(table.path, 0).column_types, *flow.target.essential}
    except (DeltaError, OSError):  # its log no longer begins with the first version
        first = set(flow.target.essential)
    if flow.target.apply_as_deletes or flow.deletes_by_null:
        first = set(flow.target.essential)
    return [name for name in names if name in first]


class CellReader:
    """Judges the cells of text records. `header`: names of CSV cells; `judged`: the columns to look
    at.
    """

    def __init__(self, flow: FlowSpec, header: Sequence[str], judged: Sequence[str]) -> None:
        self._flow, self._header = flow, header
        self._checks = {flow.fields[name]: _check(flow, name) for name in judged}
        self._cells = _CELLS.get(flow.source.format)

    def wrong(self, raw: bytes) -> Iterator[str]:
        """Yield a sentence for each cell of another type. Raises ValueError if the record can't be
        read.
        """
        if self._cells is not None and self._checks:
            yield from wrong(self._checks, self._cells(self, raw))

    def _json(self, raw: bytes) -> Mapping[str, Any]:
        return json_object(raw)

    def _csv(self, raw: bytes) -> Mapping[str, Any]:
        return dict(zip(self._header, cells_of(raw, self._flow.source), strict=False))


def _check(flow: FlowSpec, name: str) -> Check:
    """Return the check of a column's text, after its own form if it has one."""
    check, form = check_of(flow.columns[name], flow.source.timezone), reader_of(flow, name)
    if form is None:
        return check
    return lambda text: check(
        form(text) if isinstance(text, str) and not isinstance(text, Number) else text
    )


_CELLS: Mapping[str, Callable[[CellReader, bytes], Mapping[str, Any]]] = {
    "json": CellReader._json,
    "csv": CellReader._csv,
}


def unlike(kind: str, values: pa.Array | pa.ChunkedArray) -> Iterator[str]:
    """Yield what values of a columnar file hold that no value of a type is: infinity, NaN, years
    beyond 1 to 9999.
    """
    is_nested = "<" in kind
    for leaf in _leaves(kind, values):
        found = pc.drop_null(leaf)
        if kinds.is_floating(leaf.type) and (is_nested or kind in _FLOATS):
            odd = pc.sum(pc.invert(pc.is_finite(found))).as_py()
            if odd:
                yield f"holds {odd} infinite numbers or NaN, which are no {kind}"
        if (
            kinds.is_timestamp(leaf.type)
            and leaf.type.unit in _UNITS
            and (is_nested or kind in _TIMES)
        ):
            at, unit = found.cast(pa.int64()), _UNITS[leaf.type.unit]
            odd = pc.sum(
                pc.or_(pc.less(at, _BEFORE * unit), pc.greater_equal(at, _AFTER * unit))
            ).as_py()
            if odd:
                yield f"holds {odd} times before the year 1 or after 9999, which are no {kind}"


def _leaves(named: str, values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the scalars within values, without fields that the type `named` does not name."""
    for part in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        kind = part.type
        if kinds.is_struct(kind):
            own = [kind.field(at).name for at in range(kind.num_fields)]
            for name, field in zip(own, part.flatten(), strict=True):
                if name in named:
                    yield from _leaves(named, field)
        elif kinds.is_map(kind):
            yield from _leaves(named, part.keys)
            yield from _leaves(named, part.items)
        elif kinds.is_list(kind) or kinds.is_large_list(kind):
            yield from _leaves(named, part.flatten())
        else:
            yield part
