"""How a run of a flow stands: at work, dead, failed, not checked, done. One answer for reports,
lists and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from draindown.base.errors import TerminalError, next_steps
from draindown.base.formatting import printable, printable_lines
from draindown.flow.at_work import of_run
from draindown.lake.home import FlowHome
from draindown.runs import starts, store
from draindown.runs.card import card, verdict
from draindown.runs.report import StepReport
from draindown.runs.unfinished import Unfinished

_WELL = ("OK", "IDLE", "AT WORK")
_RED = ("DIED", "FAILED", "OVER LIMIT", "UNFINISHED", "WRONG")
MARKS = (*_WELL, *_RED, "NOT CHECKED", "STOPPED EARLY")
"""The first words of all verdicts."""


@dataclass(frozen=True)
class Standing:
    """How a run stands, by the newest report of each of its steps and by what is at work or died
    without one.

    `mark`: the first words of the verdict; `said`: the verdict, with its mark. `at`: when what it
    says began or ended. `card`: the run's card; without reports what is known, and what to type.
    """

    run_id: str
    mark: str
    said: str
    card: str
    at: datetime | None = None
    steps: list[StepReport] = field(default_factory=list)
    unfinished: Unfinished | None = None

    @property
    def is_well(self) -> bool:
        """Whether nobody needs to look at the run."""
        return self.mark in _WELL

    @property
    def is_red(self) -> bool:
        """Whether a person should look at the run first."""
        return self.mark in _RED

    @property
    def is_readable(self) -> bool:
        """Whether its reports can be read."""
        return bool(self.steps or self.unfinished)

    @property
    def began(self) -> datetime | None:
        """When the first of its steps began; None if nothing tells."""
        if self.steps:
            return self.steps[0].started_at
        return self.unfinished.began if self.unfinished else None


def newest(layout: FlowHome, pipeline: str, limit: int) -> Iterator[Standing]:
    """Yield how the newest runs of a flow stand, the newest first."""
    for run_id, _ in store.runs_and_silent(layout, limit):
        if (found := of(layout, pipeline, run_id)) is not None:
            yield found


def of(layout: FlowHome, pipeline: str, run_id: str) -> Standing | None:
    """Return how a run stands; None if it left neither a report nor a start that is at work or
    died.
    """
    try:
        steps = starts.newest(layout, run_id)
    except (ValueError, TerminalError) as error:
        return _unreadable(layout, pipeline, run_id, error)
    unfinished = of_run(layout, pipeline, steps[0].run_id if steps else run_id, steps)
    if steps:
        said = verdict(steps, unfinished)
        at = unfinished.since if unfinished and unfinished.is_newer else steps[-1].finished_at
        text = card(steps, [unfinished] if unfinished else [])
        return Standing(steps[0].run_id, said.partition("  ")[0], said, text, at, steps, unfinished)
    if unfinished is None:
        return None
    said = printable(f"{unfinished.mark}  {pipeline}/{layout.flow}  {unfinished}")
    lines = [f"{label}: {command}" for label, command in next_steps({"next": unfinished.next})]
    text = printable_lines("\n".join([said, *(f"          {line}" for line in lines)]))
    return Standing(
        unfinished.run_id, unfinished.mark, said, text, unfinished.since, [], unfinished
    )


def _unreadable(layout: FlowHome, pipeline: str, run_id: str, error: Exception) -> Standing:
    said = f"FAILED  {pipeline}/{layout.flow}  its reports can't be read"
    return Standing(
        run_id, "FAILED", said, printable_lines(f"{said}\n{layout.run_reports(run_id)}: {error}")
    )
