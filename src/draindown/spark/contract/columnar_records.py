"""Records of Parquet and ORC: typed columns; the raw text of a record is its row as JSON (see
`kept_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import containers, drift_marks, kept_rows
from draindown.spark.contract.json_records import json_records
from draindown.spark.contract.json_rows import TIMES
from draindown.spark.contract.record_frame import NOTHING, Records
from draindown.spark.contract.typed_values import is_nested, unnamed
from draindown.spark.sources.place import ARRIVED, CUT, FIRST_SEEN, PLACE
from draindown.spark.sources.port import Read
from draindown.spark.sql import literal, quoted, try_eval

_RESCUED = {**TIMES, "ignoreNullFields": "true"}


class ColumnarRecords:
    """The reader of formats with types of their own."""

    def records(self, read: Read, flow: FlowSpec, known: Known) -> Records:
        """Return rows by their columns, as the file had them or as the quarantine kept them."""
        if read.typed:
            return replace(_records(read.frame, flow, known), shape=kept_rows.shape(read.frame))
        if read.shape is not None:
            return _records(kept_rows.read_back(read.frame, read.shape, flow.columns), flow, known)
        return _of_json(read.frame, flow, known)


def _of_json(lines: DataFrame, flow: FlowSpec, known: Known) -> Records:
    """Records of rows of which the JSON alone was kept, without the types of the file. In it bytes
    are base64.
    """
    held = json_records(lines, flow, known, base64=True)
    # `_broken` of other records first: this one alone would hide why it is none
    replaced = F.when(F.contains(F.col("_raw"), F.lit("\ufffd")), F.lit(kept_rows.REPLACED))
    frame = held.frame.withColumn("_broken", F.coalesce(F.col("_broken"), replaced))

    def cell(name: str) -> Column:
        if flow.columns[name].type != "binary":
            return held.cell(name)
        return try_eval(lines.sparkSession, f"unbase64(_m[{literal(name)}])")

    return Records(frame, cell, held.raw, held.size)


def _records(rows: DataFrame, flow: FlowSpec, known: Known) -> Records:
    """Records of a typed frame, as `Read` describes it."""
    own = rows.select("_row.*").schema
    kept = kept_rows.LOST in rows.columns
    broken = _broken(rows.schema["_row"].dataType, flow)
    nested = dict(_unnamed(own, flow))
    names = [*own.names, *(path for some in nested.values() for path in some)]
    frame = rows.select(
        "_row",
        "_size",
        F.lit(False).alias("_blank"),
        (F.coalesce(broken, F.col(kept_rows.LOST)) if kept else broken).alias("_broken"),
        _unknown(rows, nested, exact=flow.grows).alias("_unknown"),
        drift_marks.of_names(names, flow, known, _text).alias("_drift"),
        *[name for name in ("_raw", CUT, FIRST_SEEN, ARRIVED) if name in rows.columns],
        *PLACE,
    )

    def cell(name: str) -> Column:
        return F.col(f"_row.{quoted(name)}") if name in own.names else F.expr(NOTHING)

    raw = F.col("_raw") if kept else kept_rows.raw()
    return Records(frame, cell, raw, F.col("_size"), whole_text=False)


def _text(name: str) -> str:
    return f"cast(_more.{quoted(name)} as string)"


def _unnamed(own: StructType, flow: FlowSpec) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the columns with fields that the contract's structs do not name: conditions on a row by
    path.
    """
    for name, column in flow.columns.items():
        if name in own.names and column.is_nested:
            kind = DataType.fromDDL(column.type)
            if found := dict(unnamed(f"_row.{quoted(name)}", own[name].dataType, kind, name)):
                yield name, found


def _unknown(rows: DataFrame, nested: Mapping[str, Mapping[str, str]], *, exact: bool) -> Column:
    """Return the JSON of columns without a name in the contract; one with such a field within is
    kept whole.

    `exact`: write values with decimals as text. Whoever reads a field of JSON as text gets a number
    through a double.
    """
    more = rows.select("_more.*").schema if "_more" in rows.columns else StructType()
    parts = [
        _rescued(f"_more.{quoted(field.name)}", field.dataType, exact).alias(field.name)
        for field in more
    ]
    for name, paths in nested.items():
        parts.append(
            F.when(F.expr(" or ".join(paths.values())), F.col(f"_row.{quoted(name)}")).alias(name)
        )
    if not parts:
        return F.expr(NOTHING)
    unknown = F.to_json(F.struct(*parts), _RESCUED)
    return F.when(unknown != "{}", unknown)


def _rescued(value: str, kind: DataType, exact: bool) -> Column:
    if not exact or "decimal" not in kind.simpleString():
        return F.col(value)
    return F.to_json(value, _RESCUED) if is_nested(kind) else F.col(value).cast("string")


def _broken(row: DataType, flow: FlowSpec) -> Column:
    """Return which text of a row is not UTF-8, NULL if each is: Parquet and ORC don't see to it,
    and nor does Spark.

    Bytes that the contract takes as `binary` may be anything.
    """
    assert isinstance(row, StructType)
    bytes_are_meant = {name for name, column in flow.columns.items() if column.type == "binary"}
    result = F.when(F.lit(False), F.lit(""))
    for field in row:
        if containers.has_text(field.dataType) and field.name not in bytes_are_meant:
            value = F.col(f"_row.{quoted(field.name)}")
            wrong = containers.any_text(value, field.dataType, lambda text: ~F.is_valid_utf8(text))
            result = result.when(wrong, F.lit(f"not valid UTF-8 in column {field.name}"))
    return result
