"""Rows of files with types of their own as the quarantine keeps them: JSON, and beside it what JSON
does not tell.

That is the type of the row, by which a replay reads the values that the file had, whatever the
contract says by then, and the columns whose times were cut.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from draindown.spark.contract.json_rows import TIMES
from draindown.spark.sources.place import ARRIVED, CUT, FIRST_SEEN, PLACE
from draindown.spark.sql import bytes_of, ddl, quoted, tried

LOST = "_lost"
"""Why a row can't be read as it was kept; NULL for one that can."""
_JSON = {
    **TIMES,
    "ignoreNullFields": "false",
    "timeZone": "UTC",
}  # the offsets of zones may have seconds
_OPENING = '{"row":'
REPLACED = "it holds U+FFFD, in the place of bytes that were no UTF-8: deliver the row again"
_OTHER = "its values can't be read from JSON as they were: deliver the row again"
_KEYS = (StringType, BooleanType, NumericType, DateType, TimestampType)
"""Types of which the key of a map can be read from its text."""


def raw() -> Column:
    """Return the text that is kept of `_row`."""
    return F.to_json("_row", _JSON)


def shape(rows: DataFrame) -> Column:
    """Return what is kept beside it, as JSON; NULL if the rows have keys of maps that no text
    tells.
    """
    kind = rows.schema["_row"].dataType
    if not _has_texts_for_keys(kind):
        return F.lit(None).cast("string")
    cut = F.col(CUT) if CUT in rows.columns else F.lit(None).cast("array<string>")
    return F.to_json(F.struct(F.lit(ddl(kind)).alias("row"), cut.alias("cut")))


def row_type(kept: str | None) -> str | None:
    """Return the type of a row, as DDL, of what `shape` returned; None for anything else."""
    return str(json.loads(kept)["row"]) if kept and kept.startswith(_OPENING) else None


def cut(kept: str) -> Column:
    """Return CUT of what `shape` returned. `kept`: name of the column."""
    return F.from_json(kept, "cut array<string>")["cut"]


def read_back(lines: DataFrame, row: str, known: Collection[str]) -> DataFrame:
    """Return the rows that `value` holds, as a typed `Read` has them, with `_raw` and LOST.

    `row`: their type, as DDL. `known`: the columns that the contract names.
    """
    kind = DataType.fromDDL(row)
    text_keys = _with_text_keys(kind)
    assert isinstance(kind, StructType) and isinstance(text_keys, StructType)
    found = F.from_json("value", text_keys, _JSON)
    if text_keys != kind:
        found = tried(lines.sparkSession, _with_own_keys(found, kind))
    frame = lines.withColumn("_row", found)
    lost = F.when(F.contains("value", F.lit("\ufffd")), F.lit(REPLACED))
    # a value that JSON has no form for would become NULL, which is a value of most columns
    lost = lost.when(~F.to_json("_row", _JSON).eqNullSafe(F.col("value")), F.lit(_OTHER))
    more = [F.col(f"_row.{quoted(name)}").alias(name) for name in kind.names if name not in known]
    return frame.select(
        "_row",
        _size(kind).alias("_size"),
        *([F.struct(*more).alias("_more")] if more else []),
        F.col("value").alias("_raw"),
        lost.alias(LOST),
        *[name for name in (CUT, FIRST_SEEN, ARRIVED) if name in lines.columns],
        *PLACE,
    )


def _size(row: StructType) -> Column:
    """Return the bytes of a row's strings and binaries, as the reader of files counts them."""
    texts = [field.name for field in row if isinstance(field.dataType, StringType | BinaryType)]
    return F.expr(bytes_of([f"_row.{quoted(name)}" for name in texts]))


def _has_texts_for_keys(kind: DataType) -> bool:
    match kind:
        case MapType():
            return isinstance(kind.keyType, _KEYS) and _has_texts_for_keys(kind.valueType)
        case ArrayType():
            return _has_texts_for_keys(kind.elementType)
        case StructType():
            return all(_has_texts_for_keys(field.dataType) for field in kind)
        case _:
            return True


def _with_text_keys(kind: DataType) -> DataType:
    """Return the type as which JSON is parsed: Spark parses maps with keys of text only."""
    match kind:
        case MapType():
            return MapType(StringType(), _with_text_keys(kind.valueType))
        case ArrayType():
            return ArrayType(_with_text_keys(kind.elementType))
        case StructType():
            return StructType(
                [StructField(field.name, _with_text_keys(field.dataType)) for field in kind]
            )
        case _:
            return kind


def _with_own_keys(value: Column, kind: DataType) -> Column:
    """Return a value of the type `_with_text_keys(kind)` as `kind`; an error if two keys are
    one.
    """
    if _with_text_keys(kind) == kind:
        return value
    match kind:
        case MapType():
            keys = F.transform(F.map_keys(value), lambda key: _key(key, kind.keyType))
            items = F.transform(
                F.map_values(value), lambda item: _with_own_keys(item, kind.valueType)
            )
            return F.map_from_arrays(keys, items)
        case ArrayType():
            return F.transform(value, lambda item: _with_own_keys(item, kind.elementType))
        case StructType():
            own = [_with_own_keys(value.getField(f.name), f.dataType).alias(f.name) for f in kind]
            return F.when(value.isNotNull(), F.struct(*own))
        case _:
            return value


def _key(text: Column, kind: DataType) -> Column:
    """Return the key of a map, of which `to_json` wrote the days since 1970 if it is a date,
    microseconds if a time.
    """
    match kind:
        case DateType():
            return F.date_from_unix_date(text.cast("int"))
        case TimestampType():
            return F.timestamp_micros(text.cast("bigint"))
        case _:
            return text.cast(kind)
