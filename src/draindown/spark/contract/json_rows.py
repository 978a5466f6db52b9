"""A row of a table as JSON that holds all of it, and the row back from it; what doesn't come back the same is found.

Fields that are NULL are left out. Times are written to the microsecond, with their zone where they have one; bytes as
base64; NaN and infinities as strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from draindown.spark.sql import quoted

TIMES: Mapping[str, str] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options for JSON with all of a time: without formats of its own Spark writes milliseconds, and reads anything."""
_FORM: Mapping[str, str] = {
    **TIMES,
    "dateFormat": "yyyy-MM-dd",
    "timeZone": "UTC",
    "maxStringLen": str(2**31 - 1),
    "maxNestingDepth": "10000",
    "ignoreNullFields": "true",
}


def encode(columns: Sequence[str]) -> Column:
    """These columns of a row as one JSON object."""
    return F.to_json(F.struct(*[F.col(quoted(name)) for name in columns]), dict(_FORM))


def decode(json: Column, schema: StructType) -> Column:
    """The struct that `encode` made of such a row; a column that can't be read is NULL."""
    return F.from_json(json, schema, dict(_FORM))


def unwritable(schema: StructType) -> list[str]:
    """Columns whose type no JSON brings back: a map whose keys are no text."""
    return [field.name for field in schema if _has_odd_map(field.dataType)]


def comes_back(json: Column, schema: StructType) -> Column:
    """Whether `json`, made by `encode` of this row's columns, gives each of them back as it is."""
    back = decode(json, schema)
    same = [
        comparable(F.col(quoted(field.name)), field.dataType).eqNullSafe(
            comparable(back.getField(field.name), field.dataType)
        )
        for field in schema
    ]
    return reduce(Column.__and__, same)


def reads_as_written(json: Column, schema: StructType) -> Column:
    """Whether every field of `json` is a column of `schema` and is written the same again: nothing of it is lost."""
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
    """The value, its maps as arrays of their entries: Spark compares no maps."""
    match kind:
        case MapType(valueType=held):
            return F.transform(
                F.map_entries(value),
                lambda entry: F.struct(entry.getField("key"), comparable(entry.getField("value"), held)),
            )
        case ArrayType(elementType=element):
            return F.transform(value, lambda one: comparable(one, element))
        case StructType():
            fields = [comparable(value.getField(f.name), f.dataType).alias(f"f{i}") for i, f in enumerate(kind)]
            return F.when(value.isNotNull(), F.struct(*fields))
        case _:
            return value
