"""The changes of a source table between two versions, as images: a row as it was, or as it is."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType, VariantType

from draindown.config.names import is_own
from draindown.spark.sql import quoted

SIGN, NET, IMAGES = "_sign", "_net", "_images"
"""Columns: +1 for a row that is, -1 for one that was; their sum, and their number, of equal
rows.
"""
_GONE = ("delete", "update_preimage")


def at(spark: SparkSession, path: str, version: int, own: Sequence[str] = ()) -> DataFrame:
    """Return the rows of a table at a version, of draindown's own columns only `own`."""
    found = spark.read.format("delta").option("versionAsOf", version).load(path)
    return found.select(*map(quoted, _names(found)), *own)


def between(
    spark: SparkSession, path: str, start: int, until: int, own: Sequence[str] = ()
) -> DataFrame:
    """Return the images of the changes after version `start` up to `until`, with SIGN.

    The columns are those of the table's newest version, with those of `own` that it has. The feed
    of an append table is its new files; that of a keyed table has the rows of each MERGE before and
    after it.
    """
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    changes = feed.option("startingVersion", start + 1).option("endingVersion", until).load(path)
    sign = F.when(F.col("_change_type").isin(*_GONE), -1).otherwise(1)
    known = [name for name in own if name in changes.columns]
    return changes.select(*map(quoted, _names(changes)), *known, sign.alias(SIGN))


def net(images: DataFrame, columns: Sequence[str], *, changes: bool) -> DataFrame:
    """Return the images by content of `columns`, with NET and IMAGES.

    Where NET is 0, as for an update of other columns, or for a row that came and went, the query
    sees no change. `changes`: whether there are images of rows as they were; rows that only came
    cancel nothing.
    """
    kept = images.select(*map(quoted, columns), SIGN)
    if not changes or not all(_groups(kept.schema[name].dataType) for name in columns):
        return kept.withColumns({NET: F.col(SIGN), IMAGES: F.lit(1).cast("bigint")}).drop(SIGN)
    return kept.groupBy(*map(quoted, columns)).agg(
        F.sum(SIGN).alias(NET), F.count("*").alias(IMAGES)
    )


def _names(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not is_own(name)]


def _groups(kind: DataType) -> bool:
    """Return whether Spark can group by a type: not by a variant, or by what contains one. It sorts
    maps by key.
    """
    if isinstance(kind, StructType):
        return all(_groups(field.dataType) for field in kind)
    inner = (getattr(kind, name, None) for name in ("elementType", "keyType", "valueType"))
    return not isinstance(kind, VariantType) and all(one is None or _groups(one) for one in inner)
