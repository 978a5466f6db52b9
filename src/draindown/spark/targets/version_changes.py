"""What differs between two versions of a table, as rows that a sink gets, in portions of about
equal size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from draindown.sinks.port import FATE
from draindown.spark.contract import json_rows
from draindown.spark.sql import quoted
from draindown.spark.targets.shares import PORTION

_IS, _WAS = "__draindown_is", "__draindown_was"


class HashedRows:
    """Rows in portions by the hash of their keys, the same ones at each attempt; none where there
    are no rows.
    """

    def __init__(self, rows: DataFrame, keys: Sequence[str]) -> None:
        self._rows, self._keys = rows, [quoted(key) for key in keys]
        self.portions = -(-rows.count() // PORTION)

    def portion(self, number: int) -> DataFrame:
        """Return the rows of a portion, from 0."""
        return self._rows.where(F.pmod(F.xxhash64(*self._keys), F.lit(self.portions)) == number)


def changed(
    base: DataFrame, table: DataFrame, keys: Sequence[str], sent: Sequence[str]
) -> DataFrame:
    """Return what a sink with the rows of `base` lacks to have those of `table`: columns of
    `table`, and FATE.

    A key that only `base` has is a delete, with NULL in all other columns. A row with another value
    of a `sent` column, or with a key that `base` lacks, is an upsert. Values of a column that has
    another type now are taken as others.
    """
    values = [name for name in sent if name not in keys]
    before = {
        name: _value(base, name) for name in values if _type(base, name) == _type(table, name)
    }
    old = base.select(
        *[
            _key(base, key, table.schema[key].dataType).alias(_old(at))
            for at, key in enumerate(keys)
        ],
        *[value.alias(_old(len(keys) + at)) for at, value in enumerate(before.values())],
        F.lit(True).alias(_WAS),
    )
    same_key = [F.col(quoted(key)).eqNullSafe(F.col(_old(at))) for at, key in enumerate(keys)]
    both = table.withColumn(_IS, F.lit(True)).join(
        old, reduce(Column.__and__, same_key), "full_outer"
    )
    same = [
        _value(table, name).eqNullSafe(F.col(_old(len(keys) + at)))
        for at, name in enumerate(before)
    ]
    is_same = reduce(Column.__and__, same, F.lit(len(before) == len(values)))
    gone, new = F.col(_IS).isNull(), F.col(_WAS).isNull()
    fate = F.when(gone, "delete").when(new | ~is_same, "upsert")
    own = {key: F.coalesce(F.col(quoted(key)), F.col(_old(at))) for at, key in enumerate(keys)}
    found = both.withColumn(FATE, fate).where(F.col(FATE).isNotNull())
    return found.select(
        *[own.get(name, F.col(quoted(name))).alias(name) for name in table.columns], FATE
    )


def deleted(bases: Sequence[DataFrame], table: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the keys of any of the `bases` that `table` lacks as deletes, as `changed` does."""
    every = [changed(base, table, keys, ()).where(F.col(FATE) == "delete") for base in bases]
    return reduce(DataFrame.unionByName, every).dropDuplicates(list(keys))


def _key(rows: DataFrame, key: str, kind: DataType) -> Column:
    return F.col(quoted(key)) if _type(rows, key) == kind else F.col(quoted(key)).try_cast(kind)


def _value(rows: DataFrame, name: str) -> Column:
    value, kind = F.col(quoted(name)), _type(rows, name)
    if kind is not None and "map<" in kind.simpleString():  # Spark compares no maps
        return F.to_json(F.struct(value.alias("value")), dict(json_rows.TIMES))
    return value


def _type(rows: DataFrame, name: str) -> DataType | None:
    return next((field.dataType for field in rows.schema if field.name == name), None)


def _old(at: int) -> str:
    return f"__draindown_old_{at}"
