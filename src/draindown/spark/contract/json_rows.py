"""Convert a table's row to JSON without loss, and back; find rows for which the round trip is not
exact.

NULL fields are omitted. Times have microseconds, and their zone if they have one; binary values are
base64; NaN and infinities are strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from draindown.spark.sql import quoted

TIMES: Mapping[str, str] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""JSON options for times with microseconds: by default Spark writes milliseconds, and parses
leniently.
"""
_FORM: Mapping[str, str] = {
    **TIMES,
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "maxStringLen": str(2**31 - 1),
    "maxNestingDepth": "10000",
    "ignoreNullFields": "true",
}


def encode(columns: Sequence[str]) -> Column:
    """Return the columns of a row as one JSON object."""
    return F.to_json(F.struct(*[F.col(quoted(name)) for name in columns]), dict(_FORM))


def decode(json: Column, schema: StructType) -> Column:
    """Return the struct of a row that `encode` wrote; a column that can't be parsed is NULL."""
    return F.from_json(json, schema, dict(_FORM))


def decoded_as(json: Column, schema: StructType) -> Column:
    """Return the struct of a row that `encode` wrote of a table which may have had other types
    then.

    A value of another type is cast as its text; one that can't be cast is NULL.
    """
    row, texts = decode(json, schema), F.from_json(json, "map<string, string>", dict(_FORM))
    return F.struct(*[_value(row, texts, field).alias(field.name) for field in schema])


def _value(row: Column, texts: Column, field: StructField) -> Column:
    found = row.getField(field.name)
    if isinstance(field.dataType, ArrayType | MapType | StructType):
        return found
    return F.coalesce(found, F.try_element_at(texts, F.lit(field.name)).try_cast(field.dataType))


def unwritable(schema: StructType) -> list[str]:
    """Return the columns whose type JSON can't represent: maps with keys that are not strings."""
    return [field.name for field in schema if _has_odd_map(field.dataType)]


def comes_back(json: Column, schema: StructType) -> Column:
    """Return whether `json`, which `encode` made from this row, decodes to the same value of each
    column.
    """
    back = decode(json, schema)
    same = [
        comparable(F.col(quoted(field.name)), field.dataType).eqNullSafe(
            comparable(back.getField(field.name), field.dataType)
        )
        for field in schema
    ]
    return reduce(Column.__and__, same)


def reads_as_written(json: Column, schema: StructType) -> Column:
    """Return whether every field of `json` is a column of `schema`, and encodes to the same text
    again.
    """
    again = F.to_json(decode(json, schema), dict(_FORM))
    return _fields(json).eqNullSafe(_fields(again))


def _fields(json: Column) -> Column:
    return F.array_sort(F.map_entries(F.from_json(json, "map<string, string>", dict(_FORM))))


def _has_odd_map(kind: DataType) -> bool:
    match kind:
        case MapType():
            return not isinstance(kind.keyType, StringType) or _has_odd_map(kind.valueType)
        case ArrayType():
            return _has_odd_map(kind.elementType)
        case StructType():
            return any(_has_odd_map(field.dataType) for field in kind)
        case _:
            return False


def comparable(value: Column, kind: DataType) -> Column:
    """Return the value with each map as an array of entries, because Spark can't compare maps."""
    match kind:
        case MapType(valueType=held):
            return F.transform(
                F.map_entries(value),
                lambda entry: F.struct(
                    entry.getField("key"), comparable(entry.getField("value"), held)
                ),
            )
        case ArrayType(elementType=element):
            return F.transform(value, lambda one: comparable(one, element))
        case StructType():
            fields = [
                comparable(value.getField(f.name), f.dataType).alias(f"f{i}")
                for i, f in enumerate(kind)
            ]
            return F.when(value.isNotNull(), F.struct(*fields))
        case _:
            return value
