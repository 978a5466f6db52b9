"""The rebuild: drain all input into staged tables, then swap them in with one commit.

One lease is held from the first batch to the last step. After a stop or a crash, the same command
resumes.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import altered, generations, resume, sink_state
from draindown.lake.home import FlowHome
from draindown.recovery import rebuild as rebuild_plan
from draindown.recovery import swap
from draindown.recovery.opening import Needs
from draindown.recovery.rebuild import Rebuild
from draindown.runs import report
from draindown.runs.report import DrainPart, StepReport
from draindown.runs.request import Request
from draindown.sources.registry import source_of
from draindown.sources.tables import readers
from draindown.spark.limits import Stop
from draindown.spark.runs.batches import refuse_unresolved
from draindown.spark.runs.drain import Progress, set_properties, under_lease
from draindown.spark.runs.opening import open_flow
from draindown.spark.targets import swap as targets_swap
from draindown.spark.targets.delta_target import TableWriter


def rebuild(
    request: Request,
    spark: SparkSession,
    *,
    accept_missing: bool = False,
    drop_foreign: bool = False,
    progress: Progress = print,
    stop: Stop | None = None,
    reached: StepHook = ignore_step,
) -> StepReport:
    """Rebuild the flow's table, or resume a rebuild in progress. Idempotent.

    `reached` is called with the steps of each batch, `staged` before the swap, `swapped` after it,
    and the steps of `recovery.swap.finish`. If `stop` ends the rebuild between two batches, its
    outcome is `stopped` and the live table is unchanged.

    Raises TransientError `lease-held`, `lease-lost`, `sink-batch-in-flight`; TerminalError
    `rebuild-damaged`, `invalid-pipeline`, `table-restricted`, and the errors of
    `recovery.rebuild.begin`, a drain and `recovery.swap.finish`.
    """
    started = now()
    with open_flow(request, spark, Needs.SETTLED, reached=reached) as flow:
        refuse_unresolved(request, spark)
        if flow.finished:
            _read_up_to(request)
            return _finished(request, flow.finished)
        altered.refuse_append_only(flow.layout)
        live, reached = flow.layout, flow.guard(reached)
        if request.declared.sinks:
            sink_state.refuse_in_flight(live)
        begun = rebuild_plan.begin(
            request,
            by=request.owner,
            accept_missing=accept_missing,
            drop_foreign=drop_foreign,
            epoch=live.epoch,
        )
        staged = _staged(request, begun)
        number, until = _resumed(live, begun, staged), stop or Stop()
        drained, _ = under_lease(
            staged, spark, number, progress=progress, stop=until, reached=reached
        )
        if drained.outcome != "stopped":
            progress(
                f"generation {begun.generation} has read everything; it takes the live table's place"
            )
            rebuild_plan.refuse_later_foreign(request, begun)
            _swap(staged, spark, reached)
            swap.finish(live, by=request.owner, reached=reached)
            _read_up_to(request)
    if named := source_of(request).named:
        named.refuse_findings(drained.findings)
    # a rebuild that resumes right before the swap has nothing to read, but is not idle
    outcome = "stopped" if drained.outcome == "stopped" else "done"
    whole = {
        "started_at": started,
        "finished_at": now(),
        "outcome": outcome,
        "drain": _part(drained, begun),
    }
    return drained.model_copy(update=whole)


def _staged(request: Request, begun: Rebuild) -> Request:
    """Return the request of a drain into the staged tables, without `max_batches` and
    `max_duration`.
    """
    flow = request.declared.model_copy(update={"max_batches": None, "max_duration": None})
    spec = request.spec.model_copy(update={"flows": {**request.spec.flows, request.flow: flow}})
    bounds = {"max_batches": None, "max_duration": None}
    return request.model_copy(update={"staged": begun.generation, "spec": spec} | bounds)


def _resumed(live: FlowHome, begun: Rebuild, staged: Request) -> int:
    try:
        return resume.resume(staged.layout)
    except TerminalError as error:
        raise rebuild_plan.damaged_staging(
            live, begun.generation, f"{error.code}: {error.found}"
        ) from error


def _swap(staged: Request, spark: SparkSession, reached: StepHook) -> None:
    said, layout = swap.swap(staged), staged.layout
    reached("staged")
    table = layout.live.tables.target
    # they are compared with the version from before, by the log
    if staged.declared.sinks and table.exists:
        set_properties(spark, table.path, readers.lacking_log(table))
    writer = TableWriter(layout, staged.declared, layout.staged, said.batches - 1)
    targets_swap.swap(spark, writer, said.as_metadata())
    reached("swapped")


def _read_up_to(request: Request) -> None:
    """Tell the source what the live generation needs from now on: no run may follow while it is
    quiet.
    """
    generation = generations.generation(request.layout)
    if following := source_of(request).following:
        following.read_up_to(generation, generations.first_unread(request.layout, generation))


def _part(drained: StepReport, begun: Rebuild) -> DrainPart:
    assert drained.drain is not None, "a drain reports what it did"
    stopped = drained.outcome == "stopped"
    how = (
        "the live table is as it was; the same command goes on"
        if stopped
        else "it is in the table's place"
    )
    return drained.drain.model_copy(
        update={"bound": f"rebuild of generation {begun.generation}: {how}", "rebuilt": not stopped}
    )


def _finished(request: Request, finished: Rebuild) -> StepReport:
    what = f"rebuild of generation {finished.generation}: it was in the table's place before; what follows is done now"
    return report.of(
        request,
        now(),
        "done",
        drain=DrainPart(generation=finished.generation, rebuilt=True, bound=what),
    )
