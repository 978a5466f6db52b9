"""Sizes, durations, shares and times in human notation: `256mb`, `7 days`. Values are whole bytes
and seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

_SIZES = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_DURATIONS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_SPELLINGS = {
    "second": ("s", "sec", "secs", "second", "seconds"),
    "minute": ("m", "min", "mins", "minute", "minutes"),
    "hour": ("h", "hour", "hours"),
    "day": ("d", "day", "days"),
    "week": ("w", "week", "weeks"),
}
_SECONDS = {
    spelling: _DURATIONS[unit] for unit, spellings in _SPELLINGS.items() for spelling in spellings
}
_MONTHS = {"month": 1, "months": 1, "year": 12, "years": 12}
_MOST_MONTHS = 1200
_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")
_NUMBER_UNIT = re.compile(r"\s*([0-9]{1,19})\s*([a-zA-Z]*)\s*")


# 8 EiB: the largest signed 64-bit number, in which Spark and Delta keep sizes
_LIMIT = 2**63 - 1


def parse_size(value: object) -> int:
    """Return the bytes of `256mb`, `1 gb`, `4096` (kb, mb, gb, tb are powers of 1024). Raises
    ValueError.
    """
    number, unit = _split(value, "a size such as 256mb (b, kb, mb, gb, tb)")
    if unit and unit not in _SIZES:
        raise ValueError(f"unknown unit {unit!r} in size {value!r}; use one of b, kb, mb, gb, tb")
    return _bounded(number * _SIZES[unit or "b"], value)


def parse_duration(value: object) -> int:
    """Return the seconds of `7 days`, `90s`, `30 minutes`, `3600` (seconds to weeks, no months).
    Raises ValueError.
    """
    number, unit = _split(
        value, "a duration such as 30 minutes (seconds, minutes, hours, days, weeks)"
    )
    if unit and unit not in _SECONDS:
        raise ValueError(
            f"unknown unit {unit!r} in duration {value!r}; use seconds, minutes, hours, days or weeks"
        )
    return _bounded(number * _SECONDS[unit or "s"], value)


def parse_signed(value: object) -> int:
    """Return the seconds of `-10 minutes` or `30 minutes`. Raises ValueError."""
    text = value.strip() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    is_before = text.startswith("-") and not isinstance(value, bool)
    if not is_before:
        return parse_duration(value)
    return -parse_duration(text[1:] if isinstance(value, str) else -int(text))


def parse_window(value: object) -> int | str:
    """Return the length of windows: seconds, or `12 months` for calendar months or years. Raises
    ValueError.
    """
    found = _NUMBER_UNIT.fullmatch(value) if isinstance(value, str) else None
    each = _MONTHS.get(found[2].lower()) if found else None
    length = int(found[1]) * each if found and each else parse_duration(value)
    if length < 1:
        raise ValueError(f"{value!r} must be at least 1 second")
    if each and length > _MOST_MONTHS:
        raise ValueError(f"{value!r} is more than {_MOST_MONTHS} months")
    return f"{length} months" if each else length


def parse_share(value: object) -> float:
    """Return `1%` as 0.01. A number without `%` is ambiguous. Raises ValueError."""
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if not found or Decimal(found[1]) > 100:
        raise ValueError(f"must be a share such as 1% (0% to 100%), not {value!r}")
    return float(Decimal(found[1]) / 100)


def show_share(share: float) -> str:
    """Return the spelling that `parse_share` reads back as the same number."""
    return f"{100 * share:.9g}%"


def parse_time(text: str) -> datetime:
    """Return a time in UTC from ISO 8601, such as `2026-01-31T12:00Z`.

    A time without a zone is in UTC. Raises ValueError.
    """
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time such as 2026-01-31T12:00Z") from None


def show_duration(seconds: int) -> str:
    """Return the shortest exact spelling that `parse_signed` reads back as the same number."""
    unit = max((u for u in _DURATIONS if seconds % _DURATIONS[u] == 0), key=_DURATIONS.__getitem__)
    number = seconds // _DURATIONS[unit] if seconds else 0
    return f"{number} {unit if seconds else 'second'}{'s' if abs(number) != 1 else ''}"


def show_size(size: int) -> str:
    """Return the shortest exact spelling that `parse_size` reads back as the same number."""
    unit = (
        max((u for u in _SIZES if size % _SIZES[u] == 0), key=_SIZES.__getitem__) if size else "b"
    )
    return f"{size // _SIZES[unit]}{unit}"


def _split(value: object, expected: str) -> tuple[int, str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value, ""
    found = _NUMBER_UNIT.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError(f"must be {expected}, not {value!r}")
    return int(found[1]), found[2].lower()


def _bounded(number: int, value: object) -> int:
    if number > _LIMIT:
        raise ValueError(f"{value!r} is too large")
    return number


def _schema(units: Iterable[str], example: str, *, signed: bool = False) -> WithJsonSchema:
    # JSON Schema has no case-insensitive patterns
    spelled = "|".join("".join(f"[{c}{c.upper()}]" for c in unit) for unit in units)
    sign, whole = (r"(-\s*)?", {}) if signed else ("", {"minimum": 0})
    text = {"type": "string", "pattern": rf"^\s*{sign}[0-9]{{1,19}}\s*({spelled})?\s*$"}
    return WithJsonSchema({"anyOf": [{"type": "integer", **whole}, text], "examples": [example]})


SizeOrNone = Annotated[int, BeforeValidator(parse_size), _schema(_SIZES, "64mb")]
"""Bytes; 0 turns the limit off."""
Size = Annotated[SizeOrNone, Field(ge=1)]
"""Bytes, at least 1."""
Share = Annotated[
    float,
    BeforeValidator(parse_share),
    PlainSerializer(show_share),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*[0-9]{1,3}(\.[0-9]{1,6})?\s*%\s*$", "examples": ["1%"]}
    ),
]
"""A share of 1, written in percent."""
WindowSize = Annotated[
    int | str, BeforeValidator(parse_window), _schema([*_SECONDS, *_MONTHS], "5 minutes")
]
"""Seconds, or a number of calendar months as `3 months`."""
_DURATION = _schema(_SECONDS, "30 minutes")
Duration = Annotated[int, BeforeValidator(parse_duration), _DURATION]
"""Seconds."""
DurationOrFalse = Annotated[
    int | Literal[False],
    PlainValidator(lambda given: False if given is False else parse_duration(given)),
    WithJsonSchema({"anyOf": [_DURATION.json_schema, {"type": "boolean", "const": False}]}),
]
"""Seconds, or false for not at all."""
SignedDuration = Annotated[
    int, BeforeValidator(parse_signed), _schema(_SECONDS, "-10 minutes", signed=True)
]
"""Seconds, negative for a time before."""
