"""From images of changes to the rows that differ: functions of frames, without tables."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from draindown.spark.derived.difference import compare
from draindown.spark.derived.images import NET
from draindown.spark.derived.kind import Kind, key_names
from draindown.spark.derived.scope import Bucket, Scope


def touched(kind: Kind, netted: DataFrame, bucket: Bucket) -> DataFrame:
    """Return the keys of a bucket that changes concern, once each, with the columns `key_names`.

    `netted`: what `images.net` returned.
    """
    names = key_names(kind)
    keyed = kind.keyed(netted.where(F.col(NET) != 0)).select(*names)
    return keyed.where(bucket.has([F.col(name) for name in names])).distinct()


def difference(kind: Kind, source: DataFrame, scope: Scope, held: DataFrame | None) -> DataFrame:
    """Return the rows of the keys of `scope` with their fate: the query over `source` compared with the table.

    `source`: at least all source rows of these keys. `held`: at least all rows of the table of these keys; None if it
    has none.
    """
    fresh = kind.result(scope.within(kind.keyed(source), key_names(kind)))
    return compare(fresh, None if held is None else scope.within(held, kind.keys), kind.keys, kind.counted)
