"""Values of Arrow columns as JSON: decimals and binary as text, times in UTC with microseconds,
NULL fields kept.

What JSON has no number for is text too: NaN, Infinity, -Infinity.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""The JSON text of a value that `ready` returned, without blanks."""


def ready(column: pa.Array) -> list[Any]:
    """Return the values of a column as what `JSON` can write."""
    form = column.type
    if pa.types.is_timestamp(form):
        zone = "Z" if form.tz else ""
        moment = column.cast(pa.timestamp("us", "UTC" if form.tz else None))
        return pc.strftime(moment, f"%Y-%m-%dT%H:%M:%S{zone}").to_pylist()  # type: ignore[no-any-return]
    # as text: Python has no dates beyond the year 9999
    if pa.types.is_nested(form) or pa.types.is_date(form):
        column = column.cast(_mapped(form, _in_utc)).cast(_mapped(form, _as_text))
    convert = _converter(form)
    if convert is None:
        return column.to_pylist()  # type: ignore[no-any-return]
    return [None if value is None else convert(value) for value in column.to_pylist()]


def texts(column: pa.Array) -> list[str]:
    """Return the values of a column as JSON texts, those that `JSON` has for what `ready` returns.

    An encoder that is called per row takes several times as long as one that is chosen per column.
    """
    values = ready(column)
    if pa.types.is_integer(column.type):
        return ["null" if value is None else str(value) for value in values]
    if any(holds(column.type) for holds in _AS_TEXT):
        return ["null" if value is None else encode_basestring(value) for value in values]
    return [JSON(value) for value in values]


def _converter(form: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what turns a value that is not NULL, and text if it is a time, into JSON's; None if it
    is that already.
    """
    for holds, convert in _SCALARS:
        if holds(form):
            return convert
    if pa.types.is_struct(form):
        fields = [
            (form.field(at).name, _optional(form.field(at).type)) for at in range(form.num_fields)
        ]
        return lambda value: {name: one(value[name]) for name, one in fields}
    if pa.types.is_map(form):
        named, item = _key(form.key_type), _optional(form.item_type)
        return lambda value: {named(key): item(one) for key, one in value}
    if pa.types.is_list(form) or pa.types.is_large_list(form):
        one = _optional(form.value_type)
        return lambda value: [one(item) for item in value]
    return None


def _optional(form: pa.DataType) -> Callable[[Any], Any]:
    convert = _converter(form)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _key(form: pa.DataType) -> Callable[[Any], str]:
    convert = _optional(form)

    def text(value: Any) -> str:
        found = convert(value)
        return found if isinstance(found, str) else JSON(found)

    return text


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _mapped(form: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with each part that is not nested changed."""
    if pa.types.is_struct(form):
        fields = [form.field(at) for at in range(form.num_fields)]
        return pa.struct([field.with_type(_mapped(field.type, change)) for field in fields])
    if pa.types.is_map(form):
        return pa.map_(_mapped(form.key_type, change), _mapped(form.item_type, change))
    if pa.types.is_list(form) or pa.types.is_large_list(form):
        made = pa.list_ if pa.types.is_list(form) else pa.large_list
        return made(_mapped(form.value_type, change))
    return change(form)


def _in_utc(form: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC" if form.tz else None) if pa.types.is_timestamp(form) else form


def _as_text(form: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(form) or pa.types.is_date(form) else form


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_floating, _number),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (pa.types.is_timestamp, lambda value: value.replace(" ", "T", 1)),
    (pa.types.is_binary, lambda value: base64.b64encode(value).decode()),
    (pa.types.is_large_binary, lambda value: base64.b64encode(value).decode()),
)
_AS_TEXT: tuple[Callable[[pa.DataType], bool], ...] = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_timestamp, pa.types.is_date),
    *(pa.types.is_decimal, pa.types.is_binary, pa.types.is_large_binary),
)
