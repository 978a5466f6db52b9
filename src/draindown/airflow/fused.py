"""Steps that the driver of a run's drain does after it: which they are, and their reports, each taken once by its task.

A task that is cleared or retried finds its report taken, and starts a driver of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.lake.documents import create_json
from draindown.runs import store
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import STEPS, Request, Step

_AFTER = STEPS[STEPS.index("drain") + 1 :]


def then(step: Step, part: PlanPart | None) -> tuple[Step, ...]:
    """Return the steps that the driver of `step` does next: what the plan wants after a drain."""
    return tuple(name for name in _AFTER if step == "drain" and part is not None and getattr(part, name))


def take(request: Request, drained: Mapping[str, Any] | None) -> StepReport | None:
    """Return the report of this step by the driver of the run's drain, the first time; None if there is none to take.

    `drained`: the numbers of the drain's task, with its start. A report is of that start, or of an earlier drain.
    """
    if request.step not in _AFTER or not drained:
        return None
    try:
        newest = store.read(request.layout, request.run_id, request.step)
    except ValueError:  # torn: a driver of its own writes another
        return None
    if newest is None or newest.fused is None or newest.fused.drain != drained.get("start"):
        return None
    if newest.fused.exit not in (Exit.DONE, Exit.GATE_FAILED):  # it may fail for what it shared with the drain
        return None
    by = {"owner": request.owner, "at": now().isoformat()}
    with suppress(OSError):  # a lake that takes no note: a driver of its own says what is wrong with it
        if create_json(request.layout.taken(request.run_id, request.step, newest.start), by):
            return newest
    return None


def ended(request: Request, report: StepReport | None, code: int) -> int:
    """Return the exit code of a step whose driver ended with `code`, perhaps in a step that it did next.

    The report is written when the step has ended, and the steps that follow have reports of their own.
    """
    return Exit.DONE if request.then and report is not None and report.outcome != "failed" else code
