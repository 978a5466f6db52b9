"""Pairs of rows of a left and a right table: the columns of their result, and what names its
rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.names import is_own
from draindown.config.pairing import ORIGIN_KEY, Pairing
from draindown.spark.sql import ORIGIN, quoted

_NOTHING: Mapping[str, Column] = MappingProxyType({})


def owned(spec: Pairing, side: int) -> Sequence[str]:
    """Return draindown's own columns of a side that the result depends on."""
    return (ORIGIN,) if spec.has_origin(side) else ()


def origin_text() -> Column:
    """Return what names a row of an append table, over its rows: `unit:position`."""
    return F.concat(
        F.col(f"{ORIGIN}.input"), F.lit(":"), F.col(f"{ORIGIN}.position").cast("string")
    )


def paired(
    spec: Pairing,
    left: DataFrame,
    right: DataFrame,
    keys: Sequence[str],
    condition: Column | None = None,
    made: Mapping[str, Column] = _NOTHING,
    beside: Sequence[str] = (),
) -> DataFrame:
    """Return the rows of the result: its keys, the other columns of the left table, the chosen ones
    of the right one.

    Rows are paired where the columns `keys` of both are equal, which NULL is not, and `condition`
    holds. `beside`: columns of one side that `condition` is about. `made`: columns of the result by
    name, over the left rows.
    """
    first, columns = _renamed(spec, 0, left, keys, beside)
    second, others = _renamed(spec, 1, right, keys, beside)
    same = [F.col(key) == F.col(f"_right{key}") for key in keys]
    second = second.select(
        *(F.col(name).alias(f"_right{name}" if name in keys else name) for name in second.columns)
    )
    on = reduce(Column.__and__, [*same, *([] if condition is None else [condition])])
    found = {**made, **columns, **others}
    ordered = [*spec.keys, *(name for name in found if name not in spec.keys)]
    joined = first.join(second, on, "left_outer" if spec.is_outer else "inner")
    return joined.select(*(found[name].alias(name) for name in ordered))


def _renamed(
    spec: Pairing, side: int, rows: DataFrame, keys: Sequence[str], beside: Sequence[str]
) -> tuple[DataFrame, dict[str, Column]]:
    """Return the rows of a side under names that the other side has not, and its columns of the
    result by name.
    """
    names = [name for name in rows.columns if not is_own(name)]
    wanted = spec.of_right(names) if side else spec.of_left(names)
    own = {name: F.col(quoted(column)) for name, column in wanted.items()}
    own |= {ORIGIN_KEY[side]: origin_text()} if spec.has_origin(side) else {}
    aliases = {name: f"_{side}_{at}" for at, name in enumerate(own)}
    kept = [name for name in rows.columns if name in (*keys, *beside)]
    renamed = rows.select(*kept, *(own[name].alias(alias) for name, alias in aliases.items()))
    return renamed, {name: F.col(alias) for name, alias in aliases.items()}
