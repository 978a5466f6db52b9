"""Cast a value that has a type already, as those of Parquet and ORC: SQL expressions, NULL for what
does not fit.

A nested value is cast leaf by leaf, by the rule of a column of the leaf's type; it fails as a
whole. So these are expressions for `try_eval`: a leaf that does not fit raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from draindown.spark.contract import text_values
from draindown.spark.sql import ddl, literal, quoted

_TIMES = (TimestampType, TimestampNTZType)


def is_nested(kind: DataType) -> bool:
    """Return whether a type is an array, a map or a struct."""
    return isinstance(kind, ArrayType | MapType | StructType)


def from_value(value: str, held: DataType, kind: DataType, zone: str) -> str:
    """Return a SQL expression of type `kind`: the SQL expression `value`, of type `held`, or NULL.

    `zone`: the session's time zone. Of a nested `kind` the expression raises an error instead of
    giving NULL.
    """
    if is_nested(kind):
        return f"cast({_nested(value, held, kind, zone, 0)} as {ddl(kind)})"
    return _scalar(value, held, kind, zone)


def or_fail(value: str, cast: str, kind: str) -> str:
    """Return a cast of a leaf that raises an error where the leaf has a value and the cast gives
    none.
    """
    return f"coalesce({cast}, if({value} is null, null, {failure(kind)}))"


def map_of(keys: str, values: str, kind: DataType) -> str:
    """Return a map as a SQL expression; it raises an error if two keys are one as values of their
    type.

    Not left to Spark: its builder of maps isn't reset by that error, and fails for each later row
    of the task.
    """
    return f"if(size(array_distinct({keys})) < size({keys}), {failure(ddl(kind))}, map_from_arrays({keys}, {values}))"


def failure(kind: str) -> str:
    """Return a SQL expression of a type that raises an error."""
    return f"cast(raise_error('no {kind.partition('<')[0]}') as {kind})"


def unnamed(value: str, held: DataType, kind: DataType, path: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of structs within a value that `kind` does not name: each path, and a SQL
    condition.

    The condition holds if a field at that path has a value.
    """
    match held, kind:
        case StructType(), StructType():
            for field in held:
                inner, here = f"{value}.{quoted(field.name)}", f"{path}.{field.name}"
                if field.name in kind.names:
                    yield from unnamed(inner, field.dataType, kind[field.name].dataType, here)
                else:
                    yield here, f"{inner} is not null"
        case ArrayType(), ArrayType():
            for name, found in unnamed("e", held.elementType, kind.elementType, path):
                yield name, f"coalesce(exists({value}, e -> {found}), false)"
        case MapType(), MapType():
            for name, found in unnamed("e", held.valueType, kind.valueType, path):
                yield name, f"coalesce(exists(map_values({value}), e -> {found}), false)"


def _nested(value: str, held: DataType, kind: DataType, zone: str, depth: int) -> str:
    one = f"e{depth}"

    def inside(part: str, own: DataType, wanted: DataType) -> str:
        return _nested(part, own, wanted, zone, depth + 1)

    match held, kind:
        case ArrayType(), ArrayType():
            return f"transform({value}, {one} -> {inside(one, held.elementType, kind.elementType)})"
        case MapType(), MapType():
            keys = (
                f"transform(map_keys({value}), {one} -> {inside(one, held.keyType, kind.keyType)})"
            )
            values = f"transform(map_values({value}), {one} -> {inside(one, held.valueType, kind.valueType)})"
            # bound: Spark would evaluate keys that stand there thrice before, and an error there
            # ends the batch
            made = map_of(f"k{depth}", values, kind)
            return f"element_at(transform(array({keys}), k{depth} -> {made}), 1)"
        case StructType(), MapType(keyType=StringType()):  # what pandas makes of a dict
            names = ", ".join(literal(name) for name in held.names)
            values = ", ".join(
                inside(f"{value}.{quoted(f.name)}", f.dataType, kind.valueType) for f in held
            )
            entries = f"map_from_arrays(array({names}), array({values}))"
            return f"if({value} is null, null, map_filter({entries}, (k, v) -> v is not null))"
        case StructType(), StructType():
            return f"if({value} is null, null, named_struct({_fields(value, held, kind, zone, depth)}))"
        case _ if is_nested(held) or is_nested(kind):
            return f"if({value} is null, null, {failure(ddl(kind))})"
        case _:
            return or_fail(value, _scalar(value, held, kind, zone), kind.simpleString())


def _fields(value: str, held: StructType, kind: StructType, zone: str, depth: int) -> str:
    parts = []
    for field in kind:
        found = f"cast(null as {ddl(field.dataType)})"
        if field.name in held.names:
            own = held[field.name].dataType
            found = _nested(f"{value}.{quoted(field.name)}", own, field.dataType, zone, depth + 1)
        parts.append(f"{literal(field.name)}, {found}")
    return ", ".join(parts)


def _scalar(value: str, held: DataType, kind: DataType, zone: str) -> str:
    name = kind.simpleString()
    if is_nested(held):
        return f"cast(null as {name})"
    if isinstance(held, StringType):
        return _valid(value) if name == "string" else text_values.from_text(value, name, zone)
    if name in text_values.FINITE:
        return _floating(value, held, name)
    if held == kind:
        return text_values.within_years(value, name) if name in text_values.TIMES else value
    if name == "string":
        return (
            _valid(f"cast({value} as string)")
            if isinstance(held, BinaryType)
            else f"cast({value} as string)"
        )
    if name in text_values.TIMES:
        return _time(value, held, name, zone)
    if isinstance(held, NumericType) and isinstance(kind, NumericType):
        return _number(value, held, name)
    return text_values.from_text(f"cast({value} as string)", name, zone)


def _valid(text: str) -> str:
    return f"if(is_valid_utf8({text}), {text}, null)"


def _number(value: str, held: DataType, name: str) -> str:
    """Return a whole number or a decimal; NULL if its cast back is another number."""
    cast = f"try_cast({value} as {name})"
    # Spark casts 2^63 to the greatest bigint, which it casts back to 2^63
    bounds = (
        f"abs({value}) < 9223372036854775808D and "
        if held.simpleString() in text_values.FINITE
        else ""
    )
    back = f"try_cast({cast} as {held.simpleString()})"  # 999.995 is 1000.00 as decimal(10,2): no decimal(6,3)
    return f"if({bounds}{back} = {value}, {cast}, null)"


def _floating(value: str, held: DataType, name: str) -> str:
    if held.simpleString() in text_values.FINITE:
        return text_values.finite(f"cast({value} as {name})", name)
    text = text_values.from_text(f"cast({value} as string)", name, "UTC")
    if held.simpleString() not in text_values.INTEGRAL:
        return text
    return f"if({value} between -16777215 and 16777215, cast({value} as {name}), {text})"


def _time(value: str, held: DataType, name: str, zone: str) -> str:
    cast = f"try_cast({value} as {name})"
    own = text_values.within_years(cast, name)
    # years first: near the ends of a bigint the way back, and the clocks of another day, overflow
    if isinstance(held, _TIMES) and name == "date":
        return f"if({own} is null, null, if(cast({cast} as {held.simpleString()}) = {value}, {own}, null))"
    if isinstance(held, DateType | TimestampType | TimestampNTZType):
        if not isinstance(held, TimestampNTZType) or text_values.one_moment(zone):
            return own
        local = text_values.local_micros(f"cast({value} as string)")
        return f"if({own} is null, null, if({text_values.once(cast, local, literal(zone))}, {own}, null))"
    return f"cast(null as {name})"
