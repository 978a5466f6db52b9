"""A step that left no report, as text: running, dead, or never begun, for how long, and what to
type.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from draindown.base.formatting import age, count
from draindown.runs.request import Step

State = Literal["at work", "died", "not begun", "no Spark", "no report", "not written"]
"""`not written`: its work began, and its report could not be written, as on a full disk. `no
report`: its driver came up, and nothing else is known of it. `no Spark`: its task began."""
_NEWER: tuple[State, ...] = ("at work", "died", "not written")


@dataclass(frozen=True)
class Unfinished:
    """A step that left no report.

    `who` names the process, `start` the start, and `try_number` its try in Airflow; "" and 0 if
    unknown. `seconds` is how long it has been running, or how long after its start a dead one last
    wrote something; None if unknown. `batches` of this run are in the ledger, None if it can't be
    read. `in_flight` is a batch that was begun and is not known to be done. `log` is the path of
    the driver log, if any. `command` goes on with the work; default: a run.
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
    in_flight: int | None = None
    start: str = ""
    try_number: int = 0

    @property
    def mark(self) -> str:
        """The first word or words of its run's verdict."""
        return {"at work": "AT WORK", "died": "DIED"}.get(self.state, "UNFINISHED")

    @property
    def since(self) -> datetime | None:
        """When it began, or when a dead one last wrote something; None if unknown."""
        if self.state != "died" or self.began is None or self.seconds is None:
            return self.began
        return self.began + timedelta(seconds=self.seconds)

    @property
    def is_newer(self) -> bool:
        """Whether the step began, so that its state stands before what an earlier start
        reported.
        """
        return self.state in _NEWER

    def __str__(self) -> str:
        since = "" if self.began is None else f" since {self.began:%Y-%m-%d %H:%M:%S} UTC"
        took = "" if self.seconds is None else age(self.seconds)
        if self.state == "at work":
            return f"{self.step} is at work{since}{took and f', {took} by now'}; {self._who}"
        if self.state == "died":
            done = (
                f"; {count(self.batches, 'batch', 'batches')} of it committed"
                if self.batches
                else ""
            )
            done = done if self.batches is not None else "; what it committed can't be read"
            last = took and f", {took} or more after it began"  # nobody saw when it died
            return f"{self.step} was at work{since}; its driver died{last}, {self._who}{done}"
        if self.state == "not written":
            done = f"{count(self.batches or 0, 'batch', 'batches')} of it committed"
            return (
                f"{self.step} ended, and its report could not be written; {done}{self._open_batch}"
            )
        if self.state == "no report":
            return (
                f"{self.step} left no report: its driver came up, and ended before it could "
                f"write one{self._open_batch}"
            )
        if self.state == "no Spark":
            return f"{self.step} has not begun: Spark did not start, or its task was ended before{self._open_batch}"
        return f"{self.step} has not begun"

    @property
    def _open_batch(self) -> str:
        return "" if self.in_flight is None else f"; batch {self.in_flight} was in flight"

    @property
    def _who(self) -> str:
        return f"try {self.try_number}, {self.who}" if self.try_number > 1 else self.who

    @property
    def next(self) -> list[str]:
        """The commands to type."""
        run = self.command or f"draindown run {self.pipeline}/{self.flow}"
        report = f"draindown report {self.pipeline}"
        if self.state == "at work":
            return [f"{report} --run {shlex.quote(self.run_id)}   # once it has ended"]
        again = (
            [f"{run}   # goes on after the last whole batch"]
            if self.state in ("died", "no report", "not written")
            else [run]
        )
        return [
            *again,
            *([f"less {shlex.quote(self.log)}   # what Spark said last"] if self.log else []),
        ]
