"""Turn lines, CSV records and columnar rows into records: named cells, the raw text, and whether a record is broken.

A `Records` frame has `_raw` string, `_blank` boolean, `_broken` string (why it is no record at all, or NULL), `_unknown`
string (JSON of the fields the contract doesn't name, or NULL), PLACE, and whatever `cell` reads from.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from draindown.spark.evaluation import quoted
from draindown.spark.reading import (
    PLACE,
    InputFile,
    by_header,
    read_columnar,
    read_multiline,
    read_text,
)
from draindown.spec import FlowSpec

_STRICT_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_EXTRA_CELLS = 64
_NO_NULL = "\u0001none\u0001"
_WHITE = " \\t\\r\\n\\u000B\\f"


@dataclass(frozen=True)
class Records:
    """A frame as the module describes it, and how to get at a named cell of it (typed, or text to be cast)."""

    frame: DataFrame
    cell: Callable[[str], Column]


def read(spark: SparkSession, flow: FlowSpec, files: Sequence[InputFile]) -> list[Records]:
    """The records of the batch's files: one entry per distinct header or file schema."""
    if flow.source.format in ("parquet", "orc"):
        return [_columnar(frame, flow) for frame in read_columnar(spark, files, flow.source.format)]
    if flow.source.format == "csv":
        return [_csv(read_csv_lines(spark, group), flow, header) for header, group in by_header(files) if group]
    return [from_lines(read_text(spark, files), flow)]


def from_lines(lines: DataFrame, flow: FlowSpec, header: str | None = None) -> Records:
    """Records of a frame with `value` and PLACE. `header` is the CSV header the lines came under."""
    match flow.source.format:
        case "json":
            return _json(lines, flow)
        case "csv":
            return _csv(lines, flow, header)
        case "text":
            return _text(lines)
        case other:
            return _json_rows(lines, flow, other)


def read_csv_lines(spark: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """CSV records as `value` plus PLACE; files in which quotes hold line ends are split record by record."""
    plain = [file for file in files if not file.multiline]
    folded = [file for file in files if file.multiline]
    frames = [read_text(spark, plain)] if plain else []
    frames += [read_multiline(spark, folded)] if folded else []
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _base(lines: DataFrame) -> DataFrame:
    return lines.withColumn("_blank", F.expr(f"btrim(value, '{_WHITE}') = ''"))


def _finish(frame: DataFrame, broken: Column, unknown: Column, *keep: str) -> DataFrame:
    return frame.select(
        F.col("value").alias("_raw"), "_blank", broken.alias("_broken"), unknown.alias("_unknown"), *PLACE, *keep
    )


def _json(lines: DataFrame, flow: FlowSpec) -> Records:
    # In brackets, because Spark ignores what follows a complete value: a second object on a line would vanish.
    wrapped = F.concat(F.lit("["), F.col("value"), F.lit("]"))
    frame = _base(lines).withColumn("_a", F.from_json(wrapped, "array<map<string,string>>", _STRICT_JSON))
    frame = frame.withColumn("_m", F.when(F.size("_a") == 1, F.col("_a")[0]))
    names = _strings(flow.columns)
    known = " + ".join(f"int(map_contains_key(_m, {name}))" for name in names)
    frame = frame.withColumn("_more", F.expr(f"size(_m) > {known}"))
    broken = F.when(F.col("_m").isNull(), F.lit("not one JSON object")).when(
        F.expr("_more and size(array_distinct(map_keys(_m))) < size(_m)"), F.lit("a key stands twice")
    )
    unknown = F.when(
        F.col("_more"), F.expr(f"to_json(map_filter(_m, (k, v) -> not array_contains(array({', '.join(names)}), k)))")
    )
    exact = [name for name, column in flow.columns.items() if column.type.startswith("decimal")]
    if exact:  # as text, a JSON number passes through a double
        schema = ", ".join(f"{quoted(name)} {flow.columns[name].type}" for name in exact)
        frame = frame.withColumn("_exact", F.from_json("value", schema, {"prefersDecimal": "true"}))
    kept = ("_m", "_exact") if exact else ("_m",)

    def cell(name: str) -> Column:
        text = F.expr(f"_m[{_strings([name])[0]}]")
        return F.when(text.isNotNull(), F.col(f"_exact.{quoted(name)}")) if name in exact else text

    return Records(_finish(frame, broken, unknown, *kept), cell)


def _csv(lines: DataFrame, flow: FlowSpec, header: str | None) -> Records:
    separator = flow.source.delimiter
    names = list(flow.columns) if not flow.source.header else next(csv.reader([header or ""], delimiter=separator))
    names = [name.strip() for name in names]
    options = {"sep": separator, "columnNameOfCorruptRecord": "_bad", "quote": '"', "escape": '"'}
    schema = ", ".join(f"c{i} string" for i in range(len(names))) + ", _bad string"
    more = ", ".join(f"c{i} string" for i in range(len(names) + _EXTRA_CELLS))
    frame = _base(lines)
    if flow.source.header:
        frame = frame.withColumn("_blank", F.col("_blank") | (F.col("value") == F.lit(header)))
    frame = frame.withColumn("_c", F.from_csv("value", schema, options))
    all_cells = F.from_csv("value", more, options | {"nullValue": _NO_NULL, "emptyValue": ""})
    cells = F.when(F.col("_c._bad").isNotNull(), all_cells)
    frame = frame.withColumn("_all", cells)
    listed = ", ".join(f"_all.c{i}" for i in range(len(names) + _EXTRA_CELLS))
    frame = frame.withColumn("_cells", F.expr(f"if(_all is null, null, filter(array({listed}), x -> x is not null))"))
    counted = F.size("_cells")
    odd_quotes = F.expr("(length(value) - length(replace(value, '\"', ''))) % 2 = 1")
    broken = F.when(F.lit(len(set(names)) < len(names)), F.lit("the header names a column twice"))
    broken = broken.when(odd_quotes, F.lit("a quote is not closed"))
    broken = broken.when(
        F.col("_cells").isNotNull() & (counted < len(names)),
        F.concat(counted.cast("string"), F.lit(f" cells under a header of {len(names)}")),
    )
    unnamed = [(i, name) for i, name in enumerate(names) if name not in flow.columns]
    entries = [f"{_strings([name])[0]}, _c.c{i}" for i, name in unnamed]
    extra = f"'_extra', if(size(_cells) > {len(names)}, to_json(slice(_cells, {len(names) + 1}, {_EXTRA_CELLS})), null)"
    unknown = F.expr(f"to_json(map_filter(map({', '.join([*entries, extra])}), (k, v) -> v is not null))")
    unknown = F.when(unknown != "{}", unknown)
    place = {name: i for i, name in reversed(list(enumerate(names)))}

    def cell(name: str) -> Column:
        return F.col(f"_c.c{place[name]}") if name in place else F.lit(None).cast("string")

    return Records(_finish(frame, broken, unknown, "_c"), cell)


def _text(lines: DataFrame) -> Records:
    nothing = F.lit(None).cast("string")
    return Records(_finish(_base(lines), nothing, nothing), lambda name: F.col("_raw"))


def _columnar(rows: DataFrame, flow: FlowSpec) -> Records:
    own = [name for name in rows.columns if name not in PLACE]
    raw = F.to_json(F.struct(*[F.col(quoted(name)) for name in own]), {"ignoreNullFields": "false"})
    unnamed = [F.col(quoted(name)) for name in own if name not in flow.columns]
    nothing = F.lit(None).cast("string")
    unknown = F.to_json(F.struct(*unnamed)) if unnamed else nothing
    named = F.struct(*[F.col(quoted(name)) for name in own if name in flow.columns], F.lit(0).alias("_none"))
    frame = rows.select(
        raw.alias("_raw"),
        F.lit(False).alias("_blank"),
        nothing.alias("_broken"),
        F.when(unknown != "{}", unknown).alias("_unknown"),
        *PLACE,
        named.alias("_c"),
    )

    def cell(name: str) -> Column:
        return F.col(f"_c.{quoted(name)}") if name in own else F.lit(None).cast(StringType())

    return Records(frame, cell)


def _json_rows(lines: DataFrame, flow: FlowSpec, form: str) -> Records:
    """Rows of a columnar file that quarantine kept as JSON."""
    del form
    return _json(lines, flow)


def _strings(names: Sequence[str] | dict[str, object]) -> list[str]:
    """Names as SQL string literals."""
    return ["'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'" for name in names]
