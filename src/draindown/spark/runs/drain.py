"""The drain: one AvailableNow query over the intake, one slice per batch, stopped only between
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from draindown.base import formatting
from draindown.base.clock import now
from draindown.base.errors import TransientError
from draindown.base.progress import StepHook, ignore_step
from draindown.config.landing import FlowSpec
from draindown.flow import drain_part, generations, resume, schema_drift, sink_columns
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.health import backlog_of
from draindown.lake.home import FlowHome
from draindown.ledger.rows import BatchRow
from draindown.planning import moved, plan
from draindown.planning.expiry import refuse_expiring
from draindown.recovery.opening import Needs
from draindown.runs import report
from draindown.runs.report import Backlog, Outcome, StepReport
from draindown.runs.request import Request
from draindown.sources import batch_size, intake, raw
from draindown.sources.port import Look, Pinning, Source, left_of
from draindown.sources.registry import source_of
from draindown.sources.slices import FIRST, Slice, slice_of, slices_of
from draindown.sources.tables import readers
from draindown.spark import cluster
from draindown.spark.batch.port import Batches
from draindown.spark.limits import Bounds, Stop
from draindown.spark.runs import batch_lines
from draindown.spark.runs.batches import batches_of, refuse_unresolved
from draindown.spark.runs.opening import open_flow
from draindown.spark.runs.termination import await_end
from draindown.spark.sql import literal, quoted
from draindown.spark.tuning import TUNING, Tuning

Progress = Callable[[str], None]
"""Called with a line of text for people after each long operation."""
_FEW = 2  # full batches; a larger backlog is pinned in portions
_GROWTH, _LARGEST = (
    4,
    16,
)  # portions of 1, 4 and then 16 slices: few queries, and few slices with an outdated size


class _Stopped(Exception):
    """Raised at the start of a batch that must not start because a bound was reached."""


@dataclass
class _Drain:
    """One drain in progress: the inputs of each batch, and the results of the batches so far."""

    layout: FlowHome
    source: Source
    batches: Batches
    generation: int
    bounds: Bounds
    progress: Progress
    reached: StepHook
    without: frozenset[str] = frozenset()
    rows: list[BatchRow] = field(default_factory=list)
    failure: BaseException | None = None

    def __call__(self, references: DataFrame, batch: int) -> None:
        """Spark's `foreachBatch` function. Stores the Python exception, of which Spark's error only
        has the text.
        """
        try:
            why = self.bounds.reached(len(self.rows))
            if why:
                raise _Stopped(why)
            self._run(references, batch)
        except BaseException as error:
            self.failure = error
            raise

    def _run(self, references: DataFrame, number: int) -> None:
        read = self._pinned(references, number).but(self.without)
        read = replace(read, units=tuple(left_of(self.source, read.units)))
        row = self.batches.run(references.sparkSession, number, read, self.reached)
        self.rows.append(row)
        self.progress(batch_lines.told(row, self.source.unit))

    def _pinned(self, references: DataFrame, number: int) -> Slice:
        """Return the slice that the checkpoint binds to a batch, read without Spark where its
        commit can be.
        """
        bound = Checkpoint(self.layout.checkpoint(self.generation)).last_offset
        found = None
        if bound == (number, slice_of(number) + 1):
            found = intake.pinned(self.layout, self.generation, slice_of(number))
        return found or _collected(references)


def _collected(references: DataFrame) -> Slice:
    """Return the slice whose rows Spark hands to a batch."""
    # Spark returns naive local times; an aware one is unambiguous in the hour that a clock change
    # repeats
    rows = [
        {
            name: value.astimezone() if isinstance(value, datetime) else value
            for name, value in row.asDict().items()
        }
        for row in references.collect()
    ]
    (found,) = slices_of(sorted(rows, key=lambda row: row["input"]))
    return found


def drain(
    request: Request,
    spark: SparkSession,
    *,
    progress: Progress = print,
    stop: Stop | None = None,
    reached: StepHook = ignore_step,
    tuning: Tuning = TUNING,
    source: Source | None = None,
) -> StepReport:
    """Drain the flow's backlog and return the report. Idempotent: after a crash, the next call
    resumes.

    `source`: the source as the run's plan saw it, if this process made the plan. Batches that were
    committed before an error are in the ledger.

    Raises TransientError `lease-held`, `lease-lost`, `query-died`; TerminalError
    `invalid-pipeline`, `backlog-expires`, and the errors of a checkpoint, an input or a table that
    was changed from outside.
    """
    source = source or source_of(request)
    with open_flow(request, spark, Needs.RESUMED) as flow:
        refuse_unresolved(request, spark)
        done, left = under_lease(
            request,
            spark,
            flow.generation,
            progress=progress,
            stop=stop or Stop(),
            reached=flow.guard(reached),
            tuning=tuning,
            source=source,
        )
    if source.named:
        source.named.refuse_findings(done.findings)
    refuse_expiring(request, left, now())
    return done


def under_lease(
    request: Request,
    spark: SparkSession,
    generation: int,
    *,
    progress: Progress,
    stop: Stop,
    reached: StepHook,
    tuning: Tuning = TUNING,
    source: Source | None = None,
) -> tuple[StepReport, Look]:
    """Drain a flow that the caller has opened and whose generation can resume. Also returns what is
    left to read.

    `reached` is called with each step's name when the step completes: those of each batch, then
    `drained`, `feed` (the table has what its readers need) and `looked` (at what waits). It raises
    if the lease is lost, which aborts the drain before the next step writes.
    """
    started, layout = now(), request.layout
    source = source or source_of(request)
    batches = batches_of(request, source, generation, tuning=tuning)
    without = generations.without(layout, generation)
    resume.forget_void(layout, generation, source)
    state = _Drain(
        layout, source, batches, generation, _bounds(request, stop), progress, reached, without
    )
    if not request.declared.target.kind.idempotent:
        moved.refuse(request, source, layout, started)
    counting = _counting(progress, f"{source.unit}s looked at")
    with closing(source.pin(generation, started, counting)) as pinning:
        before, why, bounded = _drained(request, spark, state, pinning, started)
    reached("drained")
    _switch_on_feed(request, spark, layout)
    reached("feed")
    if source.following:
        source.following.read_up_to(generation, generations.first_unread(layout, generation))
    ended = now()
    taken, left = pinning.taken, plan.look(request, ended, source)
    if not left.units:  # what waits may be pinned to be read from there
        reached("looked")
        _drop_raw(request, ended)
    part, refused = drain_part.part(
        request,
        generation,
        state.rows,
        before=before,
        after=backlog_of(left, ended),
        taken=taken.units,
        kept_out=taken.kept_out,
        parked=left.kept_out,
        bound=why if bounded is None else f"{why}; stopped by {bounded}",
    )
    told = schema_drift.findings(
        layout, request.declared, request.run_id, {row.place for row in state.rows}
    )
    stale = [] if layout.staged else sink_columns.findings(request, layout)
    findings = [*refused, *taken.findings, *told, *batches.findings, *stale]
    return report.of(
        request, started, _outcome(before, bounded), findings=findings, drain=part
    ), left


def _drained(
    request: Request, spark: SparkSession, state: _Drain, pinning: Pinning, started: datetime
) -> tuple[Backlog, str, str | None]:
    """Pin new input and drain it, in portions.

    If the backlog is large and the batch size adapts to memory, the first portions are small. The
    next batches are sized by the memory that these used, and the first rows are in the table long
    before the last unit was pinned.

    Returns the backlog before, the reasons for the batch sizes, and the bound that stopped the
    drain early (None if none did).
    """
    source, workers, layout = request.declared.source, cluster.workers(spark), request.layout
    bound = batch_size.bound_now(layout, source, workers.memory, workers.number)
    much = batch_size.is_adaptive(source) and pinning.forecast(bound).unpacked > _FEW * bound.bytes
    left = pinning.take(bound, 1 if much else None)
    before = plan.backlog(request, started, state.source)
    state.progress(f"{formatting.count(before.units, before.unit)} waiting, {bound.reason}")
    state.bounds, portion, told = state.bounds.from_now(), 1, [bound.reason]
    bounded = _stream(spark, request, state) if before.units else None
    while left and bounded is None and (bounded := state.bounds.reached(len(state.rows))) is None:
        state.reached("portion")
        bound = batch_size.bound_now(layout, source, workers.memory, workers.number)
        taken, portion = pinning.taken.slices, min(portion * _GROWTH, _LARGEST)
        left = pinning.take(bound, portion)
        if count := pinning.taken.slices - taken:
            state.progress(f"{formatting.count(count, 'batch', 'batches')} more, {bound.reason}")
            told.append(bound.reason)
            bounded = _stream(spark, request, state)
    return before, "; then ".join(dict.fromkeys(told)), bounded


def _drop_raw(request: Request, at: datetime) -> None:
    """Drop raw records that are older than the flow keeps them. A rebuild in progress may have
    pinned them.
    """
    declared = request.declared
    keep = declared.source.raw_for if isinstance(declared, FlowSpec) else None
    if keep and not request.layout.live.rebuild.exists:
        raw.drop(request.layout, keep, at)


def _bounds(request: Request, stop: Stop) -> Bounds:
    flow = request.declared
    return Bounds(
        stop,
        _least(request.max_batches, flow.max_batches),
        _least(request.max_duration, flow.max_duration),
    )


def _outcome(before: Backlog, bounded: str | None) -> Outcome:
    if bounded is not None:
        return "stopped"
    return "done" if before.units else "idle"


def _stream(spark: SparkSession, request: Request, state: _Drain) -> str | None:
    """Run the streaming query until it ends. Return the bound that stopped it early, or None."""
    layout = request.layout
    query = (
        spark.readStream.format("delta")
        .option("startingVersion", FIRST)
        .option("maxFilesPerTrigger", 1)
        .load(layout.tables.intake(state.generation).path)
        .writeStream.queryName(f"{layout.pipeline}.{layout.flow}")
        .foreachBatch(state)
        .option("checkpointLocation", layout.checkpoint(state.generation))
        .trigger(availableNow=True)
        .start()
    )
    with _python_errors(state):
        await_end(
            query,
            tried=f"drain flow {layout.flow} of pipeline {layout.pipeline}",
            next=f"{request.resume}   # it resumes where this one ended",
        )
    return str(state.failure) if isinstance(state.failure, _Stopped) else None


@contextmanager
def _python_errors(state: _Drain) -> Iterator[None]:
    try:
        yield
    except (StreamingQueryException, Py4JJavaError, TransientError):
        if isinstance(state.failure, _Stopped):
            return
        # Spark's error wraps the text of the Python exception in a Java stack trace
        if state.failure is not None:
            raise state.failure from (state.failure.__cause__ or state.failure.__context__)
        raise


def _counting(progress: Progress, what: str) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        if done == total or done % 100 == 0:
            progress(f"{done:,} of {total:,} {what}")

    return tell


def _least(*values: float | int | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _switch_on_feed(request: Request, spark: SparkSession, layout: FlowHome) -> None:
    """Give the table of the request's flow what its readers need, in one commit. No-op if it has
    it, or has no readers.

    Changes of earlier commits can't be read: a reader begins with a fill at a version that was
    published later. A staged rebuild is left alone: its table is read by nobody.
    """
    log = layout.tables.target
    if layout.staged or not readers.readers(request) or not log.exists:
        return
    set_properties(spark, layout.tables.target.path, readers.owed(request, log))


def set_properties(spark: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    """Set properties of a table. No-op without any."""
    if properties:
        said = ", ".join(
            f"{literal(name)} = {literal(value)}" for name, value in properties.items()
        )
        spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({said})")
