"""The audit's reader of text with a form of its own: dates and times by a pattern, numbers by their
separators.

Plain Python, character by character, independent of the drain. The result is text that DuckDB
casts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation

from draindown.config.landing import FlowSpec

_RUN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|.", re.DOTALL)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_HALVES = {"am": 0, "pm": 12}
As = Callable[[str], str]


def reader_of(flow: FlowSpec, column: str) -> As | None:
    """Return what makes text that casts of a column's text; None if the text is cast as it is.

    It raises ValueError if the text has another form.
    """
    written = flow.written(column)
    if written is None:
        return None
    if written.pattern is not None:
        runs = [found.group() for found in _RUN.finditer(written.pattern)]
        return (
            (lambda text: _day(text.strip(" "), runs))
            if flow.columns[column].type == "date"
            else (lambda text: _moment(text.strip(" "), runs))
        )
    return lambda text: _number(text.strip(" "), written.decimal, written.thousands)


def _number(text: str, decimal: str, thousands: str | None) -> str:
    whole, point, rest = text.partition(decimal)
    first, *groups = whole.split(thousands) if thousands else [whole]
    if any(len(group) != 3 for group in groups) or (
        groups and not 1 <= len(first.lstrip("+-")) <= 3
    ):
        raise ValueError(f"{text!r} has groups of other than three digits")
    plain = first + "".join(groups) + ("." + rest if point else "")
    try:
        Decimal(plain)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no number") from None
    return plain


def _day(text: str, runs: list[str]) -> str:
    """Return a date as ISO text. Raises ValueError for a time of day other than midnight."""
    day, _, clock = _moment(text, runs).partition(" ")
    if clock.strip("0:"):
        raise ValueError(f"{text!r} has a time of day")
    return day


def _moment(text: str, runs: list[str]) -> str:
    """Return the date or time as ISO text, with its offset if it has one."""
    found: dict[str, int] = {"y": 0, "M": 1, "d": 1, "H": 0, "m": 0, "s": 0, "S": 0}
    offset, afternoon, at = None, None, 0
    for run in runs:
        letter = run[0]
        if letter == "a":
            afternoon, at = _HALVES.get(_taken(text, at, 2).lower()), at + 2
            if afternoon is None:
                raise ValueError(f"{text!r} says neither AM nor PM")
        elif letter in "XZ":
            (offset, at) = _offset(text, at)
        elif run == "MMM":
            found["M"], at = (
                _MONTHS.find(_taken(text, at, 3)) // 3 + 1,
                at + 3,
            )  # none: 0, which is no month
        elif letter.isascii() and letter.isalpha():
            digits = _digits(text, at, len(run))
            found[letter], at = int(digits), at + len(digits)
            if letter == "y" and len(run) == 2:
                found["y"] += 2000
            if letter == "S":
                found["S"] = int((digits + "00000")[:6])
        else:
            literal = run[1:-1].replace("''", "'") or "'" if len(run) > 1 else run
            if _taken(text, at, len(literal)) != literal:
                raise ValueError(f"{text!r} has no {literal!r} at {at}")
            at += len(literal)
    if at != len(text):
        raise ValueError(f"{text!r} goes on after {text[:at]!r}")
    if afternoon is not None:
        found["H"] = found["h"] % 12 + afternoon
    moment = datetime(*(found[letter] for letter in "yMdHmsS"))  # type: ignore[arg-type]
    zone = "" if offset is None else timezone(offset).tzname(None).removeprefix("UTC") or "+00:00"
    return (
        moment.isoformat(sep=" ") + zone
        if {"H", "h"} & {run[0] for run in runs}
        else moment.date().isoformat()
    )


def _taken(text: str, at: int, size: int) -> str:
    return text[at : at + size]


def _digits(text: str, at: int, width: int) -> str:
    """Return exactly `width` digits, or one or two if it is 1."""
    end = at
    while (
        end < len(text)
        and text[end] in "0123456789"
        and end - at < max(width, 2 if width == 1 else width)
    ):
        end += 1
    if end == at or (width > 1 and end - at != width):
        raise ValueError(f"{text!r} lacks digits at {at}")
    return text[at:end]


def _offset(text: str, at: int) -> tuple[timedelta, int]:
    if text[at : at + 1] == "Z":
        return timedelta(), at + 1
    found = re.compile(r"([+-])(\d\d):?(\d\d)?").match(text, at)
    if not found:
        raise ValueError(f"{text!r} has no offset at {at}")
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return (-offset if found[1] == "-" else offset), found.end()
