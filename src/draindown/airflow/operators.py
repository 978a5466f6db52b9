"""The tasks of a flow that start a driver through spark-submit: drain, check and compact."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset
from airflow.sdk._shared.secrets_masker import redact
from airflow.sdk.exceptions import AirflowSkipException, AirflowTaskTimeout

from draindown.airflow import fused, secrets, spark_connection
from draindown.airflow.numbers import publish, summary
from draindown.airflow.outcome import (
    LEASE_HELD,
    LeaseHeld,
    fail,
    panics_named,
    verdict,
    wait_or_fail,
)
from draindown.airflow.process import die_with_parent, ended_with_supervisor, stop
from draindown.airflow.task import request_of, skip_other_flows
from draindown.base import clock
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import Exit
from draindown.base.run_size import RunSize
from draindown.config.models import PipelineSpec
from draindown.launch.settings import settings, spark_python, spark_submit
from draindown.runs import report as reports
from draindown.runs import store
from draindown.runs.driver_log import DriverLog
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import STEPS, Request, Step, begun_at
from draindown.runs.step_lines import begun, error_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from draindown.gate.published import Published


class _Ended(NamedTuple):
    """How a step ended. `error`: what the driver printed of it, whether or not it left a report."""

    code: int
    report: StepReport | None
    log: str
    error: dict[str, Any] | None = None


class StepOperator(SparkSubmitOperator):
    """Run one step's job unless the plan says that it isn't needed. The driver never outlives the
    task.

    Only client mode is supported: the driver is a child of the task, so the end of the task ends
    it. `application`, class path and Python are those of the machine that runs the task.
    """

    # no field is a template: user input of a run reaches the job inside the encoded request only
    template_fields: Sequence[str] = ()
    ui_color = "#e8f6ee"
    _driver: subprocess.Popen[str] | None = None
    _secrets: Mapping[str, str] = MappingProxyType({})
    _error: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        spec: PipelineSpec,
        flow: str,
        step: Step,
        asset: Asset | None = None,
        **kwargs: Any,
    ) -> None:
        named = os.environ.get(spark_connection.VARIABLE)
        super().__init__(
            application=f"jobs/{step}.py",
            name=f"draindown {spec.pipeline}.{flow} {step}",
            conn_id=named or spark_connection.DEFAULT,
            durable=False,
            outlets=[asset] if asset else [],
            **kwargs,
        )
        self.spec, self.flow, self.step, self.asset, self._names_connection = (
            spec,
            flow,
            step,
            asset,
            bool(named),
        )

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Submit the job, map its end to Airflow's outcome, log the card and return its numbers."""
        skip_other_flows(self.spec, self.flow, self.step, context)
        request = request_of(self.spec, self.flow, self.step, context)
        report = fused.take(request, self._pulled(context, "drain"))
        if report is not None and report.fused is not None:
            ended = _Ended(
                report.fused.exit,
                report,
                request.layout.start(request.run_id, self.step, report.start).log,
            )
            self.log.info(
                "done by the driver of drain %s, after it; Spark talked to %s",
                report.fused.drain,
                ended.log,
            )
        else:
            request = self._prepare_or_fail(request, context)
            self._log_earlier_try(request)
            ended = self._driven(request)
            report = ended.report
        self._show(request, report)
        if report is not None:
            publish(report)
        elif self.step == "drain":
            self._log_lost_start(request)
        try:
            verdict(*ended)
        except LeaseHeld as held:
            wait_or_fail(held, context["ti"].get_first_reschedule_date(context), clock.now())
        return self._done(report, request, context)

    def _driven(self, request: Request) -> _Ended:
        """Run a driver to its end. Return how the task's own step ended."""
        log, timeout = DriverLog.of(request.layout, request.run_id, self.step, request.start), None
        path = log.path  # a step that follows turns the log to its own file
        try:
            code = self._submit(log, request)
        except AirflowTaskTimeout as error:
            code, timeout = -signal.SIGKILL, error
        report = store.read(request.layout, request.run_id, self.step, request.start)
        own = fused.ended(request, report, code)
        if timeout is not None and own != Exit.DONE:
            raise timeout
        if own != code:
            self.log.warning(
                "the driver died after its %s was over: what it did next begins again by itself",
                self.step,
            )
        if report is None and self._error is not None:
            self.log.warning("the driver exited but could not write its report")
        return _Ended(own, report, path, self._error)

    def _prepare_or_fail(self, request: Request, context: Context) -> Request:
        """Prepare the job, and return its request. If that fails, leave the report that the job
        would leave.
        """
        started = clock.now()
        try:
            part = self._planned(context)
            with panics_named(f"prepare the {self.step} of flow {self.flow}"):
                self._skip_unless_wanted(part, request)
            request = request.model_copy(
                update={"then": fused.then(self.step, part), "announces": True}
            )
            self.prepare(request, size=self._size(part))
            self._secrets = secrets.of_connections(self.spec)
        except DraindownError as error:
            # the cause of the error may also prevent writing the report
            with contextlib.suppress(OSError):
                store.write(
                    request.layout, reports.of(request, started, "failed", error=error.as_dict())
                )
            fail(error)
        return request

    def _size(self, part: PlanPart | None) -> RunSize:
        if self.step != "drain":
            return "small"
        return "medium" if part is None else part.size

    def prepare(self, request: Request, *, size: RunSize) -> None:
        """Set what depends on the machine that runs the task: program, class path, Python, the
        encoded request.
        """
        self.application = str(Path(request.root) / "jobs" / f"{self.step}.py")
        self.application_args = ["--request", request.encode()]
        self._spark_binary = str(_spark_submit())
        self.env_vars = spark_python()
        found = spark_connection.find(self._conn_id, named=self._names_connection)
        hook = spark_connection.Hook(
            found, name=self.name, env_vars=self.env_vars, spark_binary=self._spark_binary
        )
        hook._conf = self.conf = dict(settings(hook._connection["master"], size=size))
        self._hook = hook

    def on_kill(self) -> None:
        """Stop the driver with SIGTERM, then with SIGKILL, within the time that Airflow grants."""
        if self._driver is not None:
            stop(self._driver)

    def _submit(self, log: DriverLog, request: Request) -> int:
        """Run the job to its end and return its exit code. Its stdout goes to the task's log, its
        stderr to `log`.

        What it says once it does another step goes to the log of that step.
        The provider's hook builds the command but does not run it: it would log the command and mix
        both outputs.
        """
        hook = self._hook
        assert hook is not None, "prepare() makes the hook"
        command = [
            *hook._get_spark_binary_path(),
            *hook._build_spark_common_args(),
            self.application,
        ]
        command += self.application_args or []
        log.heading(hook._mask_cmd(shlex.join(command)))
        self.log.info(
            "%s on %s; Spark talks to %s", self.name, hook._connection["master"], log.path
        )
        started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # not through env_vars: for some masters the provider puts these on the command line
            env={**os.environ, **(hook._env or {}), **self._secrets},
            text=True,
            errors="backslashreplace",
            preexec_fn=die_with_parent,
            start_new_session=True,
        )
        with ended_with_supervisor(), started as self._driver:
            assert self._driver.stdout is not None and self._driver.stderr is not None
            pump = log.pump(str(redact(line)) for line in self._driver.stderr)
            try:
                for line in self._driver.stdout:
                    self.log.info("%s", line.rstrip("\n"))
                    self._error = error_of(line, self.step) or self._error
                    if step := begun(line):
                        log.turn_to(request.layout.start(request.run_id, *step).log)
            except BaseException:
                stop(self._driver)  # leaving the block waits for its end
                raise
            pump.join()
        log.close()
        return self._driver.returncode

    def _log_earlier_try(self, request: Request) -> None:
        """Log the outcome of an earlier try. Its own log may lack it, if its supervisor was
        killed.
        """
        from draindown.flow.at_work import left
        from draindown.runs import card

        report = store.read(request.layout, request.run_id, self.step)
        told = card.verdict([report], whole=False) if report else ""
        ended = f"{report.finished_at:%Y-%m-%d %H:%M:%S}" if report else ""
        if before := left(request.layout, self.spec.pipeline, request.run_id, self.step):
            self.log.warning("an earlier try left no report: %s", before)
        elif report is not None and report.outcome != "failed":
            why = "the task was cleared, or its supervisor was killed before Airflow heard of it"
            if report.fused is not None:
                why = f"by the driver of drain {report.fused.drain}"
            self.log.warning("an earlier try ended well at %s UTC (%s): %s", ended, why, told)
        elif (
            report is not None and (report.error or {}).get("code") != LEASE_HELD
        ):  # a wait is no try
            self.log.warning("an earlier try failed at %s UTC: %s", ended, told)

    def _planned(self, context: Context) -> PlanPart | None:
        # None if the task was started alone; the job itself then finds out whether it has work
        found = self._pulled(context, "plan")
        return None if found is None else PlanPart.model_validate(found)

    def _pulled(self, context: Context, step: Step) -> Any:
        """Return what the task of another step of this flow returned in this run, or None."""
        return context["ti"].xcom_pull(task_ids=f"{self.task_id.rsplit('.', 1)[0]}.{step}")

    def _skip_unless_wanted(self, part: PlanPart | None, request: Request) -> None:
        from draindown.planning.compaction import work

        if part is None or (self.step == "compact" and request.force):
            return
        reason = (
            ""
            if getattr(part, self.step)
            else part.reasons.get(self.step, f"nothing to {self.step}")
        )
        if self.step == "compact" and not reason:
            # the plan can't know what the drain leaves; reading the logs is cheap, a JVM is not
            found = work(request.layout, request.declared.maintenance)
            reason = "" if found else str(found)
        if reason:
            self._show(request, None)
            raise AirflowSkipException(reason)

    def _show(self, request: Request, report: StepReport | None) -> None:
        """Log the card of this start; after the last step, the card of the whole flow."""
        from draindown.flow.at_work import of_reports
        from draindown.runs.card import card

        shown, whole = [report] if report else [], self.step == STEPS[-1]
        if whole:
            from draindown.runs import starts  # imports deltalake

            shown = starts.newest(request.layout, request.run_id)
        if shown:
            for line in card(
                shown, of_reports(lambda _: request.layout, shown), whole=whole
            ).splitlines():
                self.log.info("%s", line)

    def _log_lost_start(self, request: Request) -> None:
        """Log what a start whose driver died without a report committed, according to the
        ledger.
        """
        from draindown.runs import starts

        for lost in starts.listed(request.layout, request.run_id):
            if lost.start == request.start:
                self.log.warning(
                    "the driver left no report; by the ledger it committed %s", lost.made
                )

    def _done(
        self, report: StepReport | None, request: Request, context: Context
    ) -> dict[str, Any]:
        assert report is not None, "verdict() refuses success without a report"
        numbers = summary(report)
        if self.asset is not None:
            run_id, start = request.run_id, report.start
            if report.outcome == "idle":
                pointer = _published_by(request) or fused.unannounced(request.layout)
                # a success would be an asset event, although nothing was published
                if pointer is None:
                    raise AirflowSkipException("nothing new to publish")
                numbers |= {"version": pointer.version, "rows": pointer.changed_rows}
                run_id, start = pointer.run_id, pointer.start
            if start and not fused.announce(request, run_id, start):
                raise AirflowSkipException(
                    f"version {numbers['version']} was announced by another run"
                )
            context["outlet_events"][self.asset].extra = numbers
        return numbers


def _published_by(request: Request) -> Published | None:
    """Return what this run published since it was planned: an earlier try may have, and died before
    it reported it.

    A cleared run is planned again. What it published before that was reported then.
    """
    from draindown.gate.published import published

    pointer, planned = published(request.layout), store.read(request.layout, request.run_id, "plan")
    if pointer is None or pointer.run_id != request.run_id:
        return None
    return (
        pointer
        if planned is None or (begun_at(pointer.start) or pointer.at) >= planned.order
        else None
    )


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
