"""Resolve the accepted rows of a keyed batch: deduplicate by key, then compare with target,
tombstones, withdrawn rows.

Changes of one key are ordered by sequence. At equal sequence a delete wins over other changes;
otherwise the greater content wins. Content is compared column by column, in the order of `order`,
with NULL smallest. The result does not depend on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, AtomicType, BinaryType, DataType, MapType, StructType

from draindown.spark.contract.json_rows import TIMES
from draindown.spark.sql import ARRIVED_AT, STAMPS, quoted

FATE = "_fate"
"""Column with the outcome of a row: insert, update, delete, superseded, duplicate, or remember.

`remember` is a delete of a key that the target does not contain: it only writes a tombstone.
"""
ACTS = ("insert", "update", "delete")
DELETES = ("delete", "remember")
LOSERS = ("_duplicates", "_superseded")
"""Columns with the number of other rows of the key in the batch: duplicates of the winner, and rows
it superseded.
"""
_TIE = "tie"


def order(columns: Sequence[str], added: Collection[str]) -> list[str]:
    """Return the order in which content columns are compared: all but STAMPS.

    `columns` come in table order, then `added` columns by name, then `_rescued_data`. The order does not
    depend on which `added` column was created first. A row that is read again after one of its
    fields became a column compares greater than before.
    """
    own = [name for name in columns if name not in {*added, *STAMPS, "_rescued_data"}]
    return [*own, *sorted(added, key=str.lower), "_rescued_data"]


def newest(
    rows: DataFrame, keys: Sequence[str], sequence: Sequence[str], order: Sequence[str]
) -> DataFrame:
    """Deduplicate: return the newest row per key, with the columns of `rows` plus LOSERS.

    A delete keeps only keys and sequence; its other columns are NULL. Of equal rows, the earliest
    `_arrived_at` stays. `rows` needs `_delete`, `_arrived_at`, and keys and sequence that are not
    NULL. `order` is what the function `order` returned.

    One sort per key is enough, because the last row of a key has both counts: its `row_number` is
    the number of rows of the key, and its `rank` minus one is the number of rows that sort before
    the first equal row.
    """
    content = [name for name in order if name in rows.columns and name not in {*keys, *sequence}]
    bare = rows.withColumns(
        {name: F.when(~F.col("_delete"), F.col(quoted(name))) for name in content}
    )
    compared = [comparable(bare.schema[name].dataType, F.col(quoted(name))) for name in content]
    ascending = Window.partitionBy(*_columns(keys)).orderBy(
        *_columns(sequence), "_delete", *compared
    )
    # rows with the same order, in the frame of the same sort: a second window would sort or buffer
    # the rows again
    equal = ascending.rangeBetween(Window.currentRow, Window.currentRow)
    ranked = bare.withColumns(
        {
            "_rows": F.row_number().over(ascending),
            "_first": F.rank().over(ascending),
            "_is_last": F.lead(F.lit(True)).over(ascending).isNull(),
            ARRIVED_AT: F.min(ARRIVED_AT).over(equal),
        }
    )
    duplicates, superseded = F.col("_rows") - F.col("_first"), F.col("_first") - 1
    lost = zip(LOSERS, (duplicates, superseded), strict=True)
    return ranked.where("_is_last").select(
        *_columns(rows.columns), *[n.cast("long").alias(name) for name, n in lost]
    )


def among(target: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the rows of `target` whose keys are in `rows`, with a broadcast left semi join.

    The keys of `rows` must fit in memory. `compare` is a left join from the batch, for which Spark
    would shuffle and sort the whole target; this join reduces a large target first.
    """
    return target.join(F.broadcast(rows.select(*_columns(keys))), list(keys), "left_semi")


def compare(
    winners: DataFrame,
    target: DataFrame | None,
    tombstones: DataFrame | None,
    keys: Sequence[str],
    sequence: Sequence[str],
    withheld: DataFrame | None = None,
) -> DataFrame:
    """Return `winners` plus FATE, which may still be `tie` (see `settle_ties`).

    `target`: the candidate rows of the target. `tombstones`: keys and sequence, without this
    batch's own. `withheld`: keys and sequence of withdrawn rows that nobody released. None stands
    for an empty table.

    A change is superseded if its sequence is older than that of a withdrawn row of its key, or
    equal and not a delete. A delete at equal sequence wins, as over any row, and writes a
    tombstone: if the withdrawn row is released later, it stays deleted.
    """
    frame = beside(winners, target, keys, sequence, "_held")
    frame = beside(frame, latest(tombstones, keys, sequence), keys, sequence, "_deleted")
    frame = beside(frame, latest(withheld, keys, sequence), keys, sequence, "_withheld")
    own, held, deleted = F.struct(*_columns(sequence)), F.col("_held"), F.col("_deleted")
    is_delete, kept_out = F.col("_delete"), F.col("_withheld")
    stays_out = kept_out.isNotNull() & ((own < kept_out) | (~is_delete & (own == kept_out)))
    fate = (
        F.when(held.isNotNull() & (own < held), "superseded")
        .when(held.isNotNull() & is_delete, "delete")
        .when(stays_out, "superseded")
        .when(held.isNotNull() & (own == held), _TIE)
        .when(held.isNotNull(), "update")
        .when(deleted.isNotNull() & is_delete & (own == deleted), "duplicate")
        .when(deleted.isNotNull() & (own <= deleted), "superseded")
        .when(is_delete, "remember")
        .otherwise("insert")
    )
    return frame.withColumn(FATE, fate).drop("_held", "_deleted", "_withheld")


def settle_ties(
    fated: DataFrame, target: DataFrame, keys: Sequence[str], order: Sequence[str]
) -> DataFrame:
    """Return `fated` with every `tie` resolved to `update`, `duplicate` or `superseded`, by content
    in `order`.
    """
    columns = [c for c in order if c in fated.columns and c in target.columns]
    held = target.select(*_columns(keys), _content(target, columns).alias("_other"))
    ties = fated.where(F.col(FATE) == _TIE)
    own = _content(fated, columns)
    decided = (
        ties.withColumn("_own", own)
        .join(held, list(keys))
        .withColumn(
            FATE,
            F.when(F.col("_own") == F.col("_other"), "duplicate")
            .when(F.col("_own") > F.col("_other"), "update")
            .otherwise("superseded"),
        )
    )
    return fated.where(F.col(FATE) != _TIE).unionByName(
        decided.select(*[F.col(quoted(c)) for c in fated.columns])
    )


def count(fated: DataFrame) -> Mapping[str, int]:
    """Return the number of rows per value of FATE, and the sum of each of LOSERS."""
    rows = (
        fated.groupBy(FATE)
        .agg(F.count("*").alias("n"), *[F.sum(name).alias(name) for name in LOSERS])
        .collect()
    )
    counts = {row[FATE]: row["n"] for row in rows}
    return counts | {name: sum(row[name] for row in rows) for name in LOSERS}


def has_ties(counts: Mapping[str, int]) -> bool:
    """Return whether a row has the same key and sequence as a row of the target, so that content
    must be compared.
    """
    return counts.get(_TIE, 0) > 0


def beside(
    frame: DataFrame,
    other: DataFrame | None,
    keys: Sequence[str],
    sequence: Sequence[str],
    name: str,
) -> DataFrame:
    """Return `frame` with the sequence that `other`, one row per key, has of each key: a struct
    `name`, or NULL.
    """
    if other is None:
        kinds = ", ".join(
            f"{quoted(c)}: {frame.schema[c].dataType.simpleString()}" for c in sequence
        )
        return frame.withColumn(name, F.lit(None).cast(f"struct<{kinds}>"))
    held = other.select(*_columns(keys), F.struct(*_columns(sequence)).alias(name))
    return frame.join(held, list(keys), "left")


def latest(
    tombstones: DataFrame | None, keys: Sequence[str], sequence: Sequence[str]
) -> DataFrame | None:
    """Return the greatest sequence of each key."""
    if tombstones is None:
        return None
    latest = tombstones.groupBy(*_columns(keys)).agg(
        F.max(F.struct(*_columns(sequence))).alias("_s")
    )
    return latest.select(*_columns(keys), *[F.col(f"_s.{quoted(c)}").alias(c) for c in sequence])


def _content(frame: DataFrame, columns: Sequence[str]) -> Column:
    return F.struct(
        *[
            comparable(frame.schema[c].dataType, F.col(quoted(c))).alias(f"c{i}")
            for i, c in enumerate(columns)
        ]
    )


def comparable(kind: DataType, column: Column) -> Column:
    """Return a value that sorts and compares as the column does: Spark has no order of maps.

    Maps with the same entries compare equal, whatever the order of these.
    """
    return F.to_json(_in_order(column, kind), dict(TIMES)) if _holds_map(kind) else column


def _in_order(value: Column, kind: DataType) -> Column:
    """Return the value with the entries of each map sorted by key.

    Spark writes a binary or nested key into JSON by the name of its object in memory, so such a key
    becomes JSON first.
    """
    match kind:
        case _ if not _holds_map(kind):
            return value
        case MapType(keyType=key, valueType=held):
            is_plain = isinstance(key, AtomicType) and not isinstance(key, BinaryType)
            # without a lambda: windows over lambdas share no sort
            if is_plain and not _holds_map(held):
                return F.map_from_entries(F.sort_array(F.map_entries(value)))

            def entry(one: Column) -> Column:
                name = (
                    one["key"]
                    if is_plain
                    else F.to_json(F.struct(one["key"].alias("k")), dict(TIMES))
                )
                return F.struct(name.alias("key"), _in_order(one["value"], held).alias("value"))

            entries = F.array_sort(F.transform(F.map_entries(value), entry), _by_key)
            return F.map_from_entries(entries)
        case ArrayType(elementType=element):
            return F.transform(value, lambda one: _in_order(one, element))
        case StructType():
            fields = [_in_order(value.getField(f.name), f.dataType).alias(f.name) for f in kind]
            return F.when(value.isNotNull(), F.struct(*fields))
    raise AssertionError(f"no type that holds a map: {kind}")


def _by_key(one: Column, other: Column) -> Column:
    return F.when(one["key"] < other["key"], -1).when(one["key"] > other["key"], 1).otherwise(0)


def _holds_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) or "map<" in kind.simpleString()


def _columns(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]
