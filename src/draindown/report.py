"""The JSON that every step leaves behind: what it found, did, and how it ended."""

from __future__ import annotations

import os
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from draindown import files
from draindown.layout import FlowLayout, safe_name
from draindown.request import Request, Step

Outcome = Literal["done", "bounded", "idle", "failed"]

KEPT_RUNS = 1000
KEPT_AGE = timedelta(days=90)
"""A run's reports stay while the run is among the newest, or young."""

_LITTLE = 128 * 1024**2  # unpacked bytes; on more the JVM's second compiler pays for itself


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Backlog(_Frozen):
    """Input not yet processed: files, bytes on disk, and how old the oldest is (seconds; None when empty)."""

    files: int = 0
    bytes: int = 0
    oldest_seconds: float | None = None


class Finding(_Frozen):
    """Something a person should know that did not stop the run: about a file, a field, a column, or the table."""

    kind: (
        Literal["parked", "changed", "vanished", "ignored", "unsettled"]
        | Literal["new-field", "new-column", "many-fields", "missing-column", "pruning-lost"]
    )
    subject: str
    detail: str
    next: str = ""


class DrainPart(_Frozen):
    """What a drain did. `batches` are ledger rows as `BatchRow.as_dict` writes them.

    `replay` says what was read again instead of the backlog, of which a replay knows nothing.
    """

    generation: int
    replay: str = ""
    before: Backlog = Backlog()
    after: Backlog = Backlog()
    new_files: int = 0
    parked_files: int = 0
    bound: str = ""
    batches: list[dict[str, Any]] = Field(default_factory=list)
    totals: dict[str, int] = Field(default_factory=dict)


class Expectation(_Frozen):
    """One judged expectation. `unexpected` rows of `judged`; `sample` is capped; `judged_by` tells how."""

    name: str
    success: bool
    waived: bool = False
    scope: Literal["changed", "table"]
    unexpected: int = 0
    judged: int = 0
    sample: list[Any] = Field(default_factory=list)
    detail: str = ""
    judged_by: Literal["", "one aggregation", "Great Expectations"] = ""


class CheckPart(_Frozen):
    """What the gate judged: rows not yet published, up to `version`."""

    version: int
    published_before: int | None = None
    published_after: int | None = None
    changed_rows: int = 0
    expectations: list[Expectation] = Field(default_factory=list)
    page: str | None = None


class CompactPart(_Frozen):
    """What maintenance saw and did. Sizes in bytes."""

    evidence: str
    partitions: list[str] = Field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    vacuumed_files: int = 0


class PlanPart(_Frozen):
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


class StepReport(_Frozen):
    """One step of one run. Exactly the part named after the step is set, when the step came that far."""

    version: Literal[1] = 1
    pipeline: str
    flow: str
    run_id: str
    step: Step
    outcome: Outcome
    started_at: datetime
    finished_at: datetime
    findings: list[Finding] = Field(default_factory=list)
    error: dict[str, Any] | None = None
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
        outcome=outcome,
        started_at=started,
        finished_at=now(),
        **more,
    )


def write(layout: FlowLayout, report: StepReport) -> str:
    """Write the report where `read` finds it, whole or not at all; returns its path."""
    path = layout.report(report.run_id, report.step)
    make_home(layout)
    files.write_json(path, report.model_dump(mode="json"))
    return path


def read(layout: FlowLayout, run_id: str, step: Step) -> StepReport | None:
    """The report of a step, or None where the step left none (its driver died, or it never ran)."""
    path = Path(layout.report(run_id, step))
    return StepReport.model_validate_json(path.read_text()) if path.is_file() else None


def runs(layout: FlowLayout, limit: int = 20) -> list[str]:
    """Run ids that left reports, newest first (as path-safe names)."""
    return [name for name in _newest_first(layout.reports)[:limit] if name == safe_name(name)]


def forget_old(layout: FlowLayout, *, keep: int = KEPT_RUNS, age: timedelta = KEPT_AGE) -> int:
    """Remove reports and gate results of runs that are neither young nor among the newest; returns how many.

    The ledger keeps every batch for good: what goes is how single runs told of it.
    """
    gone = 0
    for home in (layout.reports, layout.all_validations):
        for name in _newest_first(home)[keep:]:
            directory = Path(home, name)
            if time.time() - directory.stat().st_mtime > age.total_seconds():
                shutil.rmtree(directory, ignore_errors=True)
                gone += 1
    return gone


def _newest_first(home: str) -> list[str]:
    if not Path(home).is_dir():
        return []
    with os.scandir(home) as entries:
        found = sorted(((entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.is_dir()), reverse=True)
    return [name for _, name in found]


def make_home(layout: FlowLayout) -> None:
    """Make the directory of what draindown keeps about the flow, where there is none: for its owner alone.

    Whatever the umask: checkpoint, reports and gate results tell of records, and who writes there decides what is read.
    """
    home = Path(layout.home)
    for place in (home.parent.parent, home.parent):
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)


def now() -> datetime:
    """The current time in UTC; the only clock that reports and ledger rows use."""
    return datetime.now(UTC)
