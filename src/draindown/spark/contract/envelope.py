"""Columns that are taken from what a record came in: key, headers, timestamp, topic, partition,
offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from draindown.config.column_types import Column as ColumnSpec
from draindown.config.landing import FlowSpec
from draindown.flow.schema_drift import Known
from draindown.spark.contract import drift_marks
from draindown.spark.contract.record_frame import Records
from draindown.spark.sources.place import ENVELOPE, ENVELOPE_FIELDS
from draindown.spark.sql import literal

_BYTES = ("string", "binary")
_KEPT = "struct<key: string, headers: array<struct<key: string, value: string>>, timestamp: bigint>"
"""What the quarantine keeps of an envelope, as JSON: bytes in base64, the time in microseconds
since 1970.

Topic, partition and offset are the record's place.
"""


def encoded() -> Column:
    """Return a frame's ENVELOPE as the quarantine keeps it."""
    headers = f"transform({ENVELOPE}.headers, h -> struct(h.key as key, base64(h.value) as value))"
    kept = F.struct(
        F.base64(f"{ENVELOPE}.key").alias("key"),
        F.expr(headers).alias("headers"),
        F.unix_micros(f"{ENVELOPE}.timestamp").alias("timestamp"),
    )
    return F.to_json(kept)


def decoded(text: str) -> Column:
    """Return the ENVELOPE that the column `text` keeps of the record at PLACE."""
    kept = f"from_json({text}, '{_KEPT}')"
    headers = f"transform({kept}.headers, h -> struct(h.key as key, unbase64(h.value) as value))"
    fields = [
        f"unbase64({kept}.key) as key",
        f"{headers} as headers",
        f"timestamp_micros({kept}.timestamp) as timestamp",
        "regexp_extract(_unit, '^(.*)/', 1) as topic",
        "cast(regexp_extract(_unit, '/([0-9]+)$', 1) as int) as partition",
        "_id as offset",
    ]
    return F.expr(
        f"cast(named_struct({', '.join(_pair(field) for field in fields)}) as {ENVELOPE_FIELDS})"
    )


def _pair(field: str) -> str:
    value, _, name = field.rpartition(" as ")
    return f"'{name}', {value}"


def enveloped(records: Records, flow: FlowSpec, known: Known) -> Records:
    """Return records of which columns are read from what they came in. A text that is not there is
    not a broken one.

    Where it deletes, it lacks every column, as other deletes may: else no column could be one that
    a whole unit lacks.
    """
    has_text = F.col("_raw").isNotNull()
    lacking = drift_marks.nothing()
    if known.all_records and flow.deletes_by_null:
        lacking = drift_marks.of_names((), flow.as_recorded, known)
    marks = {
        "_broken": F.when(has_text, F.col("_broken")),
        "_drift": F.when(has_text, F.col("_drift")).otherwise(lacking),
    }
    return replace(
        records,
        frame=records.frame.withColumns(marks),
        cell=_cells(records.cell, flow),
        is_text=_text_cells(records.is_text, flow),
        without_value=~has_text,
    )


def _cells(of_text: Callable[[str], Column], flow: FlowSpec) -> Callable[[str], Column]:
    fields = flow.fields

    def cell(name: str) -> Column:
        column = flow.columns[name]
        return of_text(name) if name in fields else _taken(column, column.taken_from or "")

    return cell


def _text_cells(
    of_record: Callable[[str], Column] | None, flow: FlowSpec
) -> Callable[[str], Column] | None:
    fields = flow.fields
    return of_record and (lambda name: of_record(name) if name in fields else F.lit(True))


def _taken(column: ColumnSpec, place: str) -> Column:
    head, _, name = place.partition(":")
    if head == "key":
        return _text(F.col(f"{ENVELOPE}.key"), column)
    if head == "header":  # a key may stand several times: the last one counts
        last = f"try_element_at(filter({ENVELOPE}.headers, h -> h.key = {literal(name)}), -1).value"
        return _text(F.expr(last), column)
    return F.col(f"{ENVELOPE}.{head}")


def _text(found: Column, column: ColumnSpec) -> Column:
    """Return bytes as they are for a type that holds bytes, else as the text that is cast to the
    type.
    """
    return (
        found
        if column.type in _BYTES
        else F.when(F.is_valid_utf8(found.cast("string")), found.cast("string"))
    )
