"""The queries of `deduplicate` and `top` in DuckDB's SQL, where its order of values is certain to
be Spark's.

tests/spark/test_derived_histories.py and tests/tables/test_proof_kinds.py have the same order in
both engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draindown.config.names import is_own
from draindown.config.ranking import Deduplicate, Order, Top, total_order
from draindown.lake.table import identifier
from draindown.proof.source_rows import SourceRows

_ORDERED = (
    "byte",
    "short",
    "integer",
    "long",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "boolean",
)
_FLOATS = ("float", "double")


def query(part: Deduplicate | Top, types: Mapping[str, str]) -> str | None:
    """Return the whole query over the table `source`; None if a column has a type whose order may
    not be Spark's.

    `types`: Delta's types by column of the source.
    """
    columns = [name for name in types if not is_own(name)]
    if not all(is_certain(str(types[name])) for name in columns):
        return None
    if isinstance(part, Deduplicate):
        order = total_order(part, columns, descending=part.keep == "last")
        return f"select {listed(columns)} from source qualify {_over('row_number', part.keys, order)} = 1"
    position = (
        f"{_over('row_number', part.group_by, total_order(part, columns))} as {part.POSITION}"
    )
    rank, last = "", part.POSITION
    if part.with_ties:
        rank, last = f", {_over('rank', part.group_by, part.order)} as {part.RANK}", part.RANK
    return f"select {listed(columns)}, {position}{rank} from source qualify {last} <= {part.rows}"


def behind(part: Deduplicate | Top, types: Mapping[str, str]) -> SourceRows:
    """Return the rows of a key or group in their order, in which the result has one row of each
    position.
    """
    columns = [name for name in types if not is_own(name)]
    keeps_last = isinstance(part, Deduplicate) and part.keep == "last"
    order = _ordered(total_order(part, columns, descending=keeps_last), "_s.")
    position = f"_r.{identifier(part.POSITION)}" if isinstance(part, Top) else "1"
    keys = {name: name for name in part.scope_keys}
    return SourceRows(
        keys,
        order=order,
        counts=f"nth = {position}",
        otherwise="another row has this place in the order",
    )


def _over(function: str, by: Sequence[str], order: Iterable[Order]) -> str:
    return f"{function}() over (partition by {listed(by)} order by {_ordered(order)})"


def _ordered(order: Iterable[Order], row: str = "") -> str:
    return ", ".join(
        f"{row}{identifier(name)} {'desc' if down else 'asc'} nulls last" for name, down in order
    )


def listed(names: Iterable[str]) -> str:
    """Return names as a list of quoted identifiers."""
    return ", ".join(map(identifier, names))


def is_certain(kind: str) -> bool:
    """Return whether the order of values of one of Delta's types is certain to be Spark's."""
    return kind.startswith("decimal") or kind in (*_ORDERED, *_FLOATS)
