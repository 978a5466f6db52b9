"""The tasks of a flow: `plan` without a JVM, then drain, check and compact through spark-submit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException

from draindown.airflow.outcome import LeaseHeld, fail, verdict, wait_or_fail
from draindown.airflow.process import die_with_parent, stop
from draindown.airflow.requests import left_out, project_root, refuse_unknown, request_for
from draindown.base import clock
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.formatting import printable
from draindown.launch.settings import settings, spark_python, spark_submit
from draindown.ledger import rows as ledger_rows
from draindown.runs import store
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import STEPS, Request, Step
from draindown.spec.models import PipelineSpec

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context


CONNECTION_VARIABLE = "DRAINDOWN_SPARK_CONN"
ALONE = "local[*]"


class PlanOperator(BaseOperator):
    """List what waits and decide what the flow's other tasks must do; reads files and Delta logs, starts no JVM."""

    template_fields: Sequence[str] = ()
    ui_color = "#eef4fb"

    def __init__(self, *, spec: PipelineSpec, flow: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec, self.flow = spec, flow

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan as a flat dict for the tasks that follow."""
        # deltalake is heavy: needed by the task that runs, never by the parser
        from draindown.planning.plan import planned

        _skip_other_flows(self.spec, self.flow, context)
        try:
            report = planned(_request(self.spec, self.flow, "plan", context))
        except DraindownError as error:
            fail(error)
        part = report.plan
        assert part is not None, "a plan that can't be made is an error"
        _log_plan(self.log, part, [f"{f.kind}: {f.subject}: {f.detail}" for f in report.findings])
        found: dict[str, Any] = part.model_dump(mode="json")
        return found


class StepOperator(SparkSubmitOperator):
    """Run one step's job unless the plan says it isn't needed; its driver never outlives the task.

    Only client mode: the driver is this task's child, so that ending the task ends it. `application`, class path and
    Python are those of the machine that runs the task.
    """

    # nothing is rendered: what a person types when starting a run reaches the job inside the encoded request only
    template_fields: Sequence[str] = ()
    ui_color = "#e8f6ee"

    def __init__(self, *, spec: PipelineSpec, flow: str, step: Step, asset: Asset | None = None, **kwargs: Any) -> None:
        super().__init__(
            application=f"jobs/{step}.py",
            name=f"draindown {spec.pipeline}.{flow} {step}",
            conn_id=os.environ.get(CONNECTION_VARIABLE, "spark_default"),
            durable=False,
            outlets=[asset] if asset else [],
            **kwargs,
        )
        self.spec, self.flow, self.step, self.asset = spec, flow, step, asset

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the job, judge how it ended, show its card and return its numbers."""
        _skip_other_flows(self.spec, self.flow, context)
        try:
            request = _request(self.spec, self.flow, self.step, context)
            part = self._planned(context)
            self._skip_unless_wanted(part, request)
            self.prepare(request, short=self.step != "drain" or (part is not None and part.is_little))
        except DraindownError as error:
            fail(error)
        started = clock.now()
        exit_code = self._submit()
        report = store.read(request.layout, request.run_id, self.step)
        if report is not None and report.finished_at < started:
            report = None  # an earlier try wrote it; this driver died before it could
        self._show(request, report)
        try:
            verdict(exit_code, report)
        except LeaseHeld as held:
            wait_or_fail(held, context["ti"].get_first_reschedule_date(context), clock.now())
        return self._done(report, request, context)

    def prepare(self, request: Request, *, short: bool) -> None:
        """Set what depends on the machine that runs the task: program, class path, Python, the encoded request.

        `short` starts the JVM faster at the price of peak speed.
        """
        self.application = str(Path(request.root) / "jobs" / f"{self.step}.py")
        self.application_args = ["--request", request.encode()]
        self._spark_binary = str(_spark_submit())
        self.env_vars = spark_python()
        master = self._get_hook()._connection["master"]
        self.conf = dict(settings(master, short=short))
        self._hook = self._get_hook()

    def on_kill(self) -> None:
        """Stop the driver politely, then for good, in less time than Airflow grants."""
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None:
            stop(process)

    def _get_hook(self) -> SparkSubmitHook:
        known = _has_connection(self._conn_id)
        hook: SparkSubmitHook = super()._get_hook()
        if not known:
            # the provider would quietly submit to YARN instead
            self.log.info("no Spark connection %r: using %s on this machine", self._conn_id, ALONE)
            hook._connection["master"] = ALONE
        if hook._connection["deploy_mode"] == "cluster":
            raise TerminalError(
                "cluster-deploy-mode",
                tried=f"submit {self.step} through connection {self._conn_id}",
                found="deploy-mode cluster: the driver would outlive its task",
                next=f"set deploy-mode client in the connection {self._conn_id}",
            )
        return hook

    def _submit(self) -> int:
        hook = self._hook
        assert hook is not None, "prepare() makes the hook"
        self.log.info("%s on %s", self.name, hook._connection["master"])
        try:
            hook.submit(self.application, preexec_fn=die_with_parent, start_new_session=True)
        except AirflowException:
            process = getattr(hook, "_submit_sp", None)
            if process is None or not process.returncode:
                raise
            return int(process.returncode)
        finally:
            output = getattr(getattr(hook, "_submit_sp", None), "stdout", None)
            if output is not None:
                output.close()  # the hook leaves it open
        return 0

    def _planned(self, context: Context) -> PlanPart | None:
        # None: the task was started alone; the job itself finds out whether there is anything to do
        group = self.task_id.rsplit(".", 1)[0]
        found = context["ti"].xcom_pull(task_ids=f"{group}.plan")
        return None if found is None else PlanPart.model_validate(found)

    def _skip_unless_wanted(self, part: PlanPart | None, request: Request) -> None:
        from draindown.planning.compaction import work

        if part is None or (self.step == "compact" and request.force):
            return
        reason = "" if getattr(part, self.step) else part.reasons.get(self.step, f"nothing to {self.step}")
        if self.step == "compact" and not reason:
            # the plan can't know what the drain leaves behind; looking is cheap, a JVM is not
            found = work(request.layout, request.flow_spec.maintenance)
            reason = "" if found else str(found)
        if reason:
            self._show(request, None)
            raise AirflowSkipException(reason)

    def _show(self, request: Request, report: StepReport | None) -> None:
        """The step's card in the task log; after the last step, the whole flow's."""
        from draindown.runs.card import card

        shown = [report] if report else []
        if self.step == STEPS[-1]:
            found = (store.read(request.layout, request.run_id, step) for step in STEPS)
            shown = [step for step in found if step is not None]
        if shown:
            for line in card(shown).splitlines():
                self.log.info("%s", line)

    def _done(self, report: StepReport | None, request: Request, context: Context) -> dict[str, Any]:
        assert report is not None, "verdict() refuses success without a report"
        numbers = summary(report)
        if self.asset is not None:
            if report.outcome == "idle" and not _published_by(request):
                # any success would tell the asset's consumers that something was published
                raise AirflowSkipException("nothing new to publish")
            context["outlet_events"][self.asset].extra = numbers
        return numbers


def _skip_other_flows(spec: PipelineSpec, flow: str, context: Context) -> None:
    try:
        refuse_unknown(spec, context)  # before anything is left out: of a misspelt run nothing is done
    except DraindownError as error:
        fail(error)
    why = left_out(context["params"], flow)
    if why:
        raise AirflowSkipException(why)


def summary(report: StepReport) -> dict[str, Any]:
    """The numbers of a step that travel through XCom and asset events: flat, small, JSON-ready."""
    numbers: dict[str, Any] = {"outcome": report.outcome, "seconds": round(report.seconds, 1)}
    if report.drain:
        newest = [b["max_sequence"] for b in report.drain.batches if b.get("max_sequence")]
        numbers |= report.drain.totals | {"max_sequence": ledger_rows.newest_sequence(newest)}
        numbers |= {"bound": report.drain.bound, "replay": report.drain.replay}
    if report.check:
        numbers |= {"version": report.check.published_after, "rows": report.check.changed_rows}
    if report.compact:
        numbers |= {"files_before": report.compact.files_before, "files_after": report.compact.files_after}
    return numbers


def _request(spec: PipelineSpec, flow: str, step: Step, context: Context) -> Request:
    root = project_root(str(context["dag"].fileloc))
    return request_for(spec, flow, step, root, context)


def _published_by(request: Request) -> bool:
    """Whether this run moved the published pointer: an earlier try may have, and died before it could tell."""
    from draindown.gate.published import published

    pointer = published(request.layout)
    return pointer is not None and pointer.run_id == request.run_id


def _has_connection(conn_id: str) -> bool:
    try:
        BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return False
    except (AirflowException, ValueError) as error:
        raise TerminalError(
            "bad-spark-connection",
            tried=f"read the Airflow connection {conn_id}",
            found=f"{type(error).__name__}: {error}",
            next=f'AIRFLOW_CONN_{conn_id.upper()}=\'{{"conn_type":"spark","host":"local[*]"}}\'',
        ) from error
    return True


def _spark_submit() -> Path:
    found = spark_submit()
    if not found.is_file():
        raise TerminalError(
            "no-spark-submit",
            tried=f"find {found}",
            found="there is none; pyspark-client alone brings no spark-submit",
            next=["make setup", "export DRAINDOWN_SPARK_SUBMIT=/path/to/spark-submit"],
        )
    return found


def _log_plan(log: Any, part: PlanPart, findings: list[str]) -> None:
    waiting = part.backlog
    forecast = f", about {part.seconds:.0f} s" if part.seconds is not None else ""
    what = f"replay {part.replay}: to read again" if part.replay else "waiting"
    log.info("%s: %d files, %d bytes; %d batches%s", what, waiting.files, waiting.bytes, part.batches, forecast)
    for step in STEPS[1:]:
        log.info("%s: %s (%s)", step, "yes" if getattr(part, step) else "no", part.reasons.get(step, ""))
    for finding in findings:
        log.warning("%s", printable(finding))
