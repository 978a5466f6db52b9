"""What a plan found and decided, as lines of its task's log."""

from __future__ import annotations

from typing import Any

from draindown.base.formatting import age, count, printable
from draindown.runs.report import PlanPart
from draindown.runs.request import STEPS


def log_plan(log: Any, part: PlanPart, findings: list[str]) -> None:
    """Write backlog, forecast, the steps with their reasons, and each finding as a warning to the
    logger `log`.
    """
    from draindown.runs.card_parts import backlog_words

    forecast = f", about {age(part.seconds)}" if part.seconds is not None else ""
    what = f"replay {part.replay}: to read again" if part.replay else "waiting"
    batches = f"; about {count(part.batches, 'batch', 'batches')}{forecast}" if part.batches else ""
    parked = (
        f"; {count(part.parked, part.backlog.unit)} parked until someone decides"
        if part.parked
        else ""
    )
    log.info("%s: %s%s%s", what, backlog_words(part.backlog), batches, parked)
    for step in STEPS[1:]:
        log.info(
            "%s: %s (%s)", step, "yes" if getattr(part, step) else "no", part.reasons.get(step, "")
        )
    for finding in findings:
        log.warning("%s", printable(finding))
