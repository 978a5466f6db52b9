"""The drain: one AvailableNow query over the intake, one cut per batch, stopped only between batches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from draindown.base import formatting
from draindown.base.clock import now
from draindown.base.errors import TerminalError, TransientError
from draindown.base.findings import Finding
from draindown.base.progress import Reached, untold
from draindown.flow import drain_part, generations, schema_drift
from draindown.lake.layout import FlowLayout
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.planning import plan
from draindown.recovery.opening import Needs
from draindown.recovery.replay import release_applied
from draindown.runs import report
from draindown.runs.report import Backlog, Outcome, StepReport
from draindown.runs.request import Request
from draindown.sources import batch_size
from draindown.sources.files import batching
from draindown.sources.files.intake import Intake
from draindown.sources.files.listing import SourceListing
from draindown.spark import session
from draindown.spark.batch import requarantine
from draindown.spark.batch.commit import stamp_after
from draindown.spark.batch.model import Batch
from draindown.spark.batch.process import process
from draindown.spark.batch.pruning_advice import Skipping
from draindown.spark.contract import analysis, transforms
from draindown.spark.contract.transforms import Transform
from draindown.spark.frames import NUMBER, TEXT, relation
from draindown.spark.limits import Bounds, Stop
from draindown.spark.runs.changed_input import refuse_changed, refuse_other_bytes
from draindown.spark.runs.opening import open_flow
from draindown.spark.runs.termination import await_end
from draindown.spark.sources.readers import InputFile
from draindown.spark.targets.delta_target import Writer
from draindown.spark.tuning import TUNING, Tuning
from draindown.spark.usage import Gauge

Progress = Callable[[str], None]
"""Called with a line of text for people after each long operation."""
_FEW = 2  # full batches; a larger backlog is recorded in the intake in portions
_TELLING_RATE = 100  # rows per second; a lower rate measures the batch's fixed cost and is not shown
_GROWTH, _LARGEST = 4, 16  # portions of 1, 4 and then 16 cuts: few queries, and few cuts with an outdated size


class _Stopped(Exception):
    """Raised at the start of a batch that must not start because a bound was reached."""


@dataclass
class _Drain:
    """One drain in progress: the inputs of each batch, and the results of the batches so far."""

    request: Request
    generation: int
    transform: Transform | None
    bounds: Bounds
    progress: Progress
    reached: Reached
    skipping: Skipping
    tuning: Tuning
    without: frozenset[str] = frozenset()
    rows: list[BatchRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failure: BaseException | None = None

    def __call__(self, references: DataFrame, batch: int) -> None:
        """Spark's `foreachBatch` function. Stores the Python exception, of which Spark's error only has the text."""
        try:
            why = self.bounds.reached(len(self.rows))
            if why:
                raise _Stopped(why)
            self._run(references, batch)
        except BaseException as error:
            self.failure = error
            raise

    def _run(self, references: DataFrame, number: int) -> None:
        self.reached("begun")
        gauge = Gauge(references.sparkSession)
        taken = references.collect()
        rows = [row for row in taken if row["path"] not in self.without]
        files = [InputFile(**{name: row[name] for name in InputFile.__dataclass_fields__}) for row in rows]
        writer = Writer(self.request.layout, self.request.flow_spec, self.generation, number)
        if not writer.is_done():  # the files of a committed batch may be gone
            refuse_other_bytes(self.request, files)
        started = now()
        batch = Batch(
            writer=writer,
            run_id=self.request.run_id,
            start=self.request.start,
            # Spark returns naive local times; an aware one is unambiguous in the hour that a clock change repeats
            first_seen=max(row["first_seen"].astimezone() for row in taken),
            changed_at=stamp_after(ledger_table.newest_stamp(self.request.layout), started),
            started_at=started,
            cut=max(row["cut"] for row in taken),
            files=files,
            lines=() if files else _no_lines(references.sparkSession),
            transform=self.transform,
            reached=gauge.beside(self.reached),
            was_read=lambda: refuse_other_bytes(self.request, files),
            compared=lambda held, pruning: self.skipping.look(number, held, pruning),
            tuning=self.tuning,
        )
        row = process(references.sparkSession, batch)
        raw_bytes, heap = sum(file["raw_bytes"] for file in rows), session.heap_bytes(references.sparkSession)
        if load := gauge.load(raw_bytes, heap):
            batch_size.remember(self.request.layout, load)
        if requarantine.concerns(writer):
            release_applied(self.request.layout, by=self.request.owner, reached=self.reached)
        self.rows.append(row)
        if self.skipping.batch == number:
            self.findings += self.skipping.findings(row)
        self.progress(_line(row))


def drain(
    request: Request,
    spark: SparkSession,
    *,
    progress: Progress = print,
    stop: Stop | None = None,
    reached: Reached = untold,
    tuning: Tuning = TUNING,
    source: SourceListing | None = None,
) -> StepReport:
    """Drain the flow's backlog and return the report. Idempotent: after a crash, the next call resumes.

    `source`: the listing of the source from the run's plan, if this process made it. Batches that were committed before
    an error are in the ledger.

    Raises TransientError `lease-held`, `lease-lost`, `query-died`; TerminalError `job-outdated`, `invalid-pipeline`,
    and the errors of a checkpoint, an input or a table that was changed from outside.
    """
    _refuse_other_modes(request)
    with open_flow(request, spark, Needs.RESUMED) as flow:
        analysis.refuse_unresolved(request, spark)
        done = under_lease(
            request,
            spark,
            flow.generation,
            progress=progress,
            stop=stop or Stop(),
            reached=flow.guard(reached),
            tuning=tuning,
            source=source,
        )
    refuse_changed(request, done.findings)
    return done


def _refuse_other_modes(request: Request) -> None:
    """Refuse a replay request: a project's old jobs/drain.py would drain instead of replaying, and succeed.

    Raises TerminalError `job-outdated`.
    """
    if request.replay is None and request.quarantine_ids is None:
        return
    to = "s/spark.drain import drain$/spark.modes import run_drain/; s/ drain(request/ run_drain(request/"
    raise TerminalError(
        "job-outdated",
        tried="replay, as this run was asked to",
        found="jobs/drain.py calls draindown.spark.runs.drain.drain, which only drains",
        next=f"sed -i '{to}' {shlex.quote(str(Path(request.root, 'jobs', 'drain.py')))}",
    )


def under_lease(
    request: Request,
    spark: SparkSession,
    generation: int,
    *,
    progress: Progress,
    stop: Stop,
    reached: Reached,
    tuning: Tuning = TUNING,
    source: SourceListing | None = None,
) -> StepReport:
    """Drain a flow that the caller has opened and whose generation can resume.

    `reached` is called with each step's name when the step completes. It raises if the lease is lost, which aborts the
    batch before the next step writes.
    """
    started, layout = now(), request.layout
    state = _Drain(
        request,
        generation,
        _transform(request),
        _bounds(request, stop),
        progress,
        reached,
        Skipping(layout, request.flow_spec, tuning),
        tuning,
        without=generations.without(layout, generation),
    )
    counting = _counting(progress, "files looked at")
    with closing(Intake(request, now=started, source=source, progress=counting)) as inlet:
        before, why, bounded = _drained(request, spark, state, inlet, started)
    taken, after = inlet.taken, plan.backlog(request, now(), inlet.seen())
    part, refused = drain_part.part(
        request,
        generation,
        state.rows,
        before=before,
        after=after,
        new_files=taken.files,
        parked_files=taken.parked,
        bound=why if bounded is None else f"{why}; stopped by {bounded}",
    )
    told = schema_drift.findings(layout, request.flow_spec, request.run_id, {row.place for row in state.rows})
    findings = [*refused, *taken.findings, *told, *state.findings]
    return report.of(request, started, _outcome(before, bounded), findings=findings, drain=part)


def _drained(
    request: Request, spark: SparkSession, state: _Drain, inlet: Intake, started: datetime
) -> tuple[Backlog, str, str | None]:
    """Record files in the intake and drain them, in portions.

    If the backlog is large and the batch size adapts to memory, the first portions are small. The next batches are
    sized by the memory that these used, and the first rows are in the table long before the last file was recorded.

    Returns the backlog before, the reasons for the batch sizes, and the bound that stopped the drain early (None if
    none did).
    """
    source, heap, layout = request.flow_spec.source, session.heap_bytes(spark), request.layout
    bound = batch_size.bound_now(layout, source, heap)
    much = (
        batch_size.is_adaptive(source)
        and batching.forecast(layout, source, inlet.new, bound).bytes > _FEW * bound.bytes
    )
    left = inlet.take(bound, 1 if much else None)
    before = plan.backlog(request, started, inlet.seen())
    state.progress(f"{formatting.count(before.files, 'file')} waiting, {bound.reason}")
    state.bounds, portion, told = state.bounds.from_now(), 1, [bound.reason]
    bounded = _stream(spark, layout, state) if before.files else None
    while left and bounded is None and (bounded := state.bounds.reached(len(state.rows))) is None:
        state.reached("portion")
        bound = batch_size.bound_now(layout, source, heap)
        taken, portion = inlet.taken.cuts, min(portion * _GROWTH, _LARGEST)
        left = inlet.take(bound, portion)
        if count := inlet.taken.cuts - taken:
            state.progress(f"{formatting.count(count, 'batch', 'batches')} more, {bound.reason}")
            told.append(bound.reason)
            bounded = _stream(spark, layout, state)
    return before, "; then ".join(dict.fromkeys(told)), bounded


def _bounds(request: Request, stop: Stop) -> Bounds:
    flow = request.flow_spec
    return Bounds(stop, _least(request.max_batches, flow.max_batches), _least(request.deadline, flow.deadline))


def _outcome(before: Backlog, bounded: str | None) -> Outcome:
    if bounded is not None:
        return "bounded"
    return "done" if before.files else "idle"


def _no_lines(spark: SparkSession) -> list[tuple[DataFrame, str | None]]:
    """Return the empty input of a batch whose files were all discarded. It is counted and committed like any batch."""
    return [(relation(spark, {"value": TEXT, "_file": TEXT, "_block": NUMBER, "_id": NUMBER}, ()), None)]


def _transform(request: Request) -> Transform | None:
    dotted = request.flow_spec.transform
    return transforms.load(request.root, dotted) if dotted else None


def _stream(spark: SparkSession, layout: FlowLayout, state: _Drain) -> str | None:
    """Run the streaming query until it ends. Return the bound that stopped it early, or None."""
    query = (
        spark.readStream.format("delta")
        .option("startingVersion", 1)
        .option("maxFilesPerTrigger", 1)
        .load(layout.intake)
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
            next=f"draindown run {layout.pipeline}   # it resumes where this one ended",
        )
    return str(state.failure) if isinstance(state.failure, _Stopped) else None


@contextmanager
def _python_errors(state: _Drain) -> Iterator[None]:
    try:
        yield
    except (StreamingQueryException, Py4JJavaError, TransientError):
        if isinstance(state.failure, _Stopped):
            return
        if state.failure is not None:  # Spark's error wraps the text of the Python exception in a Java stack trace
            raise state.failure from (state.failure.__cause__ or state.failure.__context__)
        raise


def _counting(progress: Progress, what: str) -> Callable[[int, int], None]:
    def tell(done: int, total: int) -> None:
        if done == total or done % 100 == 0:
            progress(f"{done:,} of {total:,} {what}")

    return tell


def _line(row: BatchRow) -> str:
    rate = row.records / row.seconds if row.seconds else 0.0
    pace = f" ({rate:,.0f} rows/s)" if rate >= _TELLING_RATE else ""
    fates = ("superseded", "duplicate", "quarantined")
    return (
        f"batch {row.batch}: {formatting.count(row.units, 'file')}, {formatting.count(row.records, 'row')} → "
        f"{row.applied:,} applied, {', '.join(f'{getattr(row, name):,} {name}' for name in fates)} "
        f"in {formatting.age(row.seconds)}{pace}"
    )


def _least(*values: float | int | None) -> float | None:
    return min((value for value in values if value is not None), default=None)
