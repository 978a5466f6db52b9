"""Fields that the contract doesn't name and columns that files lack: marked as they are read, told by the batch, and
made columns where the flow says so.

A record carries MARKS only of what is news, so a flow whose input stays as it is pays nothing. What becomes of a field
is decided from its record and its name alone, never from what came before it: see docs/decisions/022.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from draindown.flow.schema_drift import ADDABLE, LONGEST, MOST_ADDED, MOST_REMEMBERED, SHOWN, Known
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sql import literal
from draindown.spec.models import FlowSpec
from draindown.spec.names import RESERVED_COLUMNS

MARKS = "array<string>"
"""`+name` of a field that the contract doesn't name, `-name` of a column that the record or its file lacks."""
_MOST_OF_ONE = MOST_ADDED + 1
_MANY = "*"
_FIELDS = "map<string,string>"
_ADDABLE = literal(f"^{ADDABLE}\\z")


def nothing() -> Column:
    """No marks."""
    return F.lit(None).cast(MARKS)


def of_names(names: Sequence[str], flow: FlowSpec, known: Known, beyond: tuple[str, Column] | None = None) -> Column:
    """Marks of every record of a file with these columns. `beyond`: a name for what some have more, and which do."""
    new = [name[:LONGEST] for name in names if name not in flow.columns]
    lacking = [name for name in flow.columns if name not in names and name not in known.columns]
    marks = [f"+{name}" for name in new if name not in known.fields][:_MOST_OF_ONE] + [f"-{name}" for name in lacking]
    fixed = F.array(*[F.lit(mark) for mark in marks]).cast(MARKS) if marks else nothing()
    if beyond is None or beyond[0] in known.fields:
        return fixed
    more = F.array(F.lit(f"+{beyond[0]}"))
    return F.when(beyond[1], F.concat(fixed, more) if marks else more).otherwise(fixed)


def of_map(flow: FlowSpec, known: Known) -> Column:
    """Marks of a record with `_m`, its fields by name, and `_more`, whether any is not in the contract."""
    short = f"substring(k, 1, {LONGEST})"
    named = _array([*flow.columns, *sorted(known.fields)])
    new = f"slice(filter(map_keys(_m), k -> not array_contains({named}, {short})), 1, {_MOST_OF_ONE})"
    plus = f"transform({new}, k -> concat('+', {short}))"
    wanted = _array([name for name in flow.columns if name not in known.columns])
    minus = f"transform(filter({wanted}, k -> not map_contains_key(_m, k)), k -> concat('-', k))"
    if known.all_records:
        marks = f"if(_m is null, null, concat(if(_more, {plus}, array()), {minus}))"
    else:  # which columns a record lacks is worth a look only where one of its fields is new
        marks = f"if(_more and size({new}) > 0, concat({plus}, {minus}), null)"
    return F.expr(f"nullif(cast({marks} as {MARKS}), cast(array() as {MARKS}))")


def _array(texts: Iterable[str]) -> str:
    return f"cast(array({', '.join(map(literal, texts))}) as {MARKS})"


@dataclass(frozen=True)
class Seen:
    """A field or a column in one batch: records that have or lack it, the first of them, and two of its values.

    `file`: the URI; `block` and `id`: as in PLACE.
    """

    name: str
    rows: int
    file: str
    block: int
    id: int
    values: tuple[str | None, str | None]


@dataclass(frozen=True)
class News:
    """What one batch saw: fields the contract doesn't name, columns that whole files lack, and, for `add`, those that
    become columns; `many`: records that have too many for that."""

    new: Sequence[Seen] = ()
    missing: Sequence[Seen] = ()
    columns: Sequence[Seen] = ()
    many: Seen | None = None


def marked(frame: DataFrame, files: Sequence[str], records: Mapping[str, int]) -> News:
    """What the marks of a batch say, at most a bounded number of names.

    `files`: URIs, in the order in which the first one of a field is looked for; `records`: how many each has.
    """
    order = {file: at for at, file in enumerate(files)}
    about = relation(
        frame.sparkSession,
        {"_file": TEXT, "_rank": NUMBER, "_records": NUMBER},
        [(file, order.get(file, len(order)), number) for file, number in records.items()],
    )
    every = frame.where(F.col("_drift").isNotNull()).select(
        "_file",
        "_block",
        "_id",
        "_delete",
        F.from_json("_rescued", _FIELDS).alias("_m"),
        F.explode("_drift").alias("_n"),
    )
    by_file = every.groupBy("_n", "_file").agg(
        F.count("*").alias("n"),
        F.count_if(~F.col("_delete")).alias("upserts"),
        F.min(F.struct("_block", "_id")).alias("first"),
        *_values(F.expr("_m[substring(_n, 2)]")),
    )
    # a delete may come with its keys only: where there is nothing else, no column is missing
    whole = (F.col("n") >= F.col("_records")) & (F.col("upserts") > 0)
    told = by_file.join(F.broadcast(about), "_file").where(F.col("_n").startswith("+") | whole)
    found = told.groupBy("_n").agg(
        F.sum("n").alias("n"),
        F.min(F.struct("_rank", "_file", "first._block", "first._id")).alias("first"),
        F.min("low").alias("low"),
        F.max("high").alias("high"),
    )
    seen = [(row["_n"][0], _seen(row)) for row in _first(found, 2 * MOST_REMEMBERED)]
    return News([one for sign, one in seen if sign == "+"], [one for sign, one in seen if sign == "-"])


def addable(good: DataFrame, taken: Collection[str]) -> News:
    """Fields of good records that become columns: by name, at most one more than MOST_ADDED; `many` where one has more.

    `taken`: names, in whatever case, that no new column may bear.
    """
    fields = F.from_json("_rescued", _FIELDS)
    held = _array(sorted({name.lower() for name in taken}))
    free = f"map_filter(_m, (k, v) -> {_is_free(held)})"
    entries = good.where(F.col("_rescued").isNotNull()).select("_file", "_block", "_id", fields.alias("_m"))
    chosen = F.expr(f"if(size(_m) > {MOST_ADDED}, map('{_MANY}', cast(null as string)), {free})")
    every = entries.select("_file", "_block", "_id", F.explode(chosen).alias("_k", "_v"))
    found = every.groupBy(F.lower("_k").alias("folded")).agg(
        F.min("_k").alias("_n"),
        F.count("*").alias("n"),
        F.min(F.struct(F.lit(0).alias("_rank"), "_file", "_block", "_id")).alias("first"),
        *_values(F.col("_v")),
    )
    seen = [(row["folded"], _seen(row, 0)) for row in _first(found, MOST_ADDED + 2)]
    many = next((one for folded, one in seen if folded == _MANY), None)
    return News(columns=[one for folded, one in seen if folded != _MANY], many=many)


def spread(good: DataFrame, columns: Sequence[str], reserved: Collection[str]) -> DataFrame:
    """The rows with the fields that become columns in `columns` (their spelling), and taken out of `_rescued`.

    `columns` hold every such field of these rows; `reserved`: names that stay in `_rescued` in whatever case. Of fields
    of one name but for its case, the first in order that has a value counts; the others stay.
    """
    if not columns:
        return good
    held = _array(sorted({name.lower() for name in reserved}))
    free = f"array_sort(map_entries(map_filter(_m, (k, v) -> {_is_free(held)})))"
    first = "filter(_e, (e, i) -> not exists(slice(_e, 1, i), b -> lower(b.key) = lower(e.key)))"
    left = "map_filter(_m, (k, v) -> not array_contains(transform(_e, e -> e.key), k))"
    rest = F.expr(f"if(size({left}) = 0, null, to_json({left}, map('ignoreNullFields', 'false')))")
    wide = (
        good.withColumn("_m", F.from_json("_rescued", _FIELDS))
        .withColumn("_e", F.expr(f"if(size(_m) <= {MOST_ADDED}, {free}, null)"))
        .withColumn("_e", F.expr(first))
        .withColumn("_rescued", F.when(F.expr("size(_e) > 0"), rest).otherwise(F.col("_rescued")))
        .withColumn("_f", F.expr("map_from_entries(transform(_e, e -> struct(lower(e.key), e.value)))"))
    )
    values = {name: F.expr(f"_f[{literal(name.lower())}]") for name in columns}
    return wide.withColumns(values).drop("_m", "_e", "_f")


def empty(good: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows with these columns, NULL: none of them has a field that the contract doesn't name."""
    return good.withColumns({name: F.lit(None).cast("string") for name in columns}) if columns else good


def reserved_in(flow: FlowSpec, frame: DataFrame) -> set[str]:
    """Names that no added column may bear: the contract's, the transform's, draindown's own."""
    return {*flow.columns, *frame.columns, *RESERVED_COLUMNS}


def _is_free(held: str) -> str:
    return f"v is not null and k rlike {_ADDABLE} and not array_contains({held}, lower(k))"


def _values(column: Column) -> tuple[Column, Column]:
    shown = F.substring(column, 1, SHOWN)
    return F.min(shown).alias("low"), F.max(shown).alias("high")


def _first(found: DataFrame, most: int) -> list[Row]:
    return found.orderBy("first", "_n").limit(most).collect()


def _seen(row: Row, sign: int = 1) -> Seen:
    first = row["first"]
    return Seen(row["_n"][sign:], row["n"], first["_file"], first["_block"], first["_id"], (row["low"], row["high"]))
