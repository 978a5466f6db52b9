"""Build the request of a job from the running task: project root, suite, run identity, typed
params.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.config.names import near
from draindown.config.project import relative, rooted, suite
from draindown.config.units import parse_time
from draindown.lake.presence import Lake
from draindown.runs import store
from draindown.runs.request import Again, Request, Step

PARAMS = ("mode", "from", "to", "again", "flow", "max_batches", "max_minutes", "force_compact")
"""Names of the params of a run, in the order of the trigger form."""
ENVIRONMENT_PARAM = "environment"
"""Name of the param that says for which environment a DAG is built, in a project with environments.
"""
_MOST, _SHOWN = 5, 80  # unknown names in an error, and characters of each
ROOT_VARIABLE = "DRAINDOWN_ROOT"


def project_root(dag_file: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory that holds `jobs/` on this worker: DRAINDOWN_ROOT, or the nearest above
    the DAG file.

    Raises TerminalError `no-project-root`. A path of another machine is never used.
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


def refuse_in_bundle(root: Path, paths: Sequence[str]) -> None:
    """Refuse relative paths where the project root is a version of a DAG bundle. `paths`: labels of
    the relative paths.

    Airflow keeps a directory per version and removes old ones: the lake would be another and empty
    one at each commit. Raises TerminalError `lake-in-bundle`.
    """
    if paths and _is_of_a_version(root):
        raise TerminalError(
            "lake-in-bundle",
            tried=f"find {' and '.join(paths)} below {root}",
            found="a relative path, in a directory that Airflow makes for a version of the DAG bundle, then removes",
            next=[
                "write absolute paths, or export DRAINDOWN_LAKE and DRAINDOWN_LANDING if the file names these",
                f"export {ROOT_VARIABLE}=...   # a directory with jobs/, the same for all versions",
            ],
        )


def _is_of_a_version(root: Path) -> bool:
    from airflow.dag_processing.bundles.base import get_bundle_storage_root_path

    home = Path(get_bundle_storage_root_path()).resolve()  # type: ignore[no-untyped-call]
    return root.is_relative_to(home) and root.relative_to(home).parts[1:2] == ("versions",)


def refuse_conf(spec: PipelineSpec, context: Mapping[str, Any]) -> None:
    """Refuse a run whose conf holds an unknown param, or one that Airflow does not apply. Airflow
    accepts any key.

    Raises TerminalError `bad-params`, which names the closest known param, or the setting by which
    Airflow drops them.
    """
    conf, params = context["dag_run"].conf or {}, context["params"]
    known = (*PARAMS, ENVIRONMENT_PARAM) if spec.environment else PARAMS
    unknown = [name for name in conf if name not in known]
    if unknown:
        said = [
            f"there is no param {name[:_SHOWN]!r}{near(name[:_SHOWN], known)}"
            for name in unknown[:_MOST]
        ]
        more = [f"and {len(unknown) - _MOST} more"] if len(unknown) > _MOST else []
        raise _bad(
            spec, context["run_id"], f"{'; '.join([*said, *more])}; there are {', '.join(known)}"
        )
    dropped = [name for name in known if name in conf and conf[name] != params.get(name)]
    if dropped:
        cause = "AIRFLOW__CORE__DAG_RUN_CONF_OVERRIDES_PARAMS must be True where tasks run"
        raise _bad(
            spec,
            context["run_id"],
            f"Airflow drops what the run says of {', '.join(dropped)}: {cause}",
        )


def refuse_contradictions(spec: PipelineSpec, context: Mapping[str, Any]) -> None:
    """Refuse a run whose params no flow can run with. Raises TerminalError `bad-params`."""
    refuse_conf(spec, context)
    replay(spec, context)


def bounds(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that the params set; absent params are left out."""
    chosen: dict[str, Any] = {"force": bool(params.get("force_compact"))}
    if params.get("max_batches") is not None:
        chosen["max_batches"] = int(params["max_batches"])
    if params.get("max_minutes") is not None:
        chosen["max_duration"] = float(params["max_minutes"]) * 60
    return chosen


def left_out(params: Mapping[str, Any], flow: str) -> str:
    """Return why the run skips this flow; empty if it does not."""
    only = params.get("flow")
    return f"the run is for flow {only} only" if only not in (None, flow) else ""


def replay(spec: PipelineSpec, context: Mapping[str, Any]) -> Again | None:
    """Return the input that the run reads again: a backfill its interval, mode replay its range,
    any other run None.

    Raises TerminalError `bad-params` if the params contradict each other or the run.
    """
    run, params = context["dag_run"], context["params"]
    try:
        since, until = (
            None if params.get(name) is None else parse_time(params[name])
            for name in ("from", "to")
        )
    except ValueError as error:
        raise _bad(spec, run.run_id, str(error)) from None
    again = bool(params.get("again"))
    if run.run_type == "backfill":
        if since or until:
            raise _bad(
                spec,
                run.run_id,
                "from or to is given, but a run of a backfill replays its own interval",
            )
        if run.data_interval_start is None:
            raise _bad(spec, run.run_id, "a run of a backfill that has no interval")
        return Again(since=run.data_interval_start, until=run.data_interval_end, again=again)
    if params.get("mode") != "replay":
        if since or until or again:
            raise _bad(
                spec, run.run_id, "from, to and again are for mode replay; the mode is drain"
            )
        return None
    if since is None or until is None or since >= until:
        raise _bad(spec, run.run_id, "mode replay needs a time in from and a later one in to")
    return Again(since=since, until=until, again=again)


def _bad(spec: PipelineSpec, run_id: str, found: str) -> TerminalError:
    conf = '{"mode": "replay", "from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}'
    return TerminalError(
        "bad-params",
        tried=f"read the params of run {run_id}",
        found=found,
        next=[
            "start a new run; a retry reads the same params",
            f"airflow dags trigger {spec.pipeline} --conf '{conf}'",
        ],
    )


def _follows(spec: PipelineSpec, flow: str, context: Mapping[str, Any]) -> bool:
    """Return whether a flow drains what a replay of others changed: a derived one, unless the run
    is for it alone.
    """
    return spec.is_derived(flow) and context["params"].get("flow") != flow


def _replay_of(spec: PipelineSpec, context: Mapping[str, Any]) -> Again | None:
    """Return what `replay` returns. A flow that appends stops no run that is for other flows,
    too.
    """
    found = replay(spec, context)
    of_all = context["params"].get("flow") is None and len(spec.flows) > 1
    return found and found.model_copy(update={"of_all": of_all})


def request_for(
    spec: PipelineSpec, flow: str, step: Step, root: Path, context: Mapping[str, Any]
) -> Request:
    """Return the request of one step, with the identity of the running task and the params of its
    DAG run.

    Raises TerminalError `bad-params`, `bad-suite`, `lake-in-bundle`, `lake-misread`,
    `lake-missing`.
    """
    flow_spec = spec.declared(flow)
    refuse_in_bundle(root, relative(spec, flow))
    placed = rooted(spec, root)
    Lake.look(placed.lake, root, spec.pipeline).refuse_missing()
    task = context["ti"]
    asked = None if _follows(spec, flow, context) else _replay_of(spec, context)
    made = Request(
        spec=placed,
        flow=flow,
        step=step,
        run_id=context["run_id"],
        try_number=task.try_number,
        owner=f"{task.dag_id} {context['run_id']} {task.task_id} try {task.try_number}",
        root=str(root),
        suite=suite(root, flow_spec.expectations) if flow_spec.expectations else None,
        replay=asked,
        command=f"draindown replay {spec.pipeline}/{flow} {asked.options} --yes" if asked else "",
        **bounds(context["params"]),
    )
    return made.model_copy(update={"start": store.next_start(made.layout)})
