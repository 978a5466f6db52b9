"""How a flow is: what plan, status, doctor and page say of it. Each fact is read in one way,
here, and once. No Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from draindown.base.formatting import printable
from draindown.flow import proven, quarantine, standing
from draindown.flow.at_work import lease_holder_so_far
from draindown.flow.proven import Proven
from draindown.flow.quarantine import Counts
from draindown.flow.standing import Standing
from draindown.flow.state import FlowState
from draindown.gate import published
from draindown.gate.published import Published, Unpublished
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lease.holder import Card
from draindown.runs.card_parts import backlog_words
from draindown.runs.report import Backlog, StepReport
from draindown.sources.port import Look

RUNS = 10
"""Newest runs that are looked at for what waits and for the last success."""
_NOTES = 20
"""Runs that are looked at for the newest: a note of one that has ended meanwhile says nothing."""
NOT_PLANNED = "not planned yet"
_SUCCESS = ("OK", "IDLE")


@dataclass(frozen=True)
class Waiting:
    """What waits for a flow.

    Attributes:
        backlog: None if none of the newest runs looked.
        seen_at: when the source was looked at.
        unlooked: why a newer plan did not look, as text; empty if none is newer.
        parked: units that are kept out until a person decides.
        runs: number of the newest runs that were searched for one that looked.
    """

    backlog: Backlog | None = None
    seen_at: datetime | None = None
    unlooked: str = ""
    parked: int = 0
    runs: int = 0

    def __str__(self) -> str:
        if self.backlog is not None:
            return f"{backlog_words(self.backlog)}, {in_words(self.seen_at)}"
        if self.unlooked:
            return ""
        return f"unknown: none of the newest {self.runs} runs looked" if self.runs else NOT_PLANNED


class Health:
    """Facts about a flow at `now`, each read on first use.

    `looked`: what a look at the source found. Without one, the newest step that looked says what
    waits.

    Properties raise what reading the tables raises, and TerminalError `state-damaged`,
    `generation-damaged`.
    """

    def __init__(self, view: FlowHome, now: datetime, looked: Look | None = None) -> None:
        self.state = FlowState.of(view)
        self.now = now
        self._looked = looked

    @cached_property
    def waiting(self) -> Waiting:
        """What waits at the source, and in slices that no batch has read."""
        if self._looked is None:
            return _waiting(self.runs)
        return Waiting(backlog_of(self._looked, self.now), self.now, parked=self._looked.kept_out)

    @cached_property
    def runs(self) -> Sequence[Standing]:
        """How the newest runs stand, the newest first."""
        return tuple(standing.newest(self.state, self.state.pipeline, RUNS))

    @cached_property
    def newest_run(self) -> Standing | None:
        """How the newest run stands; None if none left anything."""
        return next(standing.newest(self.state, self.state.pipeline, _NOTES), None)

    @property
    def last_success(self) -> datetime | None:
        """When the newest run of these that did all it had to do ended; None if none did."""
        return next((run.at for run in self.runs if run.mark in _SUCCESS), None)

    @property
    def quarantined_share(self) -> float | None:
        """Share of records that were refused, of the newest run that read any; None without."""
        shares = (step.run.quarantined_share for run in self.runs for step in run.steps if step.run)
        return next((share for share in shares if share is not None), None)

    @cached_property
    def holder(self) -> tuple[Card | None, str]:
        """Who holds the lease, and what its run has committed, as text."""
        return lease_holder_so_far(self.state)

    @cached_property
    def published(self) -> Published | None:
        """The published pointer, whatever table it is about."""
        return published.published(self.state)

    @cached_property
    def unpublished(self) -> Unpublished | None:
        """What the target holds beyond its published version; None without a target."""
        return published.unpublished(self.state)

    @property
    def unpublished_since(self) -> datetime | None:
        """When the first commit that waits to be published was made; None if none waits."""
        found = self.unpublished
        if found is None or not found.pending or found.waits_since_ms is None:
            return None
        return datetime.fromtimestamp(found.waits_since_ms / 1000, UTC)

    @cached_property
    def quarantine(self) -> Counts:
        """Refused rows, and those among them that wait for a decision, by reason."""
        return quarantine.counts(self.state)

    @cached_property
    def proof(self) -> Proven | None:
        """What the newest proof of the table found; None if it was about another table."""
        found, table = proven.newest(self.state), self.state.tables.target
        return found if found and table.exists and found.table_id == table.id else None

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of the data files of each table that exists, by its name in `flow_tables`."""
        tables = flow_tables(self.state, self.state.live_generation)
        return {one.name: one.table.size for one in tables if one.table.exists}

    def as_dict(self) -> dict[str, Any]:
        """Return all facts as a JSON-ready dict."""
        waiting, holder = self.waiting, self.holder[0]
        pointer, pending = self.published, self.unpublished
        return {
            "waiting": waiting.backlog and waiting.backlog.model_dump(mode="json"),
            "seen_at": _text(waiting.seen_at),
            "last_success": _text(self.last_success),
            "last_run": self.newest_run and self.newest_run.mark,
            "at_work": holder and holder.run_id,
            "quarantined_share": self.quarantined_share,
            "quarantined": dict(self.quarantine.by_reason or {}),
            "parked": waiting.parked,
            "published": pointer and pointer.version,
            "unpublished": bool(pending and pending.pending),
            "unpublished_since": _text(self.unpublished_since),
            "proof": self.proof and str(self.proof),
            "bytes": dict(self.sizes),
        }


def backlog_of(looked: Look, now: datetime) -> Backlog:
    """Return the backlog that a look found. The age of the oldest counts from its arrival."""
    return Backlog(
        units=looked.units,
        unit=looked.unit,
        bytes=looked.bytes,
        oldest_seconds=seconds_since(looked.oldest, now),
    )


def seconds_since(arrived: float | None, now: datetime) -> float | None:
    """Return the age of what arrived at a time in seconds since 1970; 0 if a clock ahead wrote it."""
    return None if arrived is None else max(0.0, round(now.timestamp() - arrived, 3))


def in_words(moment: datetime | None) -> str:
    """Return a moment to the minute, in UTC; "" for None."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _waiting(runs: Sequence[Standing]) -> Waiting:
    """Return what the newest of these runs that looked saw, and why a newer plan did not look."""
    unlooked = ""
    for run in runs:
        steps = {step.step: step for step in run.steps}
        planned, drained = steps.get("plan"), steps.get("drain")
        if drained and drained.drain and drained.drain.after and not _is_before(drained, planned):
            part = drained.drain
            return Waiting(part.after, drained.finished_at, unlooked, part.parked, len(runs))
        if planned and planned.plan and not planned.plan.replay:
            plan = planned.plan
            return Waiting(plan.backlog, planned.finished_at, unlooked, plan.parked, len(runs))
        if planned and planned.outcome == "failed" and not unlooked:
            unlooked = _failed(planned)
    return Waiting(unlooked=unlooked, runs=len(runs))


def _is_before(drained: StepReport, planned: StepReport | None) -> bool:
    """Return whether a drain is of an earlier start of a run that was cleared and planned again."""
    return planned is not None and planned.order > drained.order


def _failed(planned: StepReport) -> str:
    code = (planned.error or {}).get("code")
    why = f" ({printable(str(code))})" if code else ""
    return f"unknown: the plan failed{why}, {in_words(planned.finished_at)}"
