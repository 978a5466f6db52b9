"""The starts of a run's steps. Each start writes its own report; the ledger has the batches of
starts that wrote none.

Sums over a run are computed from the ledger, so that they include a start that was killed after a
commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from draindown.base.errors import DraindownError, first_line
from draindown.base.findings import Finding
from draindown.base.formatting import count, shortened
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE
from draindown.lake.torn import UNREAD
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.runs import store
from draindown.runs.report import Outcome, RunSums, StepReport
from draindown.runs.request import STEPS, Request, Step, begun_at


@dataclass(frozen=True)
class Start:
    """One start of a step: its report, and the ledger's sums of the batches that it committed.

    `report` is None if the driver died or is running. Such a start is known from the ledger or its
    note.
    """

    step: Step
    start: str
    report: StepReport | None = None
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome | Literal["no report"]:
        """The outcome in its report, or `no report`."""
        return self.report.outcome if self.report else "no report"

    @property
    def made(self) -> str:
        """The batches that it committed, as text; `-` if none."""
        if not self.totals:
            return "-"
        batches = count(self.totals["batches"], "batch", "batches")
        return f"{batches}: {count(self.totals['records'], 'record')} -> {count(self.totals['applied'])} applied"

    @property
    def code(self) -> str:
        """The code of the error in its report; empty without one."""
        return str(((self.report.error if self.report else None) or {}).get("code") or "")

    @property
    def began(self) -> datetime | None:
        """When it began, by its report or its id; None if neither tells."""
        return self.report.started_at if self.report else begun_at(self.start)

    @property
    def order(self) -> datetime | None:
        """Its place among the starts of the flow; None if neither its report nor its id tells."""
        return self.report.order if self.report else begun_at(self.start)

    def as_dict(self) -> dict[str, Any]:
        """Return the start as a JSON-ready dict: its whole report, if it has one."""
        if self.report:
            return self.report.model_dump(mode="json")
        began = None if self.began is None else self.began.isoformat()
        told = {
            "step": self.step,
            "start": self.start,
            "outcome": self.outcome,
            "started_at": began,
        }
        return told | {"totals": self.totals}


def sums(rows: Iterable[BatchRow]) -> RunSums:
    """Return the sums of a run's ledger rows."""
    rows = list(rows)
    return RunSums(
        starts=len({row.attempt for row in rows}),
        totals=ledger_rows.total(rows),
        reasons=reasons(rows),
        max_sequence=ledger_rows.newest_sequence(
            row.max_sequence for row in rows if row.max_sequence
        ),
        quarantined_share=ledger_rows.quarantined_share(rows),
    )


def reasons(rows: Iterable[BatchRow]) -> dict[str, int]:
    """Return the number of quarantined rows by reason, over the given batches."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row.reasons)
    return dict(sorted(found.items()))


def with_sums(layout: FlowHome, told: Sequence[StepReport]) -> list[StepReport]:
    """Return the reports of one run with its current sums from the ledger.

    If the ledger can't be read, the sums stay as they were written, and the first report gets the
    finding `incomplete`.
    """
    try:
        found = sums(_batches(layout, told[0].run_id)) if told else None
    except UNREADABLE as error:
        why = error.found if isinstance(error, DraindownError) else first_line(error)
        detail = f"the ledger can't be read, so sums over the run may be missing or old: {shortened(why)}"
        next_ = f"draindown doctor {layout.pipeline}/{layout.flow}"
        lacking = Finding(kind="incomplete", subject="ledger", detail=detail, next=next_)
        return [told[0].model_copy(update={"findings": [*told[0].findings, lacking]}), *told[1:]]
    return [one.model_copy(update={"run": found}) for one in told]


def newest(layout: FlowHome, run_id: str) -> list[StepReport]:
    """Return the report of the newest start of each step, in the order of the steps, with the run's
    current sums.
    """
    return with_sums(layout, [told for step in STEPS if (told := store.read(layout, run_id, step))])


def _batches(layout: FlowHome, run_id: str) -> list[BatchRow]:
    return layout.once(
        f"{layout.tables.ledger.path} of {run_id}", lambda: ledger_table.of_run(layout, run_id)
    )


def listed(layout: FlowHome, run_id: str) -> list[Start]:
    """Return every start of a run that left a report, a batch or a note, in the order in which they
    began.

    A note is left by a start that is at work, and by one whose driver died; a log by one whose
    driver came up.
    """
    told = store.starts(layout, run_id)
    rows: dict[str, list[BatchRow]] = {}
    with suppress(*UNREAD):  # the reports are there still; `with_sums` says what they lack
        for row in _batches(layout, told[0].run_id if told else run_id):
            rows.setdefault(row.attempt, []).append(row)
    found = [Start(one.step, one.start, one, _totals(rows, one)) for one in told]
    known = {(one.step, one.start) for one in told}
    drains: set[tuple[Step, str]] = {("drain", start) for start in rows}
    silent = drains | (store.begun(layout, run_id) if told or rows else set())
    found += [
        Start(
            step,
            start,
            None,
            ledger_rows.total(rows[start]) if step == "drain" and start in rows else {},
        )
        for step, start in sorted(silent - known)
    ]
    return sorted(
        found,
        key=lambda one: (one.order or datetime.min.replace(tzinfo=UTC), STEPS.index(one.step)),
    )


def afresh(request: Request) -> Request:
    """Return the request with a new start id if its own has a report, as when a command line is run
    again.
    """
    if store.read(request.layout, request.run_id, request.step, request.start) is None:
        return request
    return request.model_copy(update={"start": store.next_start(request.layout)})


def _totals(rows: Mapping[str, list[BatchRow]], told: StepReport) -> dict[str, int]:
    return (
        ledger_rows.total(rows[told.start]) if told.step == "drain" and told.start in rows else {}
    )
