"""The JSON that every step leaves behind: what it found, did, and how it ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.models import Frozen
from draindown.runs.request import Request, Step

Outcome = Literal["done", "bounded", "idle", "failed"]
_LITTLE = 128 * 1024**2  # unpacked bytes; on more the JVM's second compiler pays for itself


class Backlog(Frozen):
    """Input not yet processed: files, bytes on disk, and how old the oldest is (seconds; None when empty)."""

    files: int = 0
    bytes: int = 0
    oldest_seconds: float | None = None


class RunSums(Frozen):
    """What the ledger has of a run: sums over the batches of all its starts, those that left no report included.

    `starts`: how many of them committed a batch; `totals` as `ledger.total` gives them; `refused_share` as
    `ledger.refused_share` does.
    """

    starts: int = 0
    totals: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, int] = Field(default_factory=dict)
    max_sequence: str | None = None
    refused_share: float | None = None


class DrainPart(Frozen):
    """What a start of a drain did. `batches` are ledger rows as `BatchRow.as_dict` writes them.

    `settled`: rows of batches that earlier starts had committed, of other runs too, and that this one found done;
    `totals` doesn't count them. `replay` says what was read again instead of the backlog, of which a replay knows
    nothing. `refused_share`: of the records of `batches`, as `ledger.refused_share`; `refused`: what a check will make
    of the run's share, if nobody decides about the rows.
    """

    generation: int
    replay: str = ""
    before: Backlog = Backlog()
    after: Backlog = Backlog()
    new_files: int = 0
    parked_files: int = 0
    bound: str = ""
    batches: list[dict[str, Any]] = Field(default_factory=list)
    settled: list[dict[str, Any]] = Field(default_factory=list)
    totals: dict[str, int] = Field(default_factory=dict)
    refused_share: float | None = None
    refused: Literal["", "warned", "failed"] = ""


class Expectation(Frozen):
    """One judged expectation. `unexpected` rows of `judged`; `sample` is capped; `judged_by` tells how.

    `scope`: the changed rows, the whole table, or the records of the source batches that are not published yet.
    """

    name: str
    success: bool
    waived: bool = False
    scope: Literal["changed", "table", "input"]
    unexpected: int = 0
    judged: int = 0
    sample: list[Any] = Field(default_factory=list)
    detail: str = ""
    judged_by: Literal["", "one aggregation", "Great Expectations", "the ledger"] = ""


class CheckPart(Frozen):
    """What the gate judged: rows not yet published, up to `version`."""

    version: int
    published_before: int | None = None
    published_after: int | None = None
    changed_rows: int = 0
    expectations: list[Expectation] = Field(default_factory=list)
    page: str | None = None


class CompactPart(Frozen):
    """What maintenance saw and did. Sizes in bytes."""

    evidence: str
    partitions: list[str] = Field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    vacuumed_files: int = 0


class PlanPart(Frozen):
    """What a run would do now. Forecasts: `batches`, `unpacked` (bytes), and `seconds`, None without history.

    `left_out`: steps that nobody asked for, however necessary. Where `replay` says what would be read again, `backlog`
    is what is left of that.
    """

    backlog: Backlog
    replay: str = ""
    batches: int = 0
    unpacked: int = 0
    seconds: float | None = None
    drain: bool = False
    check: bool = False
    compact: bool = False
    left_out: tuple[Step, ...] = ()
    reasons: dict[str, str] = Field(default_factory=dict)

    @property
    def is_little(self) -> bool:
        """Whether a driver that starts fast is done before one that works fast."""
        return self.batches <= 1 and self.unpacked <= _LITTLE


class StepReport(Frozen):
    """One start of a step of a run. Exactly the part named after the step is set, when it came that far.

    `run`: what the ledger had of the whole run when this was written, or read.
    """

    pipeline: str
    flow: str
    run_id: str
    step: Step
    start: str = ""
    outcome: Outcome
    started_at: datetime
    finished_at: datetime
    findings: list[Finding] = Field(default_factory=list)
    error: dict[str, Any] | None = None
    run: RunSums | None = None
    plan: PlanPart | None = None
    drain: DrainPart | None = None
    check: CheckPart | None = None
    compact: CompactPart | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the step."""
        return (self.finished_at - self.started_at).total_seconds()


def of(request: Request, started: datetime, outcome: Outcome, **more: Any) -> StepReport:
    """The report of the step that `request` asked for, ended now. `more`: findings, error, and the step's part."""
    return StepReport(
        pipeline=request.spec.pipeline,
        flow=request.flow,
        run_id=request.run_id,
        step=request.step,
        start=request.start,
        outcome=outcome,
        started_at=started,
        finished_at=now(),
        **more,
    )
