"""A schedule: a cron line of five fields that comes at some time, or one of the presets."""

from __future__ import annotations

import re

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_REFUSED = {
    "@once": "a pipeline drains again and again; leave `schedule` out to start it by hand",
    "@continuous": "a run without pause starts a JVM without pause; use a cron line such as '*/5 * * * *'",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, {name: at + 1 for at, name in enumerate(_MONTHS)}),
    ("day of week", 0, 7, {name: at for at, name in enumerate(_DAYS)}),
)
_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = re.compile(r"(\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>[0-9]{1,3}))?")


def check_schedule(text: str) -> str:
    """The schedule with single spaces. Raises ValueError with the field that is wrong, and if no day is ever meant."""
    schedule = " ".join(text.split())
    if schedule in _REFUSED:
        raise ValueError(f"{schedule} is refused: {_REFUSED[schedule]}")
    if schedule.startswith("@"):
        if schedule not in PRESETS:
            raise ValueError(f"unknown preset {schedule!r}; allowed: {', '.join(PRESETS)}")
        return schedule
    parts = schedule.split(" ")
    if len(parts) != len(_FIELDS):
        wanted = "minute, hour, day of month, month, day of week"
        raise ValueError(f"a cron line has 5 fields ({wanted}), {schedule!r} has {len(parts) if schedule else 0}")
    for part, field in zip(parts, _FIELDS, strict=True):
        _check_field(part, *field)
    if not _comes(parts):
        raise ValueError(f"{schedule!r} never comes: no month that it names has day {parts[2]}")
    return schedule


def _check_field(text: str, name: str, low: int, high: int, names: dict[str, int]) -> None:
    for item in text.split(","):
        if item.upper() == "L" and name == "day of month":
            continue
        found = _PART.fullmatch(item)
        if not found:
            raise ValueError(f"{item!r} is no {name}; use *, a number, a-b, */n, or a list of them")
        ends = [_number(end, names) for end in (found["low"], found["high"]) if end is not None]
        if any(end is None or not low <= end <= high for end in ends):
            raise ValueError(f"{item!r} is no {name}: it must be {low} to {high}")
        if found["step"] is not None and not 1 <= int(found["step"]) <= high:
            raise ValueError(f"{item!r}: the step of the {name} must be 1 to {high}")


def _comes(parts: list[str]) -> bool:
    # a day of the week counts beside the day of the month
    if parts[4] != "*" or "L" in parts[2].upper().split(","):
        return True
    days, months = (_values(part, *field[1:]) for part, field in zip(parts[2:4], _FIELDS[2:4], strict=True))
    return any(min(days) <= _LENGTHS[month - 1] for month in months)


def _values(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """What a field that was checked means."""
    found: set[int] = set()
    for item in (item for item in text.split(",") if item.upper() != "L"):
        part = _PART.fullmatch(item)
        assert part is not None, "the field was checked"
        first, last = (_number(part[end], names) if part[end] else None for end in ("low", "high"))
        start = low if first is None else first
        end = last if last is not None else high if first is None or part["step"] else first
        # a range may go over the end: fri-mon
        span = range(start, end + 1) if start <= end else [*range(start, high + 1), *range(low, end + 1)]
        found |= set(span[:: int(part["step"] or 1)])
    return found


def _number(text: str, names: dict[str, int]) -> int | None:
    if text.lower() in names:
        return names[text.lower()]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else None
