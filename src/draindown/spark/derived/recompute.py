"""From images of changes to the rows that differ: functions of frames, without tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.spark.derived.difference import compare
from draindown.spark.derived.images import NET
from draindown.spark.derived.kind import Kind, key_names
from draindown.spark.derived.scope import HIGH, LOW, WENT, Bucket, Part, Scope, micros
from draindown.spark.sql import quoted


def touched(
    kind: Kind, netted: Sequence[DataFrame], bucket: Bucket, sources: Sequence[DataFrame] = ()
) -> DataFrame:
    """Return the keys of a bucket that changes concern, once each, with the columns `key_names`.

    Of a kind with a time LOW and HIGH follow: the times of the earliest and the latest changed row
    of a key. Of a kind that absorbs, WENT follows. `netted`: what `images.net` returned for each
    source. `sources`: all rows of each; empty for kinds that need none.
    """
    names, pairs = key_names(kind), zip(kind.relations, netted, strict=True)
    more = [one.alias(LOW) for one in _times(kind)] or [(F.col(NET) < 0).alias(WENT)] * kind.absorbs
    found = [
        relation.touched(rows.where(F.col(NET) != 0), sources).select(*names, *more)
        for relation, rows in pairs
    ]
    keys = reduce(DataFrame.unionAll, found).where(bucket.has([F.col(name) for name in names]))
    if kind.absorbs:
        return keys.groupBy(*names).agg(F.max(WENT).alias(WENT))
    return (
        keys.groupBy(*names).agg(F.min(LOW).alias(LOW), F.max(LOW).alias(HIGH))
        if more
        else keys.distinct()
    )


def _times(kind: Kind) -> list[Column]:
    """Return the time of a touched row, by which less is read again; none of kinds whose rows have
    none.
    """
    span = [] if kind.span is None else [micros(kind.span.time)]
    return span if kind.asked is None else [F.col(quoted(kind.asked))]


def difference(
    kind: Kind, sources: Sequence[DataFrame], scope: Scope, held: DataFrame | None
) -> DataFrame:
    """Return the rows of the keys of `scope` with their fate: the query over `sources` compared
    with the table.

    `sources`: at least all rows of these keys, of each source. `held`: at least all rows of the
    table of these keys; None if it has none.
    """
    return compared(kind, result(kind, sources, scope), scope, held)


def compared(kind: Kind, fresh: DataFrame, scope: Scope, held: DataFrame | None) -> DataFrame:
    """Return the rows of the keys of `scope` with their fate. `fresh`: the query's; `held`: as in
    `difference`.
    """
    own = None if held is None else scope.within(held, kind.scope_keys)
    return compare(fresh, own, kind.row_keys, kind.counted, kind.computed)


def result(
    kind: Kind, sources: Sequence[DataFrame], scope: Scope, part: Column | None = None
) -> DataFrame:
    """Return the query over the rows of the keys of `scope`. `part`: a condition on `key_names`, or
    None for all.
    """
    return kind.result(*keyed(kind, sources, scope if part is None else Part(scope, part)))


def keyed(kind: Kind, sources: Sequence[DataFrame], scope: Scope) -> list[DataFrame]:
    """Return what the query needs of the rows of its sources, for the keys of `scope`."""
    return [one.within(rows, scope) for one, rows in zip(kind.relations, sources, strict=True)]
