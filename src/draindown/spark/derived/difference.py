"""Compare recomputed rows with the table's rows, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType

from draindown.spark.sql import quoted
from draindown.spec.derived import TOLERANCE

FATE = "_fate"
INSERT, UPDATE, DELETE, UNCHANGED = "insert", "update", "delete", "unchanged"
ACTS = (INSERT, UPDATE, DELETE)
_OLD = "_old"


def compare(fresh: DataFrame, held: DataFrame | None, keys: Sequence[str]) -> DataFrame:
    """Return one row per key, with the columns of `fresh` and FATE. NULL equals NULL in keys and values.

    A row to delete has its keys, and NULL elsewhere. `held`: the table's rows of the same keys, with the columns of
    `fresh` and possibly more, of which those that `fresh` lacks are not compared; None if there are none.
    """
    if held is None:
        return fresh.withColumn(FATE, F.lit(INSERT))
    old = held.select(F.struct(*map(quoted, fresh.columns)).alias(_OLD))
    new = fresh.select(F.struct(*map(quoted, fresh.columns)).alias("_new"))
    same = [_field("_new", key).eqNullSafe(_field(_OLD, key)) for key in keys]
    paired = new.join(old, reduce(Column.__and__, same), "full_outer")
    differs = [_differs(name, fresh.schema[name].dataType) for name in fresh.columns if name not in keys]
    changed = reduce(Column.__or__, differs, F.lit(False))
    fate = (
        F.when(F.col(_OLD).isNull(), INSERT)
        .when(F.col("_new").isNull(), DELETE)
        .otherwise(F.when(changed, UPDATE).otherwise(UNCHANGED))
    )
    kept = [F.coalesce(_field("_new", key), _field(_OLD, key)).alias(key) for key in keys]
    rest = [_field("_new", name).alias(name) for name in fresh.columns if name not in keys]
    return paired.select(*kept, *rest, fate.alias(FATE)).select(*map(quoted, fresh.columns), FATE)


def count(fated: DataFrame, keys: Sequence[str]) -> Mapping[str, int]:
    """Return the number of rows per fate, and as `_twice` the number of keys that have more than one row."""
    by_key = fated.groupBy(*map(quoted, keys)).agg(F.min(FATE).alias(FATE), F.count("*").alias("rows"))
    rows = by_key.groupBy(FATE).agg(F.count("*").alias("keys"), F.count_if(F.col("rows") > 1).alias("twice")).collect()
    return {row[FATE]: row["keys"] for row in rows} | {"_twice": sum(row["twice"] for row in rows)}


def _field(side: str, name: str) -> Column:
    return F.col(f"{side}.{quoted(name)}")


def _differs(name: str, kind: DataType) -> Column:
    old, new = _field(_OLD, name), _field("_new", name)
    if not isinstance(kind, DoubleType | FloatType):
        return ~old.eqNullSafe(new)
    # NaN is greater than any number and equals itself, so the distance to NaN or infinity is within any share of it
    finite = (F.abs(old) < F.lit(float("inf"))) & (F.abs(new) < F.lit(float("inf")))
    near = finite & (F.abs(old - new) <= TOLERANCE * F.greatest(F.abs(old), F.abs(new)))
    return ~(old.eqNullSafe(new) | F.coalesce(near, F.lit(False)))
