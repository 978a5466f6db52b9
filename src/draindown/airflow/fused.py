"""Steps that the driver of a run's drain does after it: which they are, and their reports, each taken once by its task.

A task that is cleared or retried finds its report taken, and starts a driver of its own. A report that no task took,
because the drain's task failed after its driver was done, has published what no asset event is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.lake.documents import create_json, read_json
from draindown.lake.layout import FlowLayout
from draindown.runs import store
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import STEPS, Request, Step

if TYPE_CHECKING:
    from draindown.gate.published import Published

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
    if newest.fused.exit == Exit.GATE_FAILED and _is_outdated(request.layout, newest):
        return None
    with suppress(OSError):  # a lake that takes no note: a driver of its own says what is wrong with it
        if _note(request, request.run_id, newest):
            return newest
    return None


def unannounced(layout: FlowLayout) -> Published | None:
    """Return the published version if the report of its check is one that no task took; None otherwise."""
    from draindown.gate.published import published  # imports deltalake

    pointer = published(layout)
    return pointer if pointer is not None and _untaken(layout, pointer) else None


def announce(request: Request, pointer: Published) -> None:
    """Note that an asset event of this task is about what `pointer` published, so that no later one is."""
    if report := _untaken(request.layout, pointer):
        _note(request, pointer.run_id, report)


def _untaken(layout: FlowLayout, pointer: Published) -> StepReport | None:
    """Return the report of the check that published, unless a driver of its own wrote it or a task took it."""
    try:
        done = [one for one in store.starts(layout, pointer.run_id) if one.check and one.outcome == "done"]
    except ValueError:  # torn: nobody knows who published
        return None
    judged = [one for one in done if one.check and one.check.published_after != one.check.published_before]
    newest = judged[-1] if judged else None
    if newest is None or newest.fused is None:
        return None
    return newest if read_json(layout.taken(pointer.run_id, "check", newest.start)) is None else None


def _is_outdated(layout: FlowLayout, failed: StepReport) -> bool:
    """Return whether rows or waivers changed since the gate failed, so that it may not fail again."""
    from draindown.gate.waivers import waivers
    from draindown.lake.table_log import log_of

    if any(waiver.at > failed.finished_at for waiver in waivers(layout).values()):
        return True
    table = log_of(layout, layout.table)
    return failed.check is not None and table.exists and table.version != failed.check.version


def _note(request: Request, run_id: str, report: StepReport) -> bool:
    """Note that a task takes a report over. Return whether it is the first to do so."""
    by = {"owner": request.owner, "at": now().isoformat()}
    return create_json(request.layout.taken(run_id, report.step, report.start), by)


def ended(request: Request, report: StepReport | None, code: int) -> int:
    """Return the exit code of a step whose driver ended with `code`, perhaps in a step that it did next.

    The report is written when the step has ended, and the steps that follow have reports of their own.
    """
    return Exit.DONE if request.then and report is not None and report.outcome != "failed" else code
