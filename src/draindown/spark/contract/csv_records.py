"""Records of CSV: cells by name of the header, or by place."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import NOTHING, Records, finish, of_lines
from draindown.spark.sources.port import Read
from draindown.spec.models import FlowSpec

_EXTRA_CELLS = 64


class CsvRecords:
    """The reader of CSV."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return the records under their header."""
        return _records(read.frame, flow, read.header, known)


def _header(flow: FlowSpec, header: str | None) -> tuple[list[str], str | None]:
    """The names that a header record gives to cells, and what is wrong with it."""
    if not flow.source.has_header or header is None:
        return list(flow.columns), None
    try:
        # not splitlines: it also splits at what is no line end, such as U+2028
        names = next(csv.reader(io.StringIO(header, newline=""), delimiter=flow.source.delimiter), [])
    except csv.Error as error:
        return [], f"the header can't be read: {error}"
    names = [name.strip() or f"_c{i}" for i, name in enumerate(names)]
    if not set(names) & set(flow.columns):
        return names, "the header names no column of the contract"
    if len(set(names)) < len(names):
        return names, "the header names a column twice"
    return names, None


def _records(lines: DataFrame, flow: FlowSpec, header: str | None, known: Known) -> Records:
    separator = flow.source.delimiter
    names, wrong = _header(flow, header)
    options = {"sep": separator, "columnNameOfCorruptRecord": "_bad", "quote": '"', "escape": '"'}
    frame = of_lines(lines, flow)
    # a first line that names no column may be a record: it is refused like those after it
    if flow.source.has_header and header is not None and set(names) & set(flow.columns):
        same = F.col("_raw") if "\ufffd" not in header else F.make_valid_utf8(F.col("_raw"))
        frame = frame.withColumn("_blank", F.col("_blank") | (same == F.lit(header)))
    cells = [f"c{i}" for i in range(max(len(names), 1))]
    frame = frame.withColumn("_c", F.from_csv("value", ", ".join(f"{c} string" for c in [*cells, "_bad"]), options))
    # a last cell of our own, which no record holds, shows how many there are: Spark doesn't tell empty from absent
    mark = secrets.token_hex(8)
    more = [f"c{i}" for i in range(len(cells) + _EXTRA_CELLS + 1)]
    marked = F.concat(F.col("value"), F.lit(separator + mark))
    every = F.from_csv(marked, ", ".join(f"{c} string" for c in more), options)
    frame = frame.withColumn("_all", F.when(F.col("_c._bad").isNotNull(), every))
    frame = frame.withColumn("_all", F.expr(f"if(_all is null, null, array({', '.join(f'_all.{c}' for c in more)}))"))
    frame = frame.withColumn("_count", F.expr(f"array_position(_all, '{mark}') - 1"))
    drift = drift_marks.of_names(names, flow, known, (_extra_name(names), F.col("_count") > len(names)))
    frame = finish(frame, _broken_csv(len(names), wrong), _unknown_csv(names, flow), drift, "_c")
    place = {name: f"_c.c{i}" for i, name in enumerate(names)}

    def cell(name: str) -> Column:
        return F.col(place[name]) if name in place else F.expr(NOTHING)

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
    """JSON of the cells under names that the contract lacks, and of those beyond the header as `_extra`."""
    width = len(names)
    entries = [F.col(f"_c.c{i}").alias(name) for i, name in enumerate(names) if name not in flow.columns]
    extra = F.expr(f"if(_count > {width}, slice(_all, {width + 1}, int(_count - {width})), null)")
    unknown = F.to_json(F.struct(*entries, extra.alias(_extra_name(names))))
    return F.when(unknown != "{}", unknown)


def _extra_name(names: Sequence[str]) -> str:
    return "_extra" if "_extra" not in names else "_extra_cells"
