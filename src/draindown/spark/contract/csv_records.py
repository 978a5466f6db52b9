"""Records of CSV: cells by name of the header, or by place. A record that RFC 4180 or its dialect
doesn't know is none.

Not by `from_csv`, which takes quotes where none can stand, rewrites line ends within cells, doesn't
tell `""` from nothing, and ends the batch at 20,480 cells. Most records hold no quote: they are
split at their delimiters. Of the others a regular expression finds the cells, and the record is one
if they are all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.config.dialect import BLANKS, Dialect, header_cells
from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import NOTHING, Records, finish, of_lines
from draindown.spark.sources.port import Read
from draindown.spark.sql import literal

_CELLS = "_c"
_BOM = "\ufeff"


class CsvRecords:
    """The reader of CSV."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return the records under their header."""
        return _records(read.frame, flow, read.header, known)


def _header(flow: FlowSpec, header: str | None) -> tuple[list[str], str | None]:
    """The names that a header record gives to cells, and what is wrong with it."""
    if not flow.source.has_header or header is None:
        return list(flow.columns), None
    cells = flow.source.dialect.cells(header)
    if cells is None:
        return [], "the header can't be read: it has quotes where none can stand"
    names = [(cell or "").strip() or f"_c{i}" for i, cell in enumerate(cells)]
    if not set(names) & set(flow.columns):
        return names, "the header names no column of the contract"
    if len(set(names)) < len(names):
        return names, "the header names a column twice"
    return names, None


def _records(lines: DataFrame, flow: FlowSpec, header: str | None, known: Known) -> Records:
    dialect = flow.source.dialect
    names, wrong = _header(flow, header)
    frame = of_lines(lines, flow)
    # a first line that names no column may be a record: it is refused like those after it
    if flow.source.has_header and header is not None and set(names) & set(flow.columns):
        frame = frame.withColumn(
            "_blank", F.col("_blank") | F.coalesce(_repeats(dialect, header), F.lit(False))
        )
    frame = frame.withColumn(_CELLS, F.expr(_cells(dialect)))
    named = not wrong and set(names) - set(flow.columns)
    unknown = _unknown(names, flow) if named else F.expr(NOTHING)
    broken = _broken(dialect, len(names), wrong)
    place = {name: at for at, name in enumerate(names)}

    def value(name: str) -> str:
        return _value(dialect, f"get({_CELLS}, {place[name]})") if name in place else NOTHING

    # names of a header that can't be used are no names: they may be the cells of a record
    marks = drift_marks.nothing() if wrong else drift_marks.of_names(names, flow, known, value)
    frame = finish(frame, broken, unknown, marks, _CELLS)

    def cell(name: str) -> Column:
        return F.expr(value(name))

    return Records(frame, cell, F.col("_raw"), F.octet_length("_raw"))


def _repeats(dialect: Dialect, header: str) -> Column:
    """Return whether a record has the cells of the header: each without blanks around it, empty
    ones at the end apart.

    Few records have the longest name in them: the cells of the others are not looked at.
    """
    names = header_cells(dialect.cells(header) or [])
    value = "value" if "\ufffd" not in header else "make_valid_utf8(value)"
    # the header of a file that was appended to another one may have its byte order mark in front
    value = f"if(startswith({value}, {literal(_BOM)}), substring({value}, 2), {value})"
    plain = [name for name in names if not set(name) & {*dialect.marks}]
    is_likely = f"contains({value}, {literal(max(plain, key=len, default=''))})"
    bare = f"btrim(coalesce({_value(dialect, 'cell')}, ''), {literal(BLANKS)})"
    trimmed = f"transform({_cells(dialect, value)}, cell -> {bare})"
    cells = f"slice({trimmed}, 1, {len(names)})"
    rest = f"array_remove(slice({trimmed}, {len(names) + 1}, size({trimmed})), '')"
    is_whole = f"array_join({_cells(dialect, value)}, {literal(dialect.delimiter)}) = {value}"
    # no SQL text: Spark would replace ${}
    wanted = F.from_json(F.lit(json.dumps(names)), "array<string>")
    same = F.expr(f"{is_whole} and size({rest}) = 0") & (F.expr(cells) == wanted)
    return F.when(F.expr(is_likely), same).otherwise(F.lit(False))


def _cells(dialect: Dialect, value: str = "value") -> str:
    """Return the cells of a record with their quotes, as SQL."""
    mark = literal(dialect.delimiter)
    simple = f"split({value}, {literal(_pattern(dialect.delimiter))}, -1)"
    if not dialect.marks:
        return simple
    cell = literal(f"{_pattern(dialect.delimiter)}({dialect.cell(possessive=True)})")
    return f"if({_is_marked(dialect, value)}, regexp_extract_all(concat({mark}, {value}), {cell}, 1), {simple})"


def _is_marked(dialect: Dialect, value: str = "value") -> str:
    return " or ".join(f"contains({value}, {literal(mark)})" for mark in dialect.marks)


def _pattern(character: str) -> str:
    """Return the regular expression of a character; Java splits fastest at one that is escaped only
    if it must be.
    """
    return f"\\{character}" if character.isascii() and not character.isspace() else character


def _value(dialect: Dialect, cell: str) -> str:
    """Return the value of a cell as SQL: without its quotes, NULL for one that has none."""
    bare = f"nullif({cell}, {literal(dialect.null)})"
    if dialect.quote is None:
        return bare
    inner = f"substring({cell}, 2, length({cell}) - 2)"
    if dialect.escape is None:
        within = f"replace({inner}, {literal(dialect.quote * 2)}, {literal(dialect.quote)})"
    else:
        escaped = (
            f"{_pattern(dialect.escape)}([{_pattern(dialect.quote)}{_pattern(dialect.escape)}])"
        )
        within = f"regexp_replace({inner}, {literal(escaped)}, '$1')"
    return f"if(startswith({cell}, {literal(dialect.quote)}), {within}, {bare})"


def _broken(dialect: Dialect, width: int, wrong: str | None) -> Column:
    count = F.size(_CELLS)
    shown = F.concat(count.cast("string"), F.lit(f" cells under a header of {width}"))
    result = F.when(F.lit(wrong is not None), F.lit(wrong))
    if dialect.marks:
        whole = f"array_join({_CELLS}, {literal(dialect.delimiter)}) = value"
        result = result.when(
            F.expr(f"({_is_marked(dialect)}) and not {whole}"), _misquoted(dialect)
        )
    # a delimiter at the end is no cell
    surplus = f"slice({_CELLS}, {width + 1}, size({_CELLS}))"
    for empty in dict.fromkeys(("", dialect.null, (dialect.quote or "") * 2)):
        surplus = f"array_remove({surplus}, {literal(empty)})"
    filled = f"size({surplus}) > 0"
    return result.when(count < width, shown).when((count > width) & F.expr(filled), shown)


def _misquoted(dialect: Dialect) -> Column:
    """Return what is wrong with a record of which the cells are not all."""
    if dialect.quote is None:
        return F.lit(None)
    quote = literal(dialect.quote)
    odd = F.expr(f"(length(value) - length(replace(value, {quote}, ''))) % 2 = 1")
    held = "a quote or a backslash" if dialect.escape else "a quote"
    return F.when(odd, F.lit("a quote is not closed")).otherwise(
        F.lit(f"{held} where none can stand")
    )


def _unknown(names: Sequence[str], flow: FlowSpec) -> Column:
    """JSON of the cells under names that the contract lacks."""
    named = {at: name for at, name in enumerate(names) if name not in flow.columns}
    # by place, not one expression per name: there may be thousands
    value = _value(flow.source.dialect, f"get({_CELLS}, at)")
    values = f"transform(array({', '.join(map(str, named))}), at -> {value})"
    # no SQL text: Spark would replace ${}
    keys = F.from_json(F.lit(json.dumps(list(named.values()))), "array<string>")
    unknown = F.to_json(
        F.map_filter(F.map_from_arrays(keys, F.expr(values)), lambda _, cell: cell.isNotNull())
    )
    return F.when(unknown != "{}", unknown)
