"""The JSON report of every step: what it found, what it did, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.formatting import printable, value_text
from draindown.base.models import Frozen
from draindown.base.run_size import RunSize, size_of
from draindown.lake.home import FlowHome
from draindown.ledger.rows import newest_sequence
from draindown.runs.request import Request, Step, begun_at, new_start

Outcome = Literal["done", "stopped", "idle", "failed"]
_EXAMPLES, _LONGEST_VALUE, _SHORT_VALUE = 3, 600, 120


class Backlog(Frozen):
    """Input not yet processed: units and their noun, bytes, and age of the oldest in seconds (None
    if empty).
    """

    units: int = 0
    unit: str = "file"
    bytes: int = 0
    oldest_seconds: float | None = None


class RunSums(Frozen):
    """Sums over the ledger rows of all starts of a run, including starts that left no report.

    `starts` is the number of starts that committed a batch; `totals` are those of `ledger.total`,
    `quarantined_share` that of `ledger.quarantined_share`.
    """

    starts: int = 0
    totals: dict[str, int] = Field(default_factory=dict)
    reasons: dict[str, int] = Field(default_factory=dict)
    max_sequence: str | None = None
    quarantined_share: float | None = None


class DrainPart(Frozen):
    """The result of one start of a drain.

    Attributes:
        rebuilt: whether it is a rebuild whose table is in place of the live one now.
        before, after: the backlog, or None where nobody looked: of a replay, a withdrawal, a drain
            that failed.
        taken, kept_out: units newly pinned, and units newly kept out because they can't be read
            whole.
        batches: ledger rows of this start, as `BatchRow.as_dict` writes them.
        settled: rows of batches that earlier starts, of this or other runs, had committed and this
            start found done. `totals` excludes them.
        replay: what was read again instead of the backlog; empty for a drain.
        unit: what a unit of the source is called. A backlog may count something else, such as
            records.
        quarantined_share: share of the records of `batches`, as `ledger.quarantined_share`.
        parked: units that are kept out when the drain ends, by this or an earlier run, until
            someone decides.
        over_limit: what a check will decide about the run's share, unless a person decides about the
            rows first.
        sinks: by sink, what became of the rows of `batches` there, as `ledger.sink_totals`.
    """

    generation: int
    rebuilt: bool = False
    replay: str = ""
    unit: str = "file"
    before: Backlog | None = None
    after: Backlog | None = None
    taken: int = 0
    kept_out: int = 0
    parked: int = 0
    bound: str = ""
    batches: list[dict[str, Any]] = Field(default_factory=list)
    settled: list[dict[str, Any]] = Field(default_factory=list)
    totals: dict[str, int] = Field(default_factory=dict)
    quarantined_share: float | None = None
    over_limit: Literal["", "warned", "failed"] = ""
    sinks: dict[str, dict[str, int]] = Field(default_factory=dict)

    @property
    def max_sequence(self) -> str | None:
        """The greatest sequence among the batches of this start, or None where none has one."""
        return newest_sequence(
            batch["max_sequence"] for batch in self.batches if batch.get("max_sequence")
        )


class Expectation(Frozen):
    """One evaluated expectation.

    Attributes:
        scope: the changed rows, the whole table, the open rows of a history, or the records of the
            source batches not yet published.
        unexpected: failing rows of the `judged` rows.
        sample: the first failing values.
        judged_by: how it was evaluated.
        severity: that of the suite. One that is not critical fails no check.
    """

    name: str
    success: bool
    waived: bool = False
    scope: Literal["changed", "table", "open", "input"]
    unexpected: int = 0
    judged: int = 0
    sample: list[Any] = Field(default_factory=list)
    detail: str = ""
    judged_by: Literal["", "one aggregation", "Great Expectations", "the ledger"] = ""
    severity: Literal["critical", "warning", "info"] = "critical"

    @property
    def refuses(self) -> bool:
        """Whether it keeps the version from being published."""
        return not self.success and not self.waived and self.severity == "critical"

    @property
    def is_noted(self) -> bool:
        """Whether it failed and is a finding, and nothing else."""
        return not self.success and not self.waived and self.severity != "critical"

    @property
    def examples(self) -> list[str]:
        """The first failing values as text: the first whole, up to 600 characters; others while
        they are short.
        """
        texts = [printable(value_text(value), _LONGEST_VALUE) for value in self.sample[:_EXAMPLES]]
        return texts[:1] + [text for text in texts[1:] if len(text) <= _SHORT_VALUE]


class CheckPart(Frozen):
    """The result of a check: the verdicts over the rows not yet published, up to `version`.

    `open_windows`: of a derived table, in words, the windows that rows in time may still change;
    empty if none may.
    """

    version: int
    published_before: int | None = None
    published_after: int | None = None
    changed_rows: int = 0
    expectations: list[Expectation] = Field(default_factory=list)
    page: str | None = None
    open_windows: str = ""

    @property
    def publishes(self) -> bool:
        """Whether readers get another version than before."""
        return self.published_after is not None and self.published_after != self.published_before


class CompactPart(Frozen):
    """The result of a compaction. Sizes in bytes."""

    evidence: str
    partitions: list[str] = Field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    vacuumed_files: int = 0


class PlanPart(Frozen):
    """What a run would do now.

    Attributes:
        backlog: what waits; of a replay, what it would read.
        batches, unpacked, seconds: forecast of batches, unpacked bytes and time; seconds is None
            without history.
        left_out: steps excluded from the run, even if necessary.
        replay: what would be read again; empty for a drain.
        unit: as that of a drain.
        parked: units that are kept out until someone decides. They are in no backlog.
    """

    backlog: Backlog
    unit: str = "file"
    parked: int = 0
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
    def size(self) -> RunSize:
        """The size of the run."""
        return size_of(self.batches, self.unpacked)


class Fused(Frozen):
    """A step that the driver of the run's drain did after it. `drain`: the drain's start; `exit`:
    the step's code.
    """

    drain: str
    exit: int


class StepReport(Frozen):
    """One start of a step of a run. Only the part named after the step is set, if the step got that
    far.

    `run` holds the ledger's sums of the whole run at the time of writing or reading. `fused` is
    None if the step had a driver of its own. `cluster` names the master and the executors that were
    registered when the step ended; it is empty on a local master and for a step without Spark.
    `environment` is empty in a project without environments.
    """

    pipeline: str
    flow: str
    run_id: str
    step: Step
    start: str = ""
    outcome: Outcome
    started_at: datetime
    finished_at: datetime
    environment: str = ""
    cluster: str = ""
    findings: list[Finding] = Field(default_factory=list)
    error: dict[str, Any] | None = None
    fused: Fused | None = None
    run: RunSums | None = None
    plan: PlanPart | None = None
    drain: DrainPart | None = None
    check: CheckPart | None = None
    compact: CompactPart | None = None

    @property
    def order(self) -> datetime:
        """The place of this start among those of its flow: a start that began later has a later
        one, by any clock.
        """
        return begun_at(self.start) or self.started_at

    @property
    def seconds(self) -> float:
        """Wall time of the step in seconds."""
        return (self.finished_at - self.started_at).total_seconds()


def of(request: Request, started: datetime, outcome: Outcome, **more: Any) -> StepReport:
    """Return the report of the step that `request` asked for, ending now.

    `more` are findings, error and the step's part.
    """
    return StepReport(
        pipeline=request.spec.pipeline,
        flow=request.flow,
        run_id=request.run_id,
        step=request.step,
        start=request.start,
        outcome=outcome,
        started_at=started,
        finished_at=now(),
        environment=request.environment,
        **more,
    )


def unreached(
    layout: FlowHome, run_id: str, step: Step, started: datetime, error: Mapping[str, Any]
) -> StepReport:
    """Return the report of a step that failed before there was a request, ending now."""
    return StepReport(
        pipeline=layout.pipeline,
        flow=layout.flow,
        run_id=run_id,
        step=step,
        start=new_start(),
        outcome="failed",
        started_at=started,
        finished_at=now(),
        error=dict(error),
    )
