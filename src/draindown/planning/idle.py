"""One look at all flows of a run: which of them have nothing to do, so that no task of theirs need start."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from draindown.base import clock
from draindown.base.errors import DraindownError
from draindown.base.findings import Finding
from draindown.planning import plan
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import Request
from draindown.spec.flow_graph import FlowGraph

_AT_ONCE = 8
"""Flows that are looked at side by side: a look waits for storage or a broker most of the time."""
_Plan = tuple[datetime, PlanPart, list[Finding]]


def idle(requests: Mapping[str, Request], graph: FlowGraph) -> dict[str, StepReport]:
    """Return the plan's report, written, of each flow that has no step to run and that this run brings nothing.

    What a flow reads may change until it is planned where one upstream drains or is judged, or can't be planned: such
    a flow is left to its own plan, as is one whose plan raises. `requests`: of the flows that the run is for.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        plans = dict(zip(requests, pool.map(_plan, requests.values()), strict=True))
    found: dict[str, StepReport] = {}
    moving: set[str] = set()
    for flow in (name for name in graph.order if name in requests):
        planned = plans[flow]
        if planned is None or _changes_rows(planned) or moving.intersection(graph.upstream(flow)):
            moving.add(flow)
        elif not planned[1].compact and not requests[flow].force and (report := _reported(requests[flow], planned)):
            found[flow] = report
    return found


def _plan(request: Request) -> _Plan | None:
    started = clock.now()
    try:
        return started, *plan.of_request(request, started)
    except Exception:  # noqa: BLE001 - the flow's own plan raises it again, in its own task
        return None


def _changes_rows(planned: _Plan) -> bool:
    return planned[1].drain or planned[1].check


def _reported(request: Request, planned: _Plan) -> StepReport | None:
    try:
        return plan.reported(request, *planned)
    except DraindownError:  # as above
        return None
