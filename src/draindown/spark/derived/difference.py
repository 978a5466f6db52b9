"""Compare recomputed rows with the table's rows, key by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from draindown.config.derived import TOLERANCE
from draindown.config.names import is_own
from draindown.spark.sql import quoted
from draindown.spark.targets.partition_values import reasons

FATE = "_fate"
BEFORE = "_before"
"""Column: the value that the table has in the column by which rows are counted."""
INSERT, UPDATE, DELETE, UNCHANGED = "insert", "update", "delete", "unchanged"
ACTS = (INSERT, UPDATE, DELETE)
_OLD = "_old"


def compare(
    fresh: DataFrame,
    held: DataFrame | None,
    keys: Sequence[str],
    counted: str | None = None,
    computed: Collection[str] | None = (),
    scales: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return one row per key, with the columns of `fresh`, BEFORE and FATE. NULL equals NULL in
    keys and values.

    A row to delete has its keys, and NULL elsewhere. `held`: the table's rows of the same keys,
    with the columns of `fresh` and possibly more; None if there are none. A column that only an
    earlier query gave is NULL, or differs. `counted`: the column of `fresh` that counts rows of the
    source. `computed`: its columns in which doubles are equal within TOLERANCE; None for all.
    `scales`: the columns of `fresh` with the size of what such a column adds up, which are not
    compared: it may differ by a share of that, too.
    """
    names = [name for name in fresh.columns if name not in scales.values()]
    if held is None:
        return fresh.withColumns({BEFORE: F.lit(None).cast("bigint"), FATE: F.lit(INSERT)})
    left = [name for name in held.columns if name not in names and not is_own(name)]
    old = held.select(F.struct(*map(quoted, (*names, *left))).alias(_OLD))
    new = fresh.select(F.struct(*map(quoted, fresh.columns)).alias("_new"))
    same = [_field("_new", key).eqNullSafe(_field(_OLD, key)) for key in keys]
    paired = new.join(old, reduce(Column.__and__, same), "full_outer")
    near = [
        name for name in names if _is_float(fresh, name) and (computed is None or name in computed)
    ]
    differs = [
        _differs(name, near=name in near, scale=scales.get(name))
        for name in names
        if name not in keys
    ]
    changed = reduce(
        Column.__or__, [*differs, *(_field(_OLD, name).isNotNull() for name in left)], F.lit(False)
    )
    fate = (
        F.when(F.col(_OLD).isNull(), INSERT)
        .when(F.col("_new").isNull(), DELETE)
        .otherwise(F.when(changed, UPDATE).otherwise(UNCHANGED))
    )
    kept = [F.coalesce(_field("_new", key), _field(_OLD, key)).alias(key) for key in keys]
    rest = [_field("_new", name).alias(name) for name in names if name not in keys]
    before = (F.lit(None).cast("bigint") if counted is None else _field(_OLD, counted)).alias(
        BEFORE
    )
    return paired.select(*kept, *rest, before, fate.alias(FATE)).select(
        *map(quoted, names), BEFORE, FATE
    )


@dataclass(frozen=True)
class Counts:
    """What a comparison found.

    Attributes:
        keys: number of keys by fate.
        twice: number of keys with more than one row.
        now, before: rows of the source that the fresh rows count, and that the table's rows count.
        blank: number of keys with a text in a partition column that no partition keeps, by column
            and reason.
        scopes: number of scopes that the keys are in.
        missed: number of fresh rows that found no row in the table that they look up.
    """

    keys: Mapping[str, int]
    twice: int
    now: int
    before: int
    blank: Mapping[str, int] = field(default_factory=dict)
    scopes: int = 0
    missed: int = 0


def count(
    fated: DataFrame,
    keys: Sequence[str],
    counted: str | None = None,
    texts: Sequence[str] = (),
    scope_keys: Sequence[str] = (),
    found: str | None = None,
) -> Counts:
    """Count what `compare` returned. `counted`: as there.

    `texts`: partition columns of type string. `scope_keys`: those of `keys` that name a scope;
    empty for all. `found`: the column of `fresh` that says whether a row was found that it looks
    up.
    """
    why = {
        f"{name} has {what}": wrong
        for name in texts
        for what, wrong in reasons(name, F.col(quoted(name))).items()
    }
    blank = {f"blank{at}": F.count_if(wrong) for at, wrong in enumerate(why.values())}
    fresh = F.lit(0) if counted is None else F.sum(quoted(counted))
    missed = F.lit(0) if found is None else F.count_if(~F.col(quoted(found)))
    sums = {"rows": F.count("*"), "fresh": fresh, "old": F.sum(BEFORE), "missed": missed}
    by_key = fated.groupBy(*map(quoted, keys)).agg(
        F.min(FATE).alias(FATE), *(one.alias(f"_{name}") for name, one in sums.items())
    )
    numbers = {fate: F.count_if(F.col(FATE) == fate) for fate in (*ACTS, UNCHANGED)}
    numbers |= {"twice": F.count_if(F.col("_rows") > 1), "scopes": F.count("*"), **blank}
    numbers |= {
        name: F.coalesce(F.sum(f"_{name}"), F.lit(0)) for name in ("fresh", "old", "missed")
    }
    # first by scope, in the same pass; a scope's column may be named `old`
    if list(scope_keys or keys) != list(keys):
        by_key = by_key.groupBy(*map(quoted, scope_keys)).agg(
            *(one.alias(f"_{name}") for name, one in numbers.items())
        )
        numbers = {name: F.coalesce(F.sum(f"_{name}"), F.lit(0)) for name in numbers} | {
            "scopes": F.count("*")
        }
    row = by_key.agg(*(one.alias(name) for name, one in numbers.items())).first()
    assert row is not None  # an aggregate without groups has one row
    by_fate = {fate: row[fate] for fate in (*ACTS, UNCHANGED) if row[fate]}
    blanks = {what: row[name] for what, name in zip(why, blank, strict=True) if row[name]}
    return Counts(
        by_fate, row["twice"], row["fresh"], row["old"], blanks, row["scopes"], row["missed"]
    )


def _field(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")


def _is_float(frame: DataFrame, name: str) -> bool:
    return isinstance(frame.schema[name].dataType, DoubleType | FloatType)


def _differs(name: str, *, near: bool, scale: str | None) -> Column:
    old, new = _field(_OLD, name), _field("_new", name)
    if not near:
        return ~old.eqNullSafe(new)
    # NaN is greater than any number and equals itself, so the distance to NaN or infinity is within
    # any share of it
    finite = (F.abs(old) < F.lit(float("inf"))) & (F.abs(new) < F.lit(float("inf")))
    sizes = [F.abs(old), F.abs(new), *([] if scale is None else [_field("_new", scale)])]
    within = finite & (F.abs(old - new) <= TOLERANCE * F.greatest(*sizes))
    return ~(old.eqNullSafe(new) | F.coalesce(within, F.lit(False)))
