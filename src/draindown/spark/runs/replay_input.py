"""Replay of input: read drained files or a time range again, beside the live checkpoint.

Each cut is a batch of kind `replay` in the ledger. Its transaction id names the replay, so that the same command
resumes after a crash. The sequence guard keeps newer rows unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.formatting import count
from draindown.base.progress import Reached, untold
from draindown.flow import drain_part, schema_drift
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.recovery import replay as replay_plan
from draindown.recovery.opening import Needs
from draindown.recovery.replay import Part, Replay, release_applied
from draindown.runs import report
from draindown.runs.report import Outcome, StepReport
from draindown.runs.request import Request
from draindown.spark.batch.commit import stamp_after
from draindown.spark.batch.model import Batch
from draindown.spark.batch.process import process
from draindown.spark.contract import analysis, transforms
from draindown.spark.contract.transforms import Transform
from draindown.spark.limits import Bounds, Stop
from draindown.spark.runs.opening import open_flow
from draindown.spark.sources.readers import InputFile
from draindown.spark.targets.delta_target import Writer


def replay(
    request: Request,
    spark: SparkSession,
    *,
    stop: Stop | None = None,
    progress: Callable[[str], None] = print,
    reached: Reached = untold,
) -> StepReport:
    """Replay the input that `request.replay` selects. Idempotent: cuts that were replayed before are skipped.

    Stops between batches at the bounds of the request. The flow's own bounds apply to drains only.

    Raises TransientError `lease-held`, `lease-lost`; TerminalError `replay-input-gone`, and the errors of
    `recovery.replay.find` and of a drain.
    """
    started, layout = now(), request.layout
    with open_flow(request, spark, Needs.RESUMED) as flow:
        analysis.refuse_unresolved(request, spark)
        wanted = replay_plan.find(request)
        replay_plan.refuse_gone(layout, wanted.left)
        flow.check()
        replay_plan.pin(layout, wanted)
        progress(f"replay {wanted.id}: {count(len(wanted.left), 'batch', 'batches')} to do, {wanted.done} done before")
        dotted = request.flow_spec.transform
        transform = transforms.load(request.root, dotted) if dotted else None
        bounds = Bounds(stop or Stop(), request.max_batches, request.deadline)
        rows: list[BatchRow] = []
        for part in wanted.left:
            if bounds.reached(len(rows)):
                break
            rows.append(_run(request, spark, wanted, part, transform, progress, flow.guard(reached)))
    return _report(request, wanted, rows, started, bounds.reached(len(rows)))


def _run(
    request: Request,
    spark: SparkSession,
    wanted: Replay,
    part: Part,
    transform: Transform | None,
    progress: Callable[[str], None],
    reached: Reached,
) -> BatchRow:
    started, layout = now(), request.layout
    files = [InputFile(**row) for row in part.files]
    reached("begun")
    batch = Batch(
        writer=Writer(layout, request.flow_spec, wanted.generation, part.batch, kind=wanted.kind),
        run_id=request.run_id,
        start=request.start,
        first_seen=part.first_seen,
        changed_at=stamp_after(ledger_table.newest_stamp(layout), started),
        started_at=started,
        cut=part.cut,
        files=files,
        transform=transform,
        reached=reached,
        was_read=lambda: replay_plan.refuse_gone(layout, [part]),
    )
    row = process(spark, batch)
    release_applied(layout, by=request.owner, reached=reached)
    progress(f"cut {part.cut}: {count(row.units, 'file')}, {row.records:,} rows -> {row.applied:,} applied")
    return row


def _report(
    request: Request, wanted: Replay, rows: list[BatchRow], started: datetime, stopped: str | None
) -> StepReport:
    left = len(wanted.left) - len(rows)
    before = f"{count(wanted.done, 'batch', 'batches')} of it before" if wanted.done else ""
    after = f"stopped by {stopped}, {count(left, 'batch', 'batches')} left" if left else ""
    part, _ = drain_part.part(
        request,
        wanted.generation,
        rows,
        replay=f"{wanted.id}: {wanted.asked}",
        bound="; ".join(filter(None, (before, after))),
    )
    told = schema_drift.findings(request.layout, request.flow_spec, request.run_id)
    outcome: Outcome = "bounded" if left else "done" if rows else "idle"
    return report.of(request, started, outcome, drain=part, findings=told)
