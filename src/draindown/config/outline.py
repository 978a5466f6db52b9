"""Read only name, schedule, lake and flows of a pipeline file that is otherwise broken.

A scheduled pipeline whose file breaks must not stop silently: it keeps its DAG and its schedule,
and its runs fail and leave reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from draindown.config.models import PipelineSpec
from draindown.config.schedule import MANUAL, check_schedule
from draindown.config.yaml_document import DocumentError, Value, parse

FALLBACK = "@hourly"
"""The schedule of a broken file whose own schedule can't be read."""
_NAME = re.compile(
    r"""^pipeline:[ \t]*["']?([a-z][a-z0-9_]{0,62})["']?[ \t]*(?:#.*)?\r?$""", re.MULTILINE
)
_FLOW = re.compile("[a-z][a-z0-9_]{0,62}")
_LAKE = re.compile(r"^lake:[^\r\n]*", re.MULTILINE)
_SCHEDULE = re.compile(r"^schedule:[^\r\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Outline:
    """What a broken file still says.

    `name` is None if none is declared; `schedule` is None for manual runs; `lake` is empty, and
    `flows` are none, where the file does not tell, as where the lake names a variable that is not
    set.
    """

    name: str | None = None
    schedule: str | None = FALLBACK
    lake: str = ""
    flows: tuple[str, ...] = ()


def outline(text: str, environ: Mapping[str, str], whole: Value = None) -> Outline:
    """Return what any text declares of a pipeline. `whole`: its values, if its project gives it
    some.
    """
    if isinstance(whole, dict):
        return Outline(declared_name(text), _schedule_of(whole), _lake_of(whole), _flows_of(whole))
    return Outline(
        declared_name(text), _schedule(text, environ), _lake(text, environ), _flows(text, environ)
    )


def declared_name(text: str) -> str | None:
    """Return the value of the first line `pipeline: NAME` that holds a valid name, or None."""
    found = _NAME.search(text)
    return found[1] if found else None


def _schedule(text: str, environ: Mapping[str, str]) -> str | None:
    whole = _mapping(text, environ)
    if whole is None:  # the file is not YAML, but the line of the schedule alone may be
        line = _SCHEDULE.search(text)
        whole = (_mapping(line[0], environ) if line else None) or {}
    return _schedule_of(whole)


def _schedule_of(whole: Mapping[str, Value]) -> str | None:
    if _is_for_manual_runs(whole):
        return None
    try:
        return check_schedule(str(whole.get("schedule") or FALLBACK))
    except ValueError:
        return FALLBACK


def _lake(text: str, environ: Mapping[str, str]) -> str:
    line = _LAKE.search(text)
    return _lake_of(_mapping(text, environ) or _mapping(line[0] if line else "", environ) or {})


def _lake_of(whole: Mapping[str, Value]) -> str:
    found = whole.get("lake")
    return (
        found if isinstance(found, str) and not any(mark in found for mark in ("://", "${")) else ""
    )


def _flows(text: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    return _flows_of(_mapping(text, environ) or {})


def _flows_of(whole: Mapping[str, Value]) -> tuple[str, ...]:
    found = whole.get("flows")
    return tuple(name for name in found if _FLOW.fullmatch(name)) if isinstance(found, dict) else ()


def _mapping(text: str, environ: Mapping[str, str]) -> dict[str, Value] | None:
    try:
        value = parse(text, environ).value
    except DocumentError:
        return None
    return value if isinstance(value, dict) else None


def _is_for_manual_runs(whole: Mapping[str, Value]) -> bool:
    """Return whether the schedule is absent on purpose.

    A truncated file, or one with a misspelt key, may have had one.
    """
    fields = PipelineSpec.model_fields
    required = {name for name, field in fields.items() if field.is_required()}
    return whole.get("schedule") in (None, MANUAL) and required <= set(whole) <= set(fields)
