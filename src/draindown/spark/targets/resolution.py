"""What becomes of each good row of a keyed batch, decided from the row, the target and the tombstones alone.

Order of the changes of one key: the sequence; at equal sequence a delete wins, then the greater content, compared
column by column in the order that `order` gives, with NULL smallest. So the result is the same whatever arrives first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, MapType

from draindown.spark.contract.json_rows import TIMES
from draindown.spark.sql import quoted

FATE = "_fate"
"""insert, update, delete, remember (a delete of a key the table doesn't hold), superseded or duplicate."""
ACTS = ("insert", "update", "delete")
DELETES = ("delete", "remember")
LOSERS = ("_duplicates", "_superseded")
"""How many other rows of the batch lost to a winner, counted per key."""
_TIE = "tie"


def order(columns: Sequence[str], added: Collection[str]) -> list[str]:
    """The order in which content is compared: `columns` as in the table, but `added` ones by name, and `_rescued` last.

    So it doesn't depend on which added column came first; and a row that is read again, after one of its fields has got
    a column, is greater than it was.
    """
    own = [name for name in columns if name not in added and name != "_rescued"]
    return [*own, *sorted(added, key=str.lower), "_rescued"]


def newest(rows: DataFrame, keys: Sequence[str], sequence: Sequence[str], order: Sequence[str]) -> DataFrame:
    """One row per key: the columns of `rows` plus LOSERS; of a delete only key and sequence, all else is NULL.

    Needs `_delete`; keys and sequence not null. `order`: what `order` returned.

    All of it is read off the last row of a key, in one pass over rows that are sorted once: `row_number` counts its
    rows there, `rank` those before the first that is equal to it.
    """
    content = [name for name in order if name in rows.columns and name not in {*keys, *sequence}]
    bare = rows.withColumns({name: F.when(~F.col("_delete"), F.col(quoted(name))) for name in content})
    compared = [_comparable(bare.schema[name].dataType, name) for name in content]
    ascending = Window.partitionBy(*_columns(keys)).orderBy(*_columns(sequence), "_delete", *compared)
    ranked = bare.withColumns(
        {
            "_rows": F.row_number().over(ascending),
            "_first": F.rank().over(ascending),
            "_is_last": F.lead(F.lit(True)).over(ascending).isNull(),
        }
    )
    duplicates, superseded = F.col("_rows") - F.col("_first"), F.col("_first") - 1
    lost = zip(LOSERS, (duplicates, superseded), strict=True)
    return ranked.where("_is_last").select(*_columns(rows.columns), *[n.cast("long").alias(name) for name, n in lost])


def among(target: DataFrame, rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Those rows of a large `target` that have the keys of some of the `rows`, found as it is read.

    The keys must fit into memory. The comparison keeps rows of the batch that match nothing: for that Spark would
    shuffle and sort all of the target.
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
    """`winners` plus FATE, which may still be `tie` (see `settle_ties`).

    `target`: the rows of the table that may hold these keys; `tombstones`: keys, sequence and nothing of this batch;
    `withheld`: keys and sequence of rows that a person keeps out. None stands for a table without rows.

    A withheld row stays out, and so does what is older. A delete at its sequence wins over it, as over any row, and is
    remembered: released afterwards, the row would come back deleted.
    """
    frame = _with(winners, target, keys, sequence, "_held")
    frame = _with(frame, _latest(tombstones, keys, sequence), keys, sequence, "_deleted")
    frame = _with(frame, _latest(withheld, keys, sequence), keys, sequence, "_withheld")
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


def settle_ties(fated: DataFrame, target: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """`fated` with every `tie` decided by content in `order`: `update`, `duplicate` or `superseded`."""
    columns = [c for c in order if c != "_changed_at" and c in fated.columns and c in target.columns]
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
    return fated.where(F.col(FATE) != _TIE).unionByName(decided.select(*[F.col(quoted(c)) for c in fated.columns]))


def count(fated: DataFrame) -> Mapping[str, int]:
    """Rows per fate, and the sums of LOSERS."""
    rows = fated.groupBy(FATE).agg(F.count("*").alias("n"), *[F.sum(name).alias(name) for name in LOSERS]).collect()
    counts = {row[FATE]: row["n"] for row in rows}
    return counts | {name: sum(row[name] for row in rows) for name in LOSERS}


def has_ties(counts: Mapping[str, int]) -> bool:
    """Whether some row equals the target's in key and sequence, so that content must decide."""
    return counts.get(_TIE, 0) > 0


def _with(
    frame: DataFrame, other: DataFrame | None, keys: Sequence[str], sequence: Sequence[str], name: str
) -> DataFrame:
    if other is None:
        kinds = ", ".join(f"{quoted(c)}: {frame.schema[c].dataType.simpleString()}" for c in sequence)
        return frame.withColumn(name, F.lit(None).cast(f"struct<{kinds}>"))
    held = other.select(*_columns(keys), F.struct(*_columns(sequence)).alias(name))
    return frame.join(held, list(keys), "left")


def _latest(tombstones: DataFrame | None, keys: Sequence[str], sequence: Sequence[str]) -> DataFrame | None:
    if tombstones is None:
        return None
    latest = tombstones.groupBy(*_columns(keys)).agg(F.max(F.struct(*_columns(sequence))).alias("_s"))
    return latest.select(*_columns(keys), *[F.col(f"_s.{quoted(c)}").alias(c) for c in sequence])


def _content(frame: DataFrame, columns: Sequence[str]) -> Column:
    return F.struct(*[_comparable(frame.schema[c].dataType, c).alias(f"c{i}") for i, c in enumerate(columns)])


def _comparable(kind: DataType, name: str) -> Column:
    column = F.col(quoted(name))
    return F.to_json(column, dict(TIMES)) if _holds_map(kind) else column


def _holds_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) or "map<" in kind.simpleString()


def _columns(names: Sequence[str]) -> list[Column]:
    return [F.col(quoted(name)) for name in names]
