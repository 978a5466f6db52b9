"""Commands that do what the DAG does, without Airflow: run, compact. One JVM, started only if there
is work.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draindown.base.clock import now
from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.base.formatting import count, printable
from draindown.base.run_size import RunSize, largest
from draindown.cli import dropped_readers
from draindown.cli.context import (
    Flows,
    Json,
    Setting,
    flows,
    new_run_id,
    refuse_without,
    setting,
)
from draindown.cli.failures import naming
from draindown.cli.output import Output, table
from draindown.runs.report import unreached
from draindown.spark.limits import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from draindown.config.models import PipelineSpec
    from draindown.runs.report import PlanPart, StepReport
    from draindown.runs.request import Request, Step
    from draindown.sources.port import Source
    from draindown.spark.runs.withdrawal import Plan


_WITH_SPARK = ("stopped", "jvm-gone", "out-of-memory")
"""Codes of errors after which the run's Spark cannot be trusted with another flow. A crash ends the
run with Spark.
"""


@dataclass
class _Run:
    """One run of a pipeline: the reports so far and the worst exit code."""

    here: Setting
    spec: PipelineSpec
    out: Output
    bounds: dict[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=new_run_id)
    reports: list[StepReport] = field(default_factory=list)
    exit: Exit = Exit.DONE
    sources: dict[str, Source] = field(default_factory=dict)
    """What the plans of the flows saw of their sources, for their drains."""
    failed: set[str] = field(default_factory=set)
    """Flows that could not be planned, drained or judged."""
    ended: bool = False
    """Whether a step failed in a way that takes Spark along: nothing more can run."""
    stop: Stop = field(default_factory=Stop)
    """Asked by a signal to end a step. No other one begins then."""
    compactable: list[str] = field(default_factory=list)
    """Flows that may be compacted when all are drained and judged, in the order they ran in."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Flows that were left out, each with the reason."""

    def request(self, flow: str, step: Step) -> Request:
        """Return the request of one step of this run."""
        from draindown.runs import store

        made = self.here.request(self.spec, flow, step, self.run_id, **self.bounds)
        return made.model_copy(update={"start": store.next_start(made.layout)})

    @property
    def goes_on(self) -> bool:
        """Whether another step may begin."""
        return not self.ended and not self.stop.why

    def tell(self, request: Request) -> Callable[[DraindownError], None]:
        """Return what to do with the error of a step: note its code, as the card has the rest."""
        where = f"{self.spec.pipeline}/{request.flow}: {request.step}"
        return lambda error: self.out.note(f"{where} failed: {error.code}")

    def may_run(self, flow: str) -> bool:
        """Return whether a flow may run: no flow whose table it reads failed, or was left out for
        that.
        """
        kept_from = [
            name
            for name in self.spec.graph.upstream(flow)
            if name in self.failed | self.not_run.keys()
        ]
        if not self.goes_on:
            self.not_run[flow] = "the run ended before it"
        elif kept_from:
            self.not_run[flow] = f"it reads what {kept_from[0]} did not get to"
        return flow not in self.not_run

    def finish(self) -> None:
        """Print the run card and exit with the worst step's exit code."""
        from draindown.flow.at_work import of_reports
        from draindown.runs.card import card

        data = {"run_id": self.run_id, "exit": int(self.exit), "not_run": self.not_run}
        text = card(self.reports, of_reports(self.spec.layout, self.reports))
        if self.not_run:
            left_out = (
                f"NOT RUN  {self.spec.pipeline}/{name}  {why}" for name, why in self.not_run.items()
            )
            text = "\n".join([text, "", *left_out])
        self.out.result(data | {"reports": [r.model_dump(mode="json") for r in self.reports]}, text)
        if self.exit:
            raise typer.Exit(self.exit)


def run(
    ctx: typer.Context,
    target: Flows,
    max_batches: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many batches.")
    ] = None,
    max_duration: Annotated[
        str | None, typer.Option(help="Start no batch after this time, such as `10 minutes`.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Judge and publish what changed.")
    ] = True,
    compact: Annotated[
        bool, typer.Option("--compact/--no-compact", help="Compact on evidence.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Drain, check and compact, as the DAG does, in one JVM; nothing to do means no JVM. Prints the
    run card.
    """
    here, out = setting(ctx), Output(as_json)
    spec = here.spec(target.pipeline)
    this = _Run(
        here, spec, out, {"max_batches": max_batches, "max_duration": _seconds(max_duration)}
    )
    asked: dict[Step, bool] = {"drain": True, "check": check, "compact": compact}
    left_out = [step for step in asked if not asked[step]]
    names = flows(spec, target)
    above = {name: set(spec.graph.upstream(name)) & set(names) for name in names}
    first, later = (
        [name for name in names if not above[name]],
        [name for name in names if above[name]],
    )
    work = _plans(this, first, left_out)
    with _spark(this, size=largest(part.size for _, part in work)) as spark:
        for name, part in work:
            if this.may_run(name):
                _steps(this, name, part, asked, spark)
        # a derived flow is planned once the flows that it reads have published
        for name in later:
            for planned in _plans(this, [name], left_out) if this.may_run(name) else ():
                _steps(this, *planned, asked, spark)
        # nobody waits for compaction: it changes no row, and one that takes Spark along stops no
        # other flow
        for name in this.compactable:
            if this.goes_on:
                _step(this, this.request(name, "compact"), spark)
    this.finish()


def _steps(
    this: _Run, name: str, part: PlanPart, asked: Mapping[Step, bool], spark: _Spark
) -> None:
    """Run drain and check of a flow if its plan needs them, until one fails. Note whether it may be
    compacted then.
    """
    wanted = [step for step in asked if step != "compact" and asked[step] and getattr(part, step)]
    if wanted:
        from draindown.spark.job.steps import (
            in_turn,
        )  # brings PySpark: a run with nothing to do needs none

        due = (this.request(name, step) for step in wanted if not this.stop.why)
        if not in_turn(due, lambda request: _step(this, request, spark)):
            this.failed.add(name)
            return
    if asked["compact"] and part.compact:
        this.compactable.append(name)


def compact(
    ctx: typer.Context,
    target: Flows,
    force: Annotated[
        bool, typer.Option("--force", help="Compact even without evidence that it pays.")
    ] = False,
    drop_reader: Annotated[
        str | None,
        typer.Option(
            help="Compact nothing: keep no more old files for this flow, which is gone. FLOW, or PIPELINE/FLOW."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --drop-reader: do it.")] = False,
    as_json: Json = False,
) -> None:
    """Compact the tables and remove old files, where Delta's log shows that it pays. Changes no
    row.
    """
    here = setting(ctx)
    if drop_reader is not None:
        dropped_readers.drop_reader(here, target, drop_reader, yes, Output(as_json))
        return
    spec = here.spec(target.pipeline)
    of = "/".join(filter(None, (spec.pipeline, target.flow)))
    command = f"draindown compact {of}{' --force' if force else ''}"
    this = _Run(here, spec, Output(as_json), {"force": force, "command": command})
    with _spark(this, size="small") as spark:
        for name in flows(spec, target):
            if this.may_run(name):
                _step(this, this.request(name, "compact"), spark)
    this.finish()


def _seconds(max_duration: str | None) -> float | None:
    from draindown.config.units import parse_duration

    try:
        if max_duration is None:
            return None
        return parse_duration(int(max_duration) if max_duration.isdigit() else max_duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-duration") from None


def _plans(
    this: _Run, names: Sequence[str], left_out: Sequence[Step]
) -> list[tuple[str, PlanPart]]:
    """The flows that can be planned, each with its plan. Raises if there is one only, the run's
    first, and it can't.
    """
    from draindown.planning.plan import planned
    from draindown.sources.registry import source_of

    found: list[tuple[str, PlanPart]] = []
    for name in names:
        started = now()
        try:
            with naming(f"draindown plan {this.spec.pipeline}/{name}"):
                request = this.request(name, "plan")
                this.sources[name] = source_of(request)
                report = planned(request, left_out, this.sources[name])
        except DraindownError as error:
            if len(names) == 1 and not this.reports:
                raise
            layout = this.spec.layout(name)
            this.reports.append(unreached(layout, this.run_id, "plan", started, error.as_dict()))
            this.exit = max(this.exit, exit_for(error))
            this.failed.add(name)
            continue
        assert report.plan is not None, "a plan that can't be made is an error"
        this.reports.append(report)
        found.append((name, report.plan))
    return found


_Spark = Callable[["Request"], "SparkSession"]
"""Returns the run's session. The first call starts the JVM, whose output goes to that step's driver
log.
"""


@contextmanager
def _spark(this: _Run, *, size: RunSize) -> Iterator[_Spark]:
    started: list[SparkSession] = []

    def start(request: Request) -> SparkSession:
        from draindown.runs.driver_log import DriverLog
        from draindown.spark.session import session

        if not started:
            log = DriverLog.of(request.layout, request.run_id, request.step, request.start)
            this.out.note(f"run {this.run_id}: starting Spark, which talks to {log.path}")
            started.append(session(f"draindown {this.spec.pipeline}", size=size, log=log))
        return started[0]

    try:
        yield start
    finally:
        if started:
            from draindown.spark.session import stop

            stop(*started)


def _step(this: _Run, request: Request, spark: _Spark) -> Exit:
    """Run one step as its job would. Return its exit code."""
    from draindown.spark.job.main import attempt

    this.out.note(f"{this.spec.pipeline}/{request.flow}: {request.step}")
    report, code = attempt(
        request,
        lambda stop: _work(this, request, spark, stop),
        tell=this.tell(request),
        stop=this.stop,
    )
    this.out.progress_done()
    this.reports.append(report)
    this.exit = max(this.exit, code)
    this.ended = this.ended or _took_spark(report)
    return code


def _took_spark(report: StepReport) -> bool:
    """Return whether a step ended with an error after which no other flow can use the run's
    Spark.
    """
    code = (report.error or {}).get("code")
    if code != "crash":
        return code in _WITH_SPARK
    from draindown.spark.session import is_lost

    return is_lost()


def _work(this: _Run, request: Request, spark: _Spark, stop: Stop) -> StepReport:
    from draindown.planning import compaction
    from draindown.spark.job.steps import work

    if request.step == "compact" and (idle := compaction.idle(request)):
        return idle
    return work(
        request,
        spark(request),
        stop,
        progress=this.out.progress,
        source=this.sources.get(request.flow),
    )


def drain_instead(here: Setting, spec: PipelineSpec, flow: str, out: Output, **asked: Any) -> None:
    """Run the drain step with `asked`, print its card and exit with its code.

    `asked`: `replay` or `quarantine_ids`, and `command`, which goes on with it.
    """
    this = _Run(here, spec, out, asked)
    with _spark(this, size="small") as spark:
        _step(this, this.request(flow, "drain"), spark)
    this.finish()


def withdraw_rows(
    here: Setting, spec: PipelineSpec, flow: str, expectation: str, yes: bool, out: Output
) -> None:
    """Withdraw unpublished rows that fail, after printing them. Print the card and exit with its
    code.
    """
    from draindown.spark.job.main import attempt
    from draindown.spark.runs.withdrawal import Plan, refuse_impossible, withdraw

    command = f"draindown gate withdraw {spec.pipeline}/{flow} {shlex.quote(expectation)} --yes"
    this = _Run(here, spec, out, {"command": command})
    request, plans = this.request(flow, "drain"), list[Plan]()
    refuse_impossible(request, expectation)

    def agreed(plan: Plan) -> bool:
        plans.append(plan)
        if plan.rows:
            out.note(_withdrawal_text(plan))
        return yes

    with _spark(this, size="small") as spark:
        if yes:
            report, this.exit = attempt(
                request,
                lambda _stop: withdraw(request, spark(request), expectation, agreed=agreed),
                tell=this.tell(request),
            )
            this.reports.append(report)
        else:  # a plan writes no report: that of the failed check stays the newest
            withdraw(request, spark(request), expectation, agreed=agreed)
    if plans and not plans[0].rows:
        what = f"no row of {spec.pipeline}/{flow} that is not published makes {printable(expectation)} fail"
        out.result({"withdrawn": 0}, f"{what}; nothing to withdraw")
        return
    refuse_without(yes)
    if this.exit == Exit.DONE:
        out.note(
            f"next: draindown run {spec.pipeline}/{flow}   # judges the rest, and publishes it"
        )
    this.finish()


def _withdrawal_text(plan: Plan) -> str:
    from draindown.flow import withdrawals

    rows = [
        [printable("NULL" if value is None else value, 200) for value in row.values()]
        for row in plan.sample
    ]
    back = f"draindown quarantine release {plan.pipeline}/{plan.flow} --reason"
    reason = shlex.quote(f"{withdrawals.REASON}{plan.expectation}")
    return "\n".join(
        [
            f"gate withdraw {plan.pipeline}/{plan.flow}: {count(plan.rows)} of {count(plan.judged, 'row')} not yet "
            f"published make {printable(plan.expectation)} fail: {printable(plan.wants)}",
            *(
                f"  {line}"
                for line in table([printable(name) for name in plan.sample[0]], rows).splitlines()
            ),
            *([f"  and {count(plan.rows - len(rows))} more"] if plan.rows > len(rows) else []),
            "  they leave the table for the quarantine, whole; what was published stays as it is",
            "  a newer row of their key comes in as ever; the same one again, or an older one, stays out",
            f"  back into the table: {back} {reason} --yes",
        ]
    )


def rebuild_table(
    here: Setting,
    spec: PipelineSpec,
    flow: str,
    out: Output,
    size: RunSize,
    *,
    accept_missing: bool,
    drop_foreign: bool,
) -> None:
    """Read all input into a fresh table and swap it in. Print the card and exit with its code."""
    from draindown.spark.job.main import attempt
    from draindown.spark.runs.rebuild import rebuild

    words = " --accept-missing" * accept_missing + " --drop-foreign" * drop_foreign
    command = f"draindown rebuild {spec.pipeline}/{flow}{words} --yes"
    this = _Run(here, spec, out, {"command": command})
    request = this.request(flow, "drain")
    with _spark(this, size=size) as spark:
        report, this.exit = attempt(
            request,
            lambda stop: rebuild(
                request,
                spark(request),
                accept_missing=accept_missing,
                drop_foreign=drop_foreign,
                progress=out.progress,
                stop=stop,
            ),
            tell=this.tell(request),
        )
    out.progress_done()
    this.reports.append(report)
    this.finish()
