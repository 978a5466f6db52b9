"""Which types of Postgres hold which types of Spark SQL, and which values of a column its type
would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from draindown.sinks.conditions import quoted, years
from draindown.sinks.port import SinkColumn

_INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}
_WIDTHS = {"int2": 2, "int4": 4, "int8": 8}
_HOLDS: Mapping[str, tuple[str, ...]] = {
    "boolean": ("bool",),
    **dict.fromkeys(_INTEGERS, (*_WIDTHS, "numeric")),
    "decimal": ("numeric",),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "string": ("text", "varchar", "uuid", "jsonb", "json"),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "array": ("jsonb", "json"),
    "map": ("jsonb", "json"),
    "struct": ("jsonb", "json"),
}
_NAMES = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
}
_NAMES |= {"float8": "double precision"}
_FIRST = {"tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint"}
_UUID = "^([0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$"
_MICROSECONDS = 6


@dataclass(frozen=True)
class PostgresType:
    """The type of a column of the target.

    Attributes:
        name: in pg_catalog, such as int4.
        modifier: `atttypmod`, -1 if the type has none.
        text: as Postgres writes it, such as `character varying(20)`.
    """

    name: str
    modifier: int
    text: str

    @property
    def longest(self) -> int | None:
        """The most characters of a varchar(n)."""
        return self.modifier - 4 if self.name == "varchar" and self.modifier >= 4 else None

    @property
    def digits(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric(p, s). The scale may be negative."""
        if self.name != "numeric" or self.modifier < 4:
            return None
        packed = self.modifier - 4
        scale = packed & 0x7FF
        return packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale


def unfit(column: SinkColumn, found: PostgresType) -> str | None:
    """Return why a column's type can't hold what is sent, with a type that can; None if it can."""
    base = _base(column.type)
    if base not in _HOLDS:
        return f"{column.name}: no type of Postgres holds {column.type}; leave it out, or send it as a string"
    if found.name not in _HOLDS[base]:
        return (
            f"{column.name}: {column.type} doesn't go into {found.text}, but into {_fitting(base)}"
        )
    digits = found.digits
    if digits and base == "decimal" and digits[1] < _scale(column.type):
        return f"{column.name}: {column.type} would be rounded in {found.text}; make it {usual(column)}"
    if digits and digits[1] < 0:
        return f"{column.name}: {column.type} would be rounded in {found.text}; make it numeric"
    if found.name.startswith("timestamp") and -1 < found.modifier < _MICROSECONDS:
        return f"{column.name}: microseconds would be rounded in {found.text}; make it {found.name}"
    return None


def usual(column: SinkColumn) -> str:
    """Return the type of a new column that holds what is sent, for DDL that is shown."""
    base = _base(column.type)
    if base == "decimal":
        return column.type.replace("decimal", "numeric")
    first = _HOLDS.get(base, ("text",))[0]
    return _FIRST.get(base) or _NAMES.get(first, first)


def refused(column: SinkColumn, found: PostgresType) -> Mapping[str, str]:
    """Return conditions in Spark SQL by reason, true for values that the column's type would
    refuse.
    """
    return {**_range(column, found), **_text(column, found), **years(column)}


def _range(column: SinkColumn, found: PostgresType) -> Mapping[str, str]:
    base, name = _base(column.type), quoted(column.name)
    width = _WIDTHS.get(found.name)
    if base in _INTEGERS and width is not None and width < _INTEGERS[base]:
        most = 2 ** (8 * width - 1)
        return {f"out-of-range: {column.name}": f"{name} not between {-most} and {most - 1}"}
    if (digits := found.digits) is None:
        return {}
    whole = digits[0] - digits[1]
    if whole >= (_whole(column.type) if base == "decimal" else 19):
        return {}
    if whole <= 0:  # only a fraction has room
        return {f"out-of-range: {column.name}": f"{name} <> 0"}
    return {f"out-of-range: {column.name}": f"{name} >= {10**whole} or {name} <= -{10**whole}"}


def _text(column: SinkColumn, found: PostgresType) -> Mapping[str, str]:
    name = quoted(column.name)
    if found.name == "jsonb":
        # the escape of U+0000, which an even number of backslashes precedes
        escape = r"(^|[^\\\\])(\\\\\\\\)*\\\\u0000"
        text = name if column.type == "string" else f"to_json({name})"
        return {
            f"nul-in-text: {column.name}": f"contains({text}, chr(0)) or rlike({text}, '{escape}')"
        }
    if column.type != "string":
        return {}
    if found.name == "uuid":
        return {f"no-uuid: {column.name}": f"not rlike({name}, '{_UUID}')"}
    result = {f"nul-in-text: {column.name}": f"contains({name}, chr(0))"}
    if found.longest is not None:
        result[f"text-too-long: {column.name}"] = f"length({name}) > {found.longest}"
    return result


def _base(spark: str) -> str:
    return re.split(r"[(<]", spark, maxsplit=1)[0]


def _scale(spark: str) -> int:
    return int(spark.rstrip(")").rpartition(",")[2])


def _whole(spark: str) -> int:
    precision, _, scale = spark.partition("(")[2].rstrip(")").partition(",")
    return int(precision) - int(scale)


def _fitting(base: str) -> str:
    return " or ".join(_NAMES.get(name, name) for name in _HOLDS[base])
