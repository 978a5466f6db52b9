"""Replay of input: read named units or a time range again, beside the live checkpoint.

Each slice is a batch of kind `replay` in the ledger. Its transaction id names the replay, so that
the same command resumes after a crash. The sequence guard keeps newer rows unchanged; a derived
flow computes the keys that the slice touched again, from its sources as the newest batch has them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import drain_part, schema_drift
from draindown.ledger.rows import BatchRow
from draindown.recovery import replay as replay_plan
from draindown.recovery.opening import Needs
from draindown.recovery.replay import Replay
from draindown.runs import report
from draindown.runs.report import Outcome, StepReport
from draindown.runs.request import Request
from draindown.sources.registry import source_of
from draindown.spark.limits import Bounds, Stop
from draindown.spark.runs import batch_lines
from draindown.spark.runs.batches import batches_of, refuse_unresolved
from draindown.spark.runs.opening import open_flow


def replay(
    request: Request,
    spark: SparkSession,
    *,
    stop: Stop | None = None,
    progress: Callable[[str], None] = print,
    reached: StepHook = ignore_step,
) -> StepReport:
    """Replay the input that `request.replay` selects. Idempotent: slices that were replayed before
    are skipped.

    Stops between batches at the bounds of the request. The flow's own bounds apply to drains only.

    Raises TransientError `lease-held`, `lease-lost`; TerminalError `replay-input-gone`, and the
    errors of `recovery.replay.find` and of a drain.
    """
    started, layout, source = now(), request.layout, source_of(request)
    with open_flow(request, spark, Needs.RESUMED) as flow:
        refuse_unresolved(request, spark)
        wanted = replay_plan.find(request)
        replay_plan.refuse_gone(source, layout, wanted.left)
        flow.check()
        replay_plan.pin(request, wanted)
        progress(
            f"replay {wanted.id}: {count(len(wanted.left), 'batch', 'batches')} to do, {wanted.done} done before"
        )
        batches = batches_of(
            request,
            source,
            wanted.generation,
            kind=wanted.kind,
            verify=lambda units: replay_plan.refuse_changed(source, layout, units),
        )
        bounds = Bounds(stop or Stop(), request.max_batches, request.max_duration)
        rows: list[BatchRow] = []
        for part in wanted.left:
            if bounds.reached(len(rows)):
                break
            row = batches.run(
                spark, part.batch, replay_plan.read_of(source, part), flow.guard(reached)
            )
            progress(f"read again, {batch_lines.told(row, source.unit)}")
            rows.append(row)
    return _report(request, wanted, rows, started, bounds.reached(len(rows)))


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
    told = schema_drift.findings(request.layout, request.declared, request.run_id)
    if left:
        again = f"draindown replay {request.spec.pipeline}/{request.flow} {wanted.options} --yes"
        detail = f"{count(left, 'batch', 'batches')} of it left, which no other run does"
        told = [
            *told,
            Finding(kind="stopped", subject=f"replay {wanted.id}", detail=detail, next=again),
        ]
    outcome: Outcome = "stopped" if left else "done" if rows else "idle"
    return report.of(request, started, outcome, drain=part, findings=told)
