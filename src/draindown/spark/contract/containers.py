"""Find JSON objects and arrays where the contract names a string.

For a string column `from_json` returns the text of an object or array as if it had been a JSON string (SPARK-48148).
Two steps tell them apart. A text that does not start and end like an object or array was a string: this check costs
almost nothing. Only for the others the JSON is parsed again, as a type that keeps the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from draindown.spark.sql import literal, quoted

_LIKE_NESTED = "(startswith({0}, '{{') and endswith({0}, '}}') or startswith({0}, '[') and endswith({0}, ']'))"
_Leaf = Callable[[Column], Column]


def in_field(line: str, name: str, text: str, options: str) -> Column:
    """Return whether a field of a JSON object is itself an object or array.

    `line`: SQL expression of the JSON text; `text`: SQL expression of the field as a string; `options`: SQL map.
    """

    def is_a(kind: str) -> str:
        return f"from_json({line}, {literal(f'{quoted(name)} {kind}')}, {options}).{quoted(name)} is not null"

    is_nested = f"if(startswith({text}, '{{'), {is_a('map<string,string>')}, {is_a('array<string>')})"
    return F.expr(f"if({_LIKE_NESTED.format(text)}, {is_nested}, false)")


def without(value: Column, kind: DataType, variant: Column, path: str) -> Column:
    """Return a nested value of type `kind`; NULL if one of its strings was an object or array.

    `variant`, a column of type variant, holds the same JSON at `path`.
    """
    if _shape(kind) is None:
        return value

    def confirmed(shaped: Column) -> Column:
        return shaped.isNull() | _any(shaped, kind, lambda leaf: F.schema_of_variant(leaf).rlike("^(OBJECT|ARRAY)<"))

    def checked(once: Column) -> Column:
        shaped = F.try_variant_get(variant, path, _shape(kind) or "")
        return F.when(~_any(once, kind, _is_like_nested) | ~F.exists(F.array(shaped), confirmed), once)

    # a lambda binds the value: the optimizer may evaluate an expression that occurs twice two times
    return F.transform(F.array(value), checked)[0]


def has_text(kind: DataType) -> bool:
    """Return whether a value of the type holds strings at any depth, keys of maps included."""
    if isinstance(kind, ArrayType):
        return has_text(kind.elementType)
    if isinstance(kind, MapType):
        return has_text(kind.keyType) or has_text(kind.valueType)
    if isinstance(kind, StructType):
        return any(has_text(field.dataType) for field in kind)
    return isinstance(kind, StringType)


def any_text(value: Column, kind: DataType, leaf: _Leaf) -> Column:
    """Return whether `leaf` is true for any string of a value, keys of maps included. The result is never NULL."""
    if not has_text(kind):
        return F.lit(False)
    if isinstance(kind, ArrayType):
        found = F.exists(value, lambda item: any_text(item, kind.elementType, leaf))
    elif isinstance(kind, MapType):
        parts = (F.map_keys(value), kind.keyType), (F.map_values(value), kind.valueType)
        found = reduce(or_, (any_text(items, ArrayType(held), leaf) for items, held in parts))
    elif isinstance(kind, StructType):
        found = reduce(or_, (any_text(value[field.name], field.dataType, leaf) for field in kind))
    else:
        found = leaf(value)
    return F.coalesce(found, F.lit(False))


def _is_like_nested(text: Column) -> Column:
    return (text.startswith("{") & text.endswith("}")) | (text.startswith("[") & text.endswith("]"))


def _shape(kind: DataType) -> str | None:
    """Return the DDL of a nested type reduced to its strings, as variants; None if it has no strings."""
    if isinstance(kind, StringType):
        return "variant"
    if isinstance(kind, ArrayType):
        inner = _shape(kind.elementType)
        return inner and f"array<{inner}>"
    if isinstance(kind, MapType):
        inner = _shape(kind.valueType)
        return inner and f"map<string,{inner}>"
    if isinstance(kind, StructType):
        shapes = {field.name: _shape(field.dataType) for field in kind}
        fields = ",".join(f"{quoted(name)}: {shape}" for name, shape in shapes.items() if shape)
        return f"struct<{fields}>" if fields else None
    return None


def _any(value: Column, kind: DataType, leaf: _Leaf) -> Column:
    """Return whether `leaf` is true for any string within a value of type `kind`. The result is never NULL."""
    if isinstance(kind, ArrayType):
        found = F.exists(value, lambda item: _any(item, kind.elementType, leaf))
    elif isinstance(kind, MapType):
        found = F.exists(F.map_values(value), lambda item: _any(item, kind.valueType, leaf))
    elif isinstance(kind, StructType):
        found = reduce(or_, (_any(value[f.name], f.dataType, leaf) for f in kind if _shape(f.dataType)), F.lit(False))
    else:
        found = leaf(value)
    return F.coalesce(found, F.lit(False))
