"""A step that left no report, as text: running, dead, or never begun, for how long, and what to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from draindown.base.formatting import age, count
from draindown.runs.request import Step

State = Literal["at work", "died", "not begun", "no Spark", "not written"]
"""`not written`: it committed batches and ended in order, and its report could not be written, as on a full disk."""


@dataclass(frozen=True)
class Unfinished:
    """A step that left no report.

    `seconds` is how long it has been running, or how long after its start a dead one last wrote something; None if
    unknown. `who` names the process. `batches` of this run are in the ledger, None if it can't be read. `log` is the
    path of the driver log, if any. `command` goes on with the work; default: a run.
    """

    pipeline: str
    flow: str
    run_id: str
    step: Step
    state: State
    who: str = ""
    began: datetime | None = None
    seconds: float | None = None
    batches: int | None = 0
    log: str = ""
    command: str = ""

    def __str__(self) -> str:
        since = "" if self.began is None else f" since {self.began:%Y-%m-%d %H:%M:%S} UTC"
        took = "" if self.seconds is None else age(self.seconds)
        if self.state == "at work":
            return f"{self.step} is at work{since}{took and f', {took} by now'}; {self.who}"
        if self.state == "died":
            done = f"; {count(self.batches, 'batch', 'batches')} of it committed" if self.batches else ""
            done = done if self.batches is not None else "; what it committed can't be read"
            last = took and f", {took} or more after it began"  # nobody saw when it died
            return f"{self.step} was at work{since}; its driver died{last}, {self.who}{done}"
        if self.state == "not written":
            done = count(self.batches or 0, "batch", "batches")
            return f"{self.step} ended, and its report could not be written; {done} of it committed"
        if self.state == "no Spark":
            return f"{self.step} has not begun: Spark did not start, or its task was ended before"
        return f"{self.step} has not begun"

    @property
    def next(self) -> list[str]:
        """The commands to type."""
        run = self.command or f"draindown run {self.pipeline} --flow {self.flow}"
        report = f"draindown report {self.pipeline}"
        if self.state == "at work":
            return [f"{report} --run {shlex.quote(self.run_id)}   # once it has ended"]
        again = [f"{run}   # goes on after the last whole batch"] if self.state in ("died", "not written") else [run]
        return [*again, *([f"less {shlex.quote(self.log)}   # what Spark said last"] if self.log else [])]
