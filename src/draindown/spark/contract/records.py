"""Turn lines, CSV records and columnar rows into records with named cells.

The frame of `Records` has these columns, and those that `cell` and `raw` read:

    _blank    boolean: a blank line or a CSV header, so not a record
    _header   boolean: a CSV header
    _broken   string: why the record is malformed, or NULL
    _unknown  string: JSON of the fields that the contract doesn't name, or NULL
    _drift    `drift_marks.MARKS`, or NULL
    PLACE     file and position
    ARRIVED   if the lines had it
"""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.casting import pair, widened
from draindown.spark.contract.containers import in_field
from draindown.spark.contract.json_rows import TIMES
from draindown.spark.contract.json_text import JsonText
from draindown.spark.sources.readers import PLACE, InputFile, by_header, columnar_groups, read_multiline, read_text
from draindown.spark.sql import literal, quoted, try_eval
from draindown.spec.models import FlowSpec

ARRIVED = "_arrived"
"""Microseconds since the epoch at which a line's file was first seen, for lines that don't share the batch's time."""
_STRICT_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_STRICT_SQL = f"map({', '.join(literal(part) for option in _STRICT_JSON.items() for part in option)})"
_EXTRA_CELLS = 64
_WHITE = " \\t\\r\\n\\u000B\\f"
_ROW_JSON = {**TIMES, "ignoreNullFields": "false"}
_NOTHING = "cast(null as string)"


@dataclass(frozen=True)
class Records:
    """A frame as the module describes it, with access to its cells.

    `cell`: maps a column's name to its cell, typed or text to be cast; `raw`: the record as it came; `size`: bytes of
    its text and binary values, to compare with `max_record_bytes`; `whole_text`: `raw` is text whose encoding must be
    verified.
    """

    frame: DataFrame
    cell: Callable[[str], Column]
    raw: Column
    size: Column
    whole_text: bool = True


_NOTHING_KNOWN = Known()


def read(
    spark: SparkSession, flow: FlowSpec, files: Sequence[InputFile], spool: str, known: Known = _NOTHING_KNOWN
) -> list[Records]:
    """Read the records of the batch's files. Returns one entry per distinct header or file schema.

    `spool`: directory for copies that are read in place of files until the batch is done; `known`: drift that was
    reported before.
    """
    if flow.source.format in ("parquet", "orc"):
        groups = columnar_groups(spark, files, flow.source.format, flow.columns, spool)
        return [_columnar(frame, flow, known) for frame in groups]
    if flow.source.format == "csv":
        return [_csv(_csv_lines(spark, group, flow, spool), flow, header, known) for header, group in by_header(files)]
    return [from_lines(read_text(spark, files), flow, known=known)]


def from_lines(lines: DataFrame, flow: FlowSpec, header: str | None = None, known: Known = _NOTHING_KNOWN) -> Records:
    """Return the records of a frame with `value`, PLACE and optionally ARRIVED. `header`: of the lines' CSV file."""
    match flow.source.format:
        case "json":
            return _json(lines, flow, known)
        case "csv":
            return _csv(lines, flow, header, known)
        case "text":
            return _text(lines, flow)
        case _:
            return _json_rows(lines, flow, known)


def _csv_lines(spark: SparkSession, files: Sequence[InputFile], flow: FlowSpec, spool: str) -> DataFrame:
    """Return CSV records as `value`, with PLACE. Files with line ends inside quotes are split into records."""
    plain = [file for file in files if not file.multiline]
    folded = [file for file in files if file.multiline]
    frames = [read_text(spark, plain)] if plain else []
    if folded:
        frames.append(read_multiline(spark, folded, flow.source.delimiter, flow.source.max_record_bytes, spool))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _base(lines: DataFrame, flow: FlowSpec) -> DataFrame:
    """Return lines as `_raw`, and as `value` those to be parsed: parsing one that is too large could fill the heap."""
    # leading only: trailing whitespace does not matter here, and trimming it would scan the line
    blank = F.expr(f"trim(LEADING '{_WHITE}' FROM value) = ''")
    frame = lines.withColumns({"_blank": blank, "_header": F.lit(False), "_raw": F.col("value")})
    fits = F.octet_length("value") <= flow.source.max_record_bytes
    return frame.withColumn("value", F.when(fits, F.col("value")))


def _finish(frame: DataFrame, broken: Column, unknown: Column, drift: Column, *keep: str) -> DataFrame:
    marks = F.when(~F.col("_blank"), drift).alias("_drift")
    as_is = ["_raw", "_blank", "_header", *PLACE, *(name for name in frame.columns if name == ARRIVED)]
    return frame.select(*as_is, broken.alias("_broken"), unknown.alias("_unknown"), marks, *keep)


def _json(lines: DataFrame, flow: FlowSpec, known: Known) -> Records:
    # Spark ignores text after a complete value, so a second object on a line would vanish. Therefore the line is parsed
    # as the first item of an array, and the second item, which has a random key, must be intact.
    mark = secrets.token_hex(8)
    wrapped = F.concat(F.lit("["), F.col("value"), F.lit(f',{{"{mark}":""}}]'))
    frame = _base(lines, flow).withColumn("_a", F.from_json(wrapped, "array<map<string,string>>", _STRICT_JSON))
    frame = frame.withColumn("_m", F.expr(f"if(size(_a) = 2 and get(_a, 1)['{mark}'] = '', _a[0], null)"))
    names = [literal(name) for name in flow.columns]
    named = " + ".join(f"int(map_contains_key(_m, {name}))" for name in names)
    frame = frame.withColumn("_more", F.expr(f"size(_m) > {named}"))
    broken = F.when(F.col("_m").isNull(), F.lit("not one JSON object")).when(
        F.expr("_more and size(array_distinct(map_keys(_m))) < size(_m)"), F.lit("a key stands twice")
    )
    unknown = F.when(
        F.col("_more"), F.expr(f"to_json(map_filter(_m, (k, v) -> not array_contains(array({', '.join(names)}), k)))")
    )
    texts = JsonText([name for name, column in flow.columns.items() if column.type == "json"])
    if texts.names:
        frame = frame.withColumn("_json", texts.parsed("value", _STRICT_JSON))
    exact = [name for name, column in flow.columns.items() if "decimal" in column.type]
    if exact:  # a JSON number that is read as a string passes through a double
        schema = ", ".join(f"{quoted(name)} {widened(flow.columns[name].type)}" for name in exact)
        frame = frame.withColumn("_exact", F.from_json("value", schema, _STRICT_JSON))

    def cell(name: str) -> Column:
        text, kind = f"_m[{literal(name)}]", flow.columns[name].type
        if kind == "json":
            return texts.of("_json", name)
        if name in exact:
            return pair(F.expr(text), F.col(f"_exact.{quoted(name)}"))
        if kind in ("string", "binary"):  # for other types the cast of an object's or array's text fails anyway
            return pair(F.expr(text), F.when(~in_field("_raw", name, text, _STRICT_SQL), F.expr(text)))
        return F.expr(text)

    kept = ["_m", *(["_json"] if texts.names else []), *(["_exact"] if exact else [])]
    marks = drift_marks.of_map(flow, known)
    return Records(_finish(frame, broken, unknown, marks, *kept), cell, F.col("_raw"), F.octet_length("_raw"))


def _header(flow: FlowSpec, header: str | None) -> tuple[list[str], str | None]:
    """Return the column names in a header record, and what is wrong with it, or None."""
    if not flow.source.header or header is None:
        return list(flow.columns), None
    try:
        # not splitlines, which also splits at characters such as U+2028
        names = next(csv.reader(io.StringIO(header, newline=""), delimiter=flow.source.delimiter), [])
    except csv.Error as error:
        return [], f"the header can't be read: {error}"
    names = [name.strip() or f"_c{i}" for i, name in enumerate(names)]
    if not set(names) & set(flow.columns):
        return names, "the header names no column of the contract"
    if len(set(names)) < len(names):
        return names, "the header names a column twice"
    return names, None


def _csv(lines: DataFrame, flow: FlowSpec, header: str | None, known: Known) -> Records:
    separator = flow.source.delimiter
    names, wrong = _header(flow, header)
    options = {"sep": separator, "columnNameOfCorruptRecord": "_bad", "quote": '"', "escape": '"'}
    frame = _base(lines, flow)
    # a first line that names no column of the contract may be a record; it is refused like the others
    if flow.source.header and header is not None and set(names) & set(flow.columns):
        same = F.col("_raw") if "\ufffd" not in header else F.make_valid_utf8(F.col("_raw"))
        frame = frame.withColumn("_header", same == F.lit(header))
        frame = frame.withColumn("_blank", F.col("_blank") | F.col("_header"))
    cells = [f"c{i}" for i in range(max(len(names), 1))]
    frame = frame.withColumn("_c", F.from_csv("value", ", ".join(f"{c} string" for c in [*cells, "_bad"]), options))
    # a random mark appended as the last cell gives the number of cells: Spark does not tell empty from absent ones
    mark = secrets.token_hex(8)
    more = [f"c{i}" for i in range(len(cells) + _EXTRA_CELLS + 1)]
    marked = F.concat(F.col("value"), F.lit(separator + mark))
    every = F.from_csv(marked, ", ".join(f"{c} string" for c in more), options)
    frame = frame.withColumn("_all", F.when(F.col("_c._bad").isNotNull(), every))
    frame = frame.withColumn("_all", F.expr(f"if(_all is null, null, array({', '.join(f'_all.{c}' for c in more)}))"))
    frame = frame.withColumn("_count", F.expr(f"array_position(_all, '{mark}') - 1"))
    drift = drift_marks.of_names(names, flow, known, (_extra_name(names), F.col("_count") > len(names)))
    frame = _finish(frame, _broken_csv(len(names), wrong), _unknown_csv(names, flow), drift, "_c")
    place = {name: f"_c.c{i}" for i, name in enumerate(names)}

    def cell(name: str) -> Column:
        return F.col(place[name]) if name in place else F.expr(_NOTHING)

    return Records(frame, cell, F.col("_raw"), F.octet_length("_raw"))


def _broken_csv(width: int, wrong: str | None) -> Column:
    count = F.col("_count")
    shown = F.concat(count.cast("string"), F.lit(f" cells under a header of {width}"))
    return (
        F.when(F.lit(wrong is not None), F.lit(wrong))
        .when(F.expr("(length(value) - length(replace(value, '\"', ''))) % 2 = 1"), F.lit("a quote is not closed"))
        .when(count == -1, F.lit(f"more than {width + _EXTRA_CELLS} cells under a header of {width}"))
        .when(count < width, shown)
    )


def _unknown_csv(names: Sequence[str], flow: FlowSpec) -> Column:
    """Return JSON of the cells whose names are not in the contract, and of surplus cells as `_extra`."""
    width = len(names)
    entries = [F.col(f"_c.c{i}").alias(name) for i, name in enumerate(names) if name not in flow.columns]
    extra = F.expr(f"if(_count > {width}, slice(_all, {width + 1}, int(_count - {width})), null)")
    unknown = F.to_json(F.struct(*entries, extra.alias(_extra_name(names))))
    return F.when(unknown != "{}", unknown)


def _extra_name(names: Sequence[str]) -> str:
    return "_extra" if "_extra" not in names else "_extra_cells"


def _text(lines: DataFrame, flow: FlowSpec) -> Records:
    nothing = F.expr(_NOTHING)
    raw = F.col("_raw")
    frame = _finish(_base(lines, flow), nothing, nothing, drift_marks.nothing())
    return Records(frame, lambda _: raw, raw, F.octet_length(raw))


def _columnar(rows: DataFrame, flow: FlowSpec, known: Known) -> Records:
    """Return the records of a frame that `columnar_groups` returned."""
    own = rows.select("_row.*").columns
    unknown = F.to_json("_more", _ROW_JSON | {"ignoreNullFields": "true"})
    unknown = unknown if "_more" in rows.columns else F.expr(_NOTHING)
    frame = rows.select(
        "_row",
        "_size",
        F.lit(False).alias("_blank"),
        F.lit(False).alias("_header"),
        F.expr(_NOTHING).alias("_broken"),
        F.when(unknown != "{}", unknown).alias("_unknown"),
        drift_marks.of_names(own, flow, known).alias("_drift"),
        *PLACE,
    )

    def cell(name: str) -> Column:
        return F.col(f"_row.{quoted(name)}") if name in own else F.expr(_NOTHING)

    return Records(frame, cell, F.to_json("_row", _ROW_JSON), F.col("_size"), whole_text=False)


def _json_rows(lines: DataFrame, flow: FlowSpec, known: Known) -> Records:
    """Return the records of quarantined rows of a columnar file, kept as JSON with binary values in base64."""
    held = _json(lines, flow, known)

    def cell(name: str) -> Column:
        if flow.columns[name].type != "binary":
            return held.cell(name)
        return try_eval(lines.sparkSession, f"unbase64(_m[{literal(name)}])")

    return Records(held.frame, cell, held.raw, held.size)
