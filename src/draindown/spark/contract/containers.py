"""Find JSON objects, arrays and infinite numbers where the contract names a string.

For a string column `from_json` returns the text of an object or array as if it had been a JSON
string (SPARK-48148). Two steps tell them apart. A text that does not start and end like an object
or array was a string: this check costs almost nothing. Only for the others the JSON is parsed
again, as a type that keeps the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from draindown.spark.sql import literal, quoted

_LIKE_NESTED = (
    "(startswith({0}, '{{') and endswith({0}, '}}') or startswith({0}, '[') and endswith({0}, ']'))"
)
_Leaf = Callable[[Column], Column]


def in_field(line: str, name: str, text: str, options: str) -> Column:
    """Return whether a field of a JSON object is itself an object or array.

    `line`: SQL expression of the JSON text; `text`: SQL expression of the field as a string;
    `options`: SQL map.
    """

    def is_a(kind: str) -> str:
        return f"from_json({line}, {literal(f'{quoted(name)} {kind}')}, {options}).{quoted(name)} is not null"

    is_nested = (
        f"if(startswith({text}, '{{'), {is_a('map<string,string>')}, {is_a('array<string>')})"
    )
    return F.expr(f"if({_LIKE_NESTED.format(text)}, {is_nested}, false)")


def is_beyond_double(line: str, name: str, text: str, options: str) -> Column:
    """Return whether a field of a JSON object is a number such as 1e400, of which Spark makes the
    text `"Infinity"`.

    Arguments as for `in_field`.
    """
    parsed = f"from_json({line}, {literal(f'{quoted(name)} double')}, {options}).{quoted(name)} is not null"
    infinite = """('"Infinity"', '"-Infinity"', 'Infinity', '-Infinity')"""
    return F.expr(f"if({text} in {infinite}, {parsed}, false)")


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
    """Return whether `leaf` is true for any string of a value, keys of maps included. The result is
    never NULL.
    """
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
