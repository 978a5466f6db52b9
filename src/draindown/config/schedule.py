"""The schedule of a pipeline: a cron line of five fields that has a next time, or one of Airflow's
presets.

Airflow evaluates cron lines with croniter, so croniter validates them here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator

MANUAL = "manual"
"""The schedule of a pipeline that runs only when it is triggered."""
PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_REFUSED = {
    "@once": "a pipeline drains again and again; leave `schedule` out to start it by hand",
    "@continuous": "a run without pause starts a JVM without pause; use a cron line such as '*/5 * * * *'",
}
_FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31",
    "month": "1 to 12",
    "day of week": "0 to 7",
}
_LINES = {"@quarterly": "0 0 1 */3 *"}  # the preset that croniter does not know
# croniter's random fields: each evaluation gives another time
_RANDOM = re.compile(r"\b[rh]\b", re.IGNORECASE)


def check_schedule(text: str) -> str:
    """Return the schedule with single spaces. Raises ValueError if a field is wrong or no date ever
    matches.
    """
    schedule = " ".join(text.split())
    if schedule in _REFUSED:
        raise ValueError(f"{schedule} is refused: {_REFUSED[schedule]}")
    if schedule.startswith("@"):
        if schedule not in PRESETS:
            raise ValueError(f"unknown preset {schedule!r}; allowed: {', '.join(PRESETS)}")
        return schedule
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            f"a cron line has 5 fields ({', '.join(_FIELDS)}), {schedule!r} has {len(fields)}"
        )
    for index, name in enumerate(_FIELDS):
        _check_field(fields[index], index, name)
    croniter = _croniter()
    try:
        croniter.croniter(schedule, 0.0).get_next(float)
    except croniter.CroniterBadDateError:
        day = fields[2]
        raise ValueError(
            f"{schedule!r} never comes: no month that it names has day {day}"
        ) from None
    return schedule


def _unless_manual(given: object) -> object:
    return None if given == MANUAL else given


Schedule = Annotated[
    Annotated[str, AfterValidator(check_schedule)] | None, BeforeValidator(_unless_manual)
]
"""The schedule of a pipeline; None for manual runs only."""


def next_time(schedule: str, after: datetime, timezone: str = "UTC") -> datetime:
    """Return the first time of a schedule after a moment, in UTC. `schedule`: as `check_schedule`
    returns it; `timezone`: in which it is evaluated.
    """
    local = after.astimezone(ZoneInfo(timezone))
    times = _croniter().croniter(_LINES.get(schedule, schedule), local)
    found: datetime = times.get_next(datetime)
    return found.astimezone(UTC)


def _croniter() -> Any:
    """Return the library. Imported here: most plans evaluate no schedule."""
    import croniter

    return croniter


def _check_field(part: str, at: int, name: str) -> None:
    """Validate one field in a line of its own. For a whole line croniter often does not name the
    wrong field.
    """
    line = ["*"] * len(_FIELDS)
    line[at] = part
    croniter = _croniter()
    try:
        if not _RANDOM.search(part):
            croniter.croniter.expand(" ".join(line))
            return
    except croniter.CroniterError:
        pass
    raise ValueError(
        f"{part!r} is no {name}: use * or {_FIELDS[name]}, a-b, */n, or a list of them"
    )
