"""The lines by which a driver says on stdout which step begins or has ended: `draindown: {json}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from draindown.runs.request import Step

_PREFIX = "draindown: "


def line(content: Mapping[str, Any]) -> str:
    """Return the line with `content`: step, outcome (`begun` when it begins), and start, run_id or error."""
    return _PREFIX + json.dumps(content, default=str)


def begun(text: str) -> tuple[Step, str] | None:
    """Return step and start of the step that begins by this line of a driver's output; None if none does."""
    if not text.startswith(_PREFIX):
        return None
    try:
        found = json.loads(text.removeprefix(_PREFIX))
        step, start = found["step"], found["start"]
    except (ValueError, TypeError, LookupError):
        return None
    return (step, str(start)) if found.get("outcome") == "begun" and step in get_args(Step) else None
