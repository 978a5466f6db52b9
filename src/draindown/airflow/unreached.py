"""Leave the report of a run that fails before it reaches a flow, so that `report` and the page show
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from draindown.airflow.requests import project_root, refuse_in_bundle
from draindown.base.errors import DraindownError
from draindown.config.project import relative_lake
from draindown.lake.home import FlowHome
from draindown.lake.presence import Lake
from draindown.runs import report, store
from draindown.runs.request import Step


def leave(
    layouts: Iterable[FlowHome],
    step: Step,
    context: Mapping[str, Any],
    error: Mapping[str, Any],
    at: datetime,
) -> None:
    """Write a failed report of `step` into each flow. A lake that can't be written does not hide
    the error itself.
    """
    run_id = context.get("run_id")
    for layout in layouts if run_id else ():
        with suppress(OSError):
            told = report.unreached(layout, str(run_id), step, at, error)
            store.write(layout, told.model_copy(update={"start": store.next_start(layout)}))


def layouts(lake: str, pipeline: str, flows: Iterable[str], dag_file: str) -> list[FlowHome]:
    """Return the layouts of the named flows, and of those of the pipeline that ran before; none
    without a lake, or if it is not where it was.

    `lake`: as the pipeline file says it, relative to the project root.
    """
    if not lake:
        return []
    try:
        root = project_root(dag_file)
        refuse_in_bundle(root, relative_lake(lake))
        Lake.look(str(root / lake), root, pipeline).refuse_missing()
    except DraindownError:
        return []
    home = root / lake
    with suppress(OSError):
        flows = {
            *flows,
            *(
                entry.name
                for entry in Path(home, "_draindown", pipeline).iterdir()
                if entry.is_dir()
            ),
        }
    return [FlowHome(str(home), pipeline, flow, flow) for flow in sorted(flows)]
