"""What every task of a flow does first: skip itself, or make its request."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from airflow.sdk.exceptions import AirflowSkipException

from draindown.airflow import unreached
from draindown.airflow.outcome import fail
from draindown.airflow.requests import (
    ENVIRONMENT_PARAM,
    left_out,
    project_root,
    refuse_conf,
    refuse_in_bundle,
    request_for,
)
from draindown.base import clock
from draindown.base.errors import DraindownError
from draindown.config.environment import VARIABLE, refuse_other
from draindown.config.models import PipelineSpec
from draindown.config.project import relative_lake, rooted
from draindown.lake.presence import Lake
from draindown.runs.request import Request, Step

if TYPE_CHECKING:
    from airflow.sdk import Context


def skip_other_flows(spec: PipelineSpec, flow: str, step: Step, context: Context) -> None:
    """Skip the task if the run is for another flow. Raises AirflowSkipException, StepFailed
    `bad-params`, `environment-mismatch`.
    """
    refuse_other_environment(spec, context)
    try:
        # before any skip, so that a run with a misspelt param does nothing
        refuse_conf(spec, context)
    except DraindownError as error:
        fail_unreached(spec, [flow], step, context, error)
    why = left_out(context["params"], flow)
    if why:
        raise AirflowSkipException(why)


def refuse_other_environment(spec: PipelineSpec, context: Context) -> None:
    """Fail a task whose process, or whose run, is of another environment than its DAG. Looks at no
    lake. Raises StepFailed `environment-mismatch`.
    """
    tried = f"run a task of DAG {spec.pipeline}"
    again = f"export {VARIABLE}={spec.environment}   # wherever Airflow parses DAGs and runs tasks"
    asked = (context["dag_run"].conf or {}).get(ENVIRONMENT_PARAM)
    environs = [os.environ, {VARIABLE: str(asked)} if asked else {}]
    try:
        for environ in environs:
            refuse_other(spec.environment, environ, tried=tried, next=again)
    except DraindownError as error:
        fail(error)


def request_of(spec: PipelineSpec, flow: str, step: Step, context: Context) -> Request:
    """Return the request of a step from its running task. Raises as `fail_unreached`."""
    try:
        return request_for(spec, flow, step, project_root(str(context["dag"].fileloc)), context)
    except DraindownError as error:
        fail_unreached(spec, [flow], step, context, error)


def fail_unreached(
    spec: PipelineSpec, flows: Iterable[str], step: Step, context: Context, error: DraindownError
) -> NoReturn:
    """Fail the task as `outcome.fail` does, and leave in each flow the report that the step would
    leave.
    """
    # no root, or no lake, on this worker: the task's log has the error alone
    with contextlib.suppress(DraindownError):
        root = project_root(str(context["dag"].fileloc))
        refuse_in_bundle(root, relative_lake(spec.lake))
        placed = rooted(spec, root)
        Lake.look(placed.lake, root, spec.pipeline).refuse_missing()
        unreached.leave(
            [placed.layout(flow) for flow in flows], step, context, error.as_dict(), clock.now()
        )
    fail(error)
