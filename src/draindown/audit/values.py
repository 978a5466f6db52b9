"""Whether text is a value of a column's type: the contract's grammar in plain Python, for the
audit.

It shares nothing with the drain's casts, and is not stricter than they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache, partial
from math import isinf
from typing import Any
from zoneinfo import ZoneInfo

from draindown.config.column_types import Column

Check = Callable[[Any], Any]
"""Returns the value that text, or a parsed JSON value, is. Raises ValueError if it is none of the
type.
"""
_WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_EXACT = {"float": 24, "double": 53}
_LARGEST = {"float": 3.4028235677973366e38, "double": float("inf")}
_NUMBER = re.compile(r" *[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? *")
_DIGITS = re.compile(r" *[+-]?[0-9]+ *")
_DAY = r" *([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
_DATE = re.compile(_DAY + " *")
_CLOCK = r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?(.*))?)?)?"
_TIME = re.compile(_DAY + _CLOCK)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2})(?::?([0-9]{1,2}))?)?")
_PLENTY = Context(prec=2000)


class Number(str):
    """A number as JSON spells it."""


def check_of(column: Column, zone: str) -> Check:
    """Return the check of a column's cells. `zone`: that of times without one."""
    if column.type == "json":
        return lambda value: value
    return partial(_value, _parsed(column.type), zone_of(zone), True)


def zone_of(name: str) -> tzinfo:
    """Return the zone of a name or an offset."""
    return _offset(name) or ZoneInfo(name)


def json_object(raw: bytes | str) -> dict[str, Any]:
    """Return a JSON object with its numbers as they are spelled. Raises ValueError if it is
    none.
    """
    found = json.loads(
        raw, strict=False, parse_float=Number, parse_int=Number, parse_constant=_no_json
    )
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def _no_json(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def wrong(checks: Mapping[str, Check], cells: Mapping[str, Any]) -> Iterable[str]:
    """Yield a sentence for each cell that is no value of its column's type."""
    for name, check in checks.items():
        cell = cells.get(name)
        if cell is not None:
            try:
                check(cell)
            except (ValueError, OverflowError, ArithmeticError) as error:
                yield f"{name}: {str(cell)[:60]!r} {error}"


_Kind = tuple[str, Sequence[Any]]
"""A type's name, and what it is made of: fields by name of a struct, types of an array or map,
digits of a decimal.
"""


@cache
def _parsed(kind: str) -> _Kind:
    name, _, rest = kind.partition("<")
    if name.startswith("decimal"):
        return "decimal", [int(number) for number in re.findall(r"[0-9]+", kind)]
    if not rest:
        return name, ()
    parts = _split(rest[:-1])
    if name != "struct":
        return name, [_parsed(part) for part in parts]
    pairs = (re.fullmatch(r"(`(?:[^`]|``)*`|[^`:]+):(.*)", part) for part in parts)
    return name, [(_bare(pair[1]), _parsed(pair[2])) for pair in pairs if pair]


def _bare(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _split(text: str) -> list[str]:
    """Return the parts between the commas that are within no other type, and no quoted name."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, character in enumerate(text):
        quoted ^= character == "`"
        if not quoted:
            depth += (character in "<(") - (character in ">)")
            if character == "," and not depth:
                parts.append(text[start:at])
                start = at + 1
    return [*parts, text[start:]]


def _value(kind: _Kind, zone: tzinfo, whole: bool, value: Any) -> Any:
    """Return a value of any type. `whole`: of a column, which may hold a nested value as JSON
    text.
    """
    name, parts = kind
    if value is None:
        return None
    if name in ("array", "map", "struct"):
        if whole and isinstance(value, str):
            value = json.loads(value, parse_float=Number, parse_int=Number)
        return _nested(name, parts, zone, value)
    if isinstance(value, dict | list):
        raise ValueError(f"is no {name}")
    text = value if isinstance(value, str) else "true" if value else "false"
    if name in ("string", "binary"):
        if whole and isinstance(value, Number) and isinf(float(value)):
            raise ValueError("is beyond a double, through which it passes")
        return text
    return _scalar(name, parts, zone, text)


def _nested(name: str, parts: Sequence[Any], zone: tzinfo, value: Any) -> Any:
    if isinstance(value, list) and name == "array":
        return [_value(parts[0], zone, False, one) for one in value]
    if not isinstance(value, dict) or name == "array":
        raise ValueError(f"is no {name}")
    if name == "map":
        entries = {
            _value(parts[0], zone, False, k): _value(parts[1], zone, False, v)
            for k, v in value.items()
        }
        if len(entries) < len(value):
            raise ValueError("has a key twice")
        return entries
    return {field: _value(own, zone, False, value.get(field)) for field, own in parts}


def _scalar(name: str, parts: Sequence[int], zone: tzinfo, text: str) -> Any:
    if name == "boolean":
        if text.strip(" ").lower() not in ("true", "false"):
            raise ValueError("is no boolean")
        return text.strip(" ").lower() == "true"
    if name in _WHOLE:
        return _integer(name, text)
    if name in _EXACT:
        return _floating(name, text)
    if name == "decimal":
        return _decimal(parts[0], parts[1], text)
    return _day(text) if name == "date" else _moment(name, text, zone)


def _integer(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or not -(2 ** (_WHOLE[name] - 1)) <= int(text) < 2 ** (
        _WHOLE[name] - 1
    ):
        raise ValueError(f"is no {name}")
    return int(text)


def _floating(name: str, text: str) -> float:
    if not _NUMBER.fullmatch(text) or abs(float(text)) >= _LARGEST[name]:
        raise ValueError(f"is no {name}")
    if _DIGITS.fullmatch(text) and (whole := abs(int(text))) > 2 ** _EXACT[name]:
        beyond = whole.bit_length() - _EXACT[name]
        if whole >> beyond << beyond != whole or whole > 2**63:
            raise ValueError(f"is a whole number that a {name} rounds")
    return float(text) + 0.0


def _decimal(precision: int, scale: int, text: str) -> Decimal:
    """Return a decimal. Of a number with an exponent 38 digits count, and of one that JSON does not
    write as text.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError("is no decimal")
    number = Decimal(text.strip(" "))
    if (isinstance(text, Number) or "e" in text.lower()) and number.adjusted() < 38:
        number = number.quantize(Decimal(1).scaleb(precision - scale - 38), ROUND_HALF_UP, _PLENTY)
    fits = number == 0 or number.adjusted() < precision - scale
    if not fits or number != (exact := number.quantize(Decimal(1).scaleb(-scale), context=_PLENTY)):
        raise ValueError(f"is no decimal({precision},{scale})")
    return exact


def _day(text: str) -> date:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("is no date")
    return date(*map(int, found.groups()))


def _moment(name: str, text: str, zone: tzinfo) -> datetime:
    found = _TIME.fullmatch(text.rstrip(" "))
    if found is None:
        raise ValueError(f"is no {name}")
    *parts, fraction, rest = found.groups()
    micros = int((fraction or "").ljust(6, "0")[:6])
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    local = datetime(year, month, day, hour, minute, second, micros)
    written = (rest or "").strip(" ")
    if name == "timestamp_ntz":
        if written:
            raise ValueError("has a zone, and the column has none")
        return local
    offset = _offset(written) if written else None
    if offset is not None:
        return local.replace(tzinfo=offset).astimezone(UTC)
    if written and "/" not in written:
        raise ValueError("names a zone by an abbreviation")
    return _once(local, _region(written) if written else zone, is_day=found[4] is None)


def _region(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("names a region that there is not") from error


def _once(local: datetime, zone: tzinfo, *, is_day: bool) -> datetime:
    """Return the one moment at which clocks of a zone show a time; the first of a day."""
    first, second = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset() and not is_day:
        raise ValueError("is a time that the clocks skip or show twice")
    return first.astimezone(UTC)


def _offset(text: str) -> timezone | None:
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    sign, hours, minutes, seconds = found.groups()
    span = timedelta(hours=int(hours), minutes=int(minutes or 0), seconds=int(seconds or 0))
    if int(minutes or 0) > 59 or int(seconds or 0) > 59 or span > timedelta(hours=18):
        raise ValueError("has no offset that there is")
    return timezone(span if sign == "+" else -span)
