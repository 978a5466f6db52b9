"""The tasks that plan: one for all flows, and one of each flow. Neither starts a JVM."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseXCom
from airflow.sdk.exceptions import DownstreamTasksSkipped

from draindown.airflow import fused, secrets
from draindown.airflow.outcome import fail, panics_named
from draindown.airflow.plan_log import log_plan
from draindown.airflow.requests import left_out, project_root, refuse_contradictions, request_for
from draindown.airflow.task import (
    fail_unreached,
    refuse_other_environment,
    request_of,
    skip_other_flows,
)
from draindown.base import clock
from draindown.base.errors import DraindownError
from draindown.config.models import PipelineSpec
from draindown.runs import report as reports
from draindown.runs import store
from draindown.runs.request import STEPS, Request

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanAllOperator(BaseOperator):
    """Look at all flows at once, and skip all tasks of those that have nothing to do. Starts no
    JVM.

    A flow that is not skipped is planned by its own tasks, once what it reads is published. What
    keeps one flow from being planned is raised there.
    """

    template_fields: Sequence[str] = ()
    ui_color = "#eef4fb"

    def __init__(self, *, spec: PipelineSpec, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec

    def execute(self, context: Context) -> None:
        """Skip the tasks of idle flows, and of flows that the run is not for."""
        from draindown.planning.idle import idle  # imports deltalake
        from draindown.runs.card import card

        refuse_other_environment(self.spec, context)
        params: Mapping[str, Any] = context["params"]
        not_for = {flow: why for flow in self.spec.flows if (why := left_out(params, flow))}
        try:
            refuse_contradictions(self.spec, context)
            with (
                panics_named(f"plan pipeline {self.spec.pipeline}"),
                secrets.in_environment(self.spec),
            ):
                requests = self._requests(context, not_for)
                found = idle(requests, self.spec.graph, self.log.warning)
            found = {
                flow: report
                for flow, report in found.items()
                if not fused.unannounced(requests[flow].layout)
            }
        except DraindownError as error:
            fail_unreached(self.spec, self.spec.flows, "plan", context, error)
        for flow, why in not_for.items():
            self.log.info("%s: %s", flow, why)
        for line in card(list(found.values())).splitlines() if found else ():
            self.log.info("%s", line)
        skipped = [f"{flow}.{step}" for flow in (*not_for, *found) for step in STEPS]
        if skipped:
            raise DownstreamTasksSkipped(tasks=skipped)  # type: ignore[no-untyped-call]

    def _requests(self, context: Context, not_for: Collection[str]) -> dict[str, Request]:
        root, found = project_root(str(context["dag"].fileloc)), {}
        for flow in (name for name in self.spec.flows if name not in not_for):
            # the flow's own plan raises it, such as that of a broken suite
            with contextlib.suppress(DraindownError):
                found[flow] = request_for(self.spec, flow, "plan", root, context)
        return found


class PlanOperator(BaseOperator):
    """Read files and Delta logs and decide what the flow's other tasks must do. Starts no JVM."""

    template_fields: Sequence[str] = ()
    ui_color = "#eef4fb"

    def __init__(self, *, spec: PipelineSpec, flow: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec, self.flow = spec, flow

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the plan as a flat dict for the tasks that follow; those of an idle flow are
        skipped.
        """
        # deltalake is slow to import: only the running task needs it, never the DAG parser
        from draindown.planning.plan import planned

        skip_other_flows(self.spec, self.flow, "plan", context)
        request = request_of(self.spec, self.flow, "plan", context)
        try:
            with panics_named(f"plan flow {self.flow}"), secrets.in_environment(self.spec):
                report = planned(request)
            waiting = fused.unannounced(request.layout)
        except DraindownError as error:
            # a plan reports its own errors, but not a connection that is missing
            with contextlib.suppress(OSError):
                reported = (
                    store.read(request.layout, request.run_id, "plan", request.start) is not None
                )
                if not reported and error.code != "lake-missing":
                    store.write(
                        request.layout,
                        reports.of(request, clock.now(), "failed", error=error.as_dict()),
                    )
            fail(error)
        part = report.plan
        assert part is not None, "a plan that can't be made is an error"
        if waiting is not None and not part.check:
            why = f"version {waiting.version} was published by run {waiting.run_id}, and no asset event says so yet"
            part = part.model_copy(update={"check": True, "reasons": part.reasons | {"check": why}})
        log_plan(self.log, part, [f"{f.kind}: {f.subject}: {f.detail}" for f in report.findings])
        found: dict[str, Any] = part.model_dump(mode="json")
        if report.outcome == "idle" and not request.force and not part.check:
            context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=found)
            skipped = [f"{self.flow}.{step}" for step in STEPS[1:]]
            raise DownstreamTasksSkipped(tasks=skipped)  # type: ignore[no-untyped-call]
        return found
