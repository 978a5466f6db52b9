"""Detect schema drift in records: mark fields that the contract doesn't name and columns that are
missing, aggregate the marks of a batch, and turn new fields into columns for `drift: {new: add}`.

A record is marked only with drift that was not reported before, so input without new drift costs
nothing. How a field is treated depends only on its record and its name, not on earlier input: see
docs/decisions/022.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from draindown.config.landing import FlowSpec
from draindown.config.names import RESERVED_COLUMNS
from draindown.flow.schema_drift import ADDABLE, LONGEST, MOST_ADDED, MOST_REMEMBERED, SHOWN, Known
from draindown.spark.contract.parsing import WHY
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.sql import literal

MARKS = "array<string>"
"""Marks of a record: `+name` for a field that the contract doesn't name, `-name` for a column that
is missing.
"""
NO_RECORDS = ("malformed", "too_large", "null_value")
"""Reasons for which a record can't be read, so that what looks like its fields is none."""
_MOST_OF_ONE = MOST_ADDED + 1
_MANY = "*"
_FIELDS = "map<string,string>"
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_SHAPES = (
    ("empty", "", None),
    ("boolean", "true|false", None),
    ("whole", "[+-]?[0-9]{1,19}", None),
    ("double", r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?", None),
    ("nested", r"(?s)[{\[].*", None),
    ("date", _DAY, "date"),
    (
        "timestamp",
        _DAY + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?",
        "timestamp",
    ),
)
"""Shapes of values: name, pattern of the whole text, and the type that must take it; the first that
fits counts.
"""
_WITNESS = {
    "empty": "",
    "boolean": "true",
    "double": "0.5",
    "date": "2026-01-31",
    "timestamp": "2026-01-31 12:00",
    "other": "?",
}
_ADDABLE = literal(f"^{ADDABLE}\\z")


def nothing() -> Column:
    """Return the value for no marks."""
    return F.lit(None).cast(MARKS)


def of_names(
    names: Sequence[str],
    flow: FlowSpec,
    known: Known,
    text: Callable[[str], str] = lambda _: "null",
) -> Column:
    """Return the marks for all records of a unit with the columns `names`. `known`: drift that was
    reported before.

    `text`: returns the text of an unnamed field as a SQL expression. A field without a value so far
    is a mark of the records that have one.
    """
    new = [
        name for name in names if name not in flow.columns and name[:LONGEST] not in known.fields
    ]
    lacking = [name for name in flow.columns if name not in names and name not in known.columns]
    waiting = [name for name in new if name[:LONGEST] in known.null | known.empty]
    plain = [f"+{name[:LONGEST]}" for name in new if name not in waiting][:_MOST_OF_ONE]
    always = _array([*plain, *(f"-{name}" for name in lacking)])
    if not waiting:
        return F.expr(always) if plain or lacking else nothing()
    has_value = (_has_value(text(name), is_empty=name[:LONGEST] in known.empty) for name in waiting)
    marks = zip(has_value, (literal(f"+{name[:LONGEST]}") for name in waiting), strict=True)
    first = ", ".join(f"if({condition}, {mark}, null)" for condition, mark in marks)
    return F.expr(f"nullif(concat(array_compact(array({first})), {always}), {_array(())})")


def _has_value(text: str, *, is_empty: bool) -> str:
    """Return whether a record has the first value of a field. `is_empty`: empty texts were seen
    before.
    """
    return f"coalesce(trim({text}), '') <> ''" if is_empty else f"{text} is not null"


def of_map(flow: FlowSpec, known: Known, *, nested: bool = False) -> Column:
    """Return the marks of a record with `_m`, a map of its fields, and `_more`, whether it has
    unnamed ones.

    `nested`: whether `_nested` has the paths of unnamed fields within structs, or NULL.
    """
    short = f"substring(k, 1, {LONGEST})"
    named = _array([*flow.columns, *sorted(known.fields)])
    more, fields = "_more", "map_keys(_m)"
    if nested:
        more = "(_more or _nested is not null)"
        fields = f"concat(map_keys(_m), coalesce(array_distinct(_nested), {_array(())}))"
    news = [f"not array_contains({named}, {short})"]
    for names, is_empty in ((known.null, False), (known.empty, True)):
        if names:
            waits = f"array_contains({_array(sorted(names))}, {short})"
            news.append(f"(not {waits} or {_has_value('_m[k]', is_empty=is_empty)})")
    new = f"slice(filter({fields}, k -> {' and '.join(news)}), 1, {_MOST_OF_ONE})"
    plus = f"transform({new}, k -> concat('+', {short}))"
    wanted = _array([name for name in flow.columns if name not in known.columns])
    minus = f"transform(filter({wanted}, k -> not map_contains_key(_m, k)), k -> concat('-', k))"
    if known.all_records:
        marks = f"if(_m is null, null, concat(if({more}, {plus}, array()), {minus}))"
    else:  # missing columns are looked for only in records with a new field
        marks = f"if({more} and size({new}) > 0, concat({plus}, {minus}), null)"
    return F.expr(f"nullif(cast({marks} as {MARKS}), cast(array() as {MARKS}))")


def _array(texts: Iterable[str]) -> str:
    return f"cast(array({', '.join(map(literal, texts))}) as {MARKS})"


@dataclass(frozen=True)
class Seen:
    """A new field or missing column in one batch.

    `rows`: the number of records that have, or lack, it; `unit`, `block` and `id` (see PLACE): the
    first of them; `values`: texts that have the same likely type as all of its values.
    """

    name: str
    rows: int
    unit: str
    block: int
    id: int
    values: tuple[str, ...]


@dataclass(frozen=True)
class News:
    """The drift of one batch.

    `new`: fields that the contract doesn't name; `missing`: columns that whole units lack;
    `columns`: fields that become columns; `many`: records with more than MOST_ADDED fields, none of
    which becomes a column.
    """

    new: Sequence[Seen] = ()
    missing: Sequence[Seen] = ()
    columns: Sequence[Seen] = ()
    many: Seen | None = None


def marked(frame: DataFrame, units: Sequence[str], records: Mapping[str, int]) -> News:
    """Aggregate the marks of a batch, for a bounded number of names.

    `units`: in the order that decides which record of a field is the first; `records`: number of
    records per unit.
    """
    order = {unit: at for at, unit in enumerate(units)}
    about = relation(
        frame.sparkSession,
        {"_unit": TEXT, "_rank": NUMBER, "_records": NUMBER},
        [(unit, order.get(unit, len(order)), number) for unit, number in records.items()],
    )
    is_record = F.col(WHY).isNull() | ~F.col(f"{WHY}.reason").isin(*NO_RECORDS)
    every = frame.where(F.col("_drift").isNotNull() & is_record).select(
        "_unit",
        "_block",
        "_id",
        "_delete",
        F.from_json("_rescued_data", _FIELDS).alias("_m"),
        F.explode("_drift").alias("_n"),
    )
    by_unit = every.groupBy("_n", "_unit").agg(
        F.count("*").alias("n"),
        F.count_if(~F.col("_delete")).alias("upserts"),
        F.min(F.struct("_block", "_id")).alias("first"),
        *_values(F.expr("_m[substring(_n, 2)]")),
    )
    # a delete may have its keys only, so a column is not missing in a unit with deletes only
    whole = (F.col("n") >= F.col("_records")) & (F.col("upserts") > 0)
    told = by_unit.join(F.broadcast(about), "_unit").where(F.col("_n").startswith("+") | whole)
    found = told.groupBy("_n").agg(
        F.sum("n").alias("n"),
        F.min(F.struct("_rank", "_unit", "first._block", "first._id")).alias("first"),
        *_merged(),
    )
    seen = [(row["_n"][0], _seen(row)) for row in _first(found, 2 * MOST_REMEMBERED)]
    return News(
        [one for sign, one in seen if sign == "+"], [one for sign, one in seen if sign == "-"]
    )


def addable(good: DataFrame, taken: Collection[str]) -> News:
    """Return the fields of good records that become columns, at most MOST_ADDED + 1, in `columns`
    and `many`.

    `taken`: names, in any case, that a new column can't have.
    """
    fields = F.from_json("_rescued_data", _FIELDS)
    held = _array(sorted({name.lower() for name in taken}))
    free = f"map_filter(_m, (k, v) -> {_is_free(held)})"
    entries = good.where(F.col("_rescued_data").isNotNull()).select(
        "_unit", "_block", "_id", fields.alias("_m")
    )
    chosen = F.expr(f"if(size(_m) > {MOST_ADDED}, map('{_MANY}', cast(null as string)), {free})")
    every = entries.select("_unit", "_block", "_id", F.explode(chosen).alias("_k", "_v"))
    found = every.groupBy(F.lower("_k").alias("folded")).agg(
        F.min("_k").alias("_n"),
        F.count("*").alias("n"),
        F.min(F.struct(F.lit(0).alias("_rank"), "_unit", "_block", "_id")).alias("first"),
        *_values(F.col("_v")),
    )
    seen = [(row["folded"], _seen(row, 0)) for row in _first(found, MOST_ADDED + 2)]
    many = next((one for folded, one in seen if folded == _MANY), None)
    return News(columns=[one for folded, one in seen if folded != _MANY], many=many)


def spread(good: DataFrame, columns: Sequence[str], reserved: Collection[str]) -> DataFrame:
    """Move the fields that become columns from `_rescued_data` into `columns`.

    `columns`: names, in the spelling of the table, of all such fields in these rows; `reserved`:
    names, in any case, that stay in `_rescued_data`. Of fields whose names differ in case only, the
    first in order that has a value is moved.
    """
    if not columns:
        return good
    held = _array(sorted({name.lower() for name in reserved}))
    free = f"array_sort(map_entries(map_filter(_m, (k, v) -> {_is_free(held)})))"
    first = "filter(_e, (e, i) -> not exists(slice(_e, 1, i), b -> lower(b.key) = lower(e.key)))"
    left = "map_filter(_m, (k, v) -> not array_contains(transform(_e, e -> e.key), k))"
    rest = F.expr(f"if(size({left}) = 0, null, to_json({left}, map('ignoreNullFields', 'false')))")
    wide = (
        good.withColumn("_m", F.from_json("_rescued_data", _FIELDS))
        .withColumn("_e", F.expr(f"if(size(_m) <= {MOST_ADDED}, {free}, null)"))
        .withColumn("_e", F.expr(first))
        .withColumn(
            "_rescued_data", F.when(F.expr("size(_e) > 0"), rest).otherwise(F.col("_rescued_data"))
        )
        .withColumn(
            "_f", F.expr("map_from_entries(transform(_e, e -> struct(lower(e.key), e.value)))")
        )
    )
    values = {name: F.expr(f"_f[{literal(name.lower())}]") for name in columns}
    return wide.withColumns(values).drop("_m", "_e", "_f")


def empty(good: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Add these columns as NULL, for rows of which none has a field that the contract doesn't
    name.
    """
    return (
        good.withColumns({name: F.lit(None).cast("string") for name in columns})
        if columns
        else good
    )


def reserved_in(flow: FlowSpec, frame: DataFrame) -> set[str]:
    """Return the names that an added column can't have: those of the contract, the transform and
    draindown.

    A field that the contract reads may be in `_rescued_data` for a field within it.
    """
    return {*flow.columns, *flow.fields.values(), *frame.columns, *RESERVED_COLUMNS}


def _is_free(held: str) -> str:
    return f"v is not null and k rlike {_ADDABLE} and not array_contains({held}, lower(k))"


def _values(column: Column) -> Sequence[Column]:
    """Return aggregates from which `_witnesses` follow: over every value, so that one 97.5 among
    integers counts.
    """
    text = F.substring(F.trim(column), 1, SHOWN)
    kind = F.when(text.isNull(), None)
    for name, pattern, type_ in _SHAPES:
        is_valid = F.lit(True) if type_ is None else text.try_cast(type_).isNotNull()
        kind = kind.when(text.rlike(f"^(?:{pattern})\\z") & is_valid, name)
    kind = kind.otherwise("other")
    whole, nested = (F.when(kind == name, text) for name in ("whole", "nested"))
    number = whole.try_cast("decimal(38,0)")
    return (
        F.collect_set(kind).alias("kinds"),
        F.min(number).alias("least"),
        F.max(number).alias("most"),
        F.min(nested).alias("low"),
        F.max(nested).alias("high"),
    )


def _merged() -> Sequence[Column]:
    """Return the aggregates of `_values` over groups that have them already."""
    kinds = F.array_distinct(F.flatten(F.collect_list("kinds"))).alias("kinds")
    least, most = (merge(name).alias(name) for merge, name in ((F.min, "least"), (F.max, "most")))
    low, high = (merge(name).alias(name) for merge, name in ((F.min, "low"), (F.max, "high")))
    return kinds, least, most, low, high


def _witnesses(row: Row) -> tuple[str, ...]:
    """Return one text for each shape among the values, and the bounds of integers and of nested
    values.
    """
    bounds = [str(row[name]) for name in ("least", "most", "low", "high") if row[name] is not None]
    return (*bounds, *(_WITNESS[kind] for kind in sorted(row["kinds"]) if kind in _WITNESS))


def _first(found: DataFrame, most: int) -> list[Row]:
    return found.orderBy("first", "_n").limit(most).collect()


def _seen(row: Row, sign: int = 1) -> Seen:
    first = row["first"]
    return Seen(
        row["_n"][sign:], row["n"], first["_unit"], first["_block"], first["_id"], _witnesses(row)
    )
