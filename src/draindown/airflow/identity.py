"""From a task that runs to the request its job gets: project root, suite, run identity, typed params."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draindown.errors import TerminalError
from draindown.project import rooted, suite
from draindown.request import Request, Step
from draindown.spec import PipelineSpec

ROOT_VARIABLE = "DRAINDOWN_ROOT"


def project_root(dag_file: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory that holds `jobs/` as this worker sees it: DRAINDOWN_ROOT, or the nearest above the DAG file.

    Raises TerminalError `no-project-root`: a path that another machine saw is never used.
    """
    given = environ.get(ROOT_VARIABLE)
    tried = [Path(given)] if given else list(Path(dag_file).resolve().parents)
    for place in tried:
        if (place / "jobs" / "drain.py").is_file():
            return place.resolve()
    raise TerminalError(
        "no-project-root",
        tried=f"find jobs/drain.py {'in ' + given if given else 'above ' + dag_file}",
        found="there is none on this worker",
        next=f"set {ROOT_VARIABLE} to the directory that holds dags/ and jobs/",
    )


def bounds(params: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that a person may set when starting a run; absent ones are left out."""
    chosen: dict[str, Any] = {"force": bool(params.get("force_compact"))}
    if params.get("max_batches") is not None:
        chosen["max_batches"] = int(params["max_batches"])
    if params.get("deadline_minutes") is not None:
        chosen["deadline"] = float(params["deadline_minutes"]) * 60
    return chosen


def request_for(spec: PipelineSpec, flow: str, step: Step, root: Path, context: Mapping[str, Any]) -> Request:
    """The request of one step, with the identity of the running task and the params of its DAG run."""
    flow_spec = spec.flow(flow)
    task = context["ti"]
    fields: dict[str, Any] = {"max_batches": flow_spec.max_batches, "deadline": flow_spec.deadline}
    return Request(
        spec=rooted(spec, root),
        flow=flow,
        step=step,
        run_id=context["run_id"],
        try_number=task.try_number,
        owner=f"{task.dag_id} {context['run_id']} {task.task_id} try {task.try_number}",
        root=str(root),
        suite=suite(root, flow_spec.expectations) if flow_spec.expectations else None,
        **(fields | bounds(context["params"])),
    )
