"""Steps that the driver of a run's drain does after it: which they are, and their reports, each
taken once by its task.

A task that is cleared or retried finds its report taken, and starts a driver of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.lake.home import FlowHome
from draindown.runs import store
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import STEPS, Request, Step

if TYPE_CHECKING:
    from draindown.gate.published import Published

_AFTER = STEPS[STEPS.index("drain") + 1 :]


def then(step: Step, part: PlanPart | None) -> tuple[Step, ...]:
    """Return the steps that the driver of `step` does next: what the plan wants after a drain."""
    return tuple(
        name for name in _AFTER if step == "drain" and part is not None and getattr(part, name)
    )


def take(request: Request, drained: Mapping[str, Any] | None) -> StepReport | None:
    """Return the report of this step by the driver of the run's drain, the first time; None if
    there is none to take.

    `drained`: the numbers of the drain's task, with its start. A report is of that start, or of an
    earlier drain.
    """
    if request.step not in _AFTER or not drained:
        return None
    try:
        newest = store.read(request.layout, request.run_id, request.step)
    except ValueError:  # torn: a driver of its own writes another
        return None
    if newest is None or newest.fused is None or newest.fused.drain != drained.get("start"):
        return None
    if newest.fused.exit not in (
        Exit.DONE,
        Exit.GATE_FAILED,
    ):  # it may fail for what it shared with the drain
        return None
    if newest.fused.exit == Exit.GATE_FAILED and _is_outdated(request.layout, newest):
        return None
    # a lake that takes no note: a driver of its own says what is wrong with it
    with suppress(OSError):
        if request.layout.start(request.run_id, request.step, newest.start).taken.create(
            _by(request)
        ):
            return newest
    return None


def unannounced(layout: FlowHome) -> Published | None:
    """Return the published version if a check of a task published it and no task announced it; None
    otherwise.

    The task failed for good after that, or it was never begun, as the check was done by the drain's
    driver. None too if the run's reports are gone: what it noted went with them.
    """
    from draindown.gate.published import published  # imports deltalake

    pointer = published(layout)
    if pointer is None or not pointer.start or store.read(layout, pointer.run_id, "plan") is None:
        return None
    return (
        pointer
        if layout.start(pointer.run_id, "check", pointer.start).announced.read() is None
        else None
    )


def announce(request: Request, run_id: str, start: str) -> bool:
    """Note that the asset event of this task is about what a start of a run's check published, so
    that no later one is.

    Return whether the event is due: no task of another run noted it before. A task that finds its
    own note may have been killed before Airflow made the event.
    """
    note = request.layout.start(run_id, "check", start).announced
    # the event comes all the same, and another one with the next run
    with suppress(OSError, ValueError):
        if not note.create(_by(request)):
            noted = str((note.read() or {}).get("owner", ""))
            return noted.rpartition(" try ")[0] == request.owner.rpartition(" try ")[0]
    return True


def _is_outdated(layout: FlowHome, failed: StepReport) -> bool:
    """Return whether rows, waivers or decisions about quarantined rows changed since the gate failed:
    it may pass now.
    """
    from draindown.gate.waivers import waivers

    if any(waiver.at > failed.finished_at for waiver in waivers(layout).values()):
        return True
    decisions = layout.tables.resolutions
    decided = decisions.rows('select max("at") as newest from t') if decisions.exists else []
    if any(row["newest"] is not None and row["newest"] > failed.finished_at for row in decided):
        return True
    table = layout.tables.target
    return failed.check is not None and table.exists and table.version != failed.check.version


def _by(request: Request) -> dict[str, str]:
    return {"owner": request.owner, "at": now().isoformat()}


def ended(request: Request, report: StepReport | None, code: int) -> int:
    """Return the exit code of a step whose driver ended with `code`, perhaps in a step that it did
    next.

    The report is written when the step has ended, and the steps that follow have reports of their
    own.
    """
    return Exit.DONE if request.then and report is not None and report.outcome != "failed" else code
