"""The lines by which a driver says on stdout which step begins or has ended: `draindown:
{json}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from draindown.runs.request import Step

_PREFIX = "draindown: "


def line(content: Mapping[str, Any]) -> str:
    """Return the line with `content`: step, outcome (`begun` when it begins), and start, run_id or
    error.
    """
    return _PREFIX + json.dumps(content, default=str)


def begun(text: str) -> tuple[Step, str] | None:
    """Return step and start of the step that begins by this line of a driver's output; None if none
    does.
    """
    found = _content(text)
    return (
        (found["step"], str(found["start"]))
        if found.get("outcome") == "begun" and "start" in found
        else None
    )


def error_of(text: str, step: Step) -> dict[str, Any] | None:
    """Return the error with which a step ended by this line of a driver's output, as in a report;
    None if none did.
    """
    found = _content(text)
    error = (
        found.get("error")
        if found.get("step") == step and found.get("outcome") != "begun"
        else None
    )
    return error if isinstance(error, dict) else None


def _content(text: str) -> dict[str, Any]:
    """Return the content of a line about a step; empty if it is none."""
    if not text.startswith(_PREFIX):
        return {}
    try:
        found = json.loads(text.removeprefix(_PREFIX))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("step") in get_args(Step) else {}
