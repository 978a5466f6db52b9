"""One look at all flows of a run: which of them have nothing to do, so that no task of theirs need
start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic

from draindown.base import clock
from draindown.base.errors import DraindownError
from draindown.base.findings import Finding
from draindown.base.formatting import age
from draindown.config.flow_graph import FlowGraph
from draindown.planning import plan
from draindown.runs.report import PlanPart, StepReport
from draindown.runs.request import Request

_AT_ONCE = 8
"""Flows that are looked at side by side: a look waits for storage or a broker most of the time."""
_SECONDS = 300.0
"""Time limit for planning all flows; bounds the delay by a source that hangs, as on a mount whose
server is gone.
"""
_Plan = tuple[datetime, PlanPart, list[Finding]]


def idle(
    requests: Mapping[str, Request],
    graph: FlowGraph,
    warn: Callable[[str], None],
    *,
    seconds: float = _SECONDS,
) -> dict[str, StepReport]:
    """Return the plan's report, written, of each flow that has no step to run and that this run
    brings nothing.

    What a flow reads may change until it is planned where one upstream drains or is judged, or
    can't be planned: such a flow is left to its own plan, as is one whose plan raises, or is not
    made within `seconds`: `warn` is called with a line that names the last kind. `requests`: of the
    flows that the run is for.
    """
    plans = _plans(requests, seconds)
    if late := [flow for flow in requests if flow not in plans]:
        warn(f"not looked at within {age(seconds)}, and left to their own plans: {', '.join(late)}")
    found: dict[str, StepReport] = {}
    moving: set[str] = set()
    for flow in (name for name in graph.order if name in requests):
        planned = plans.get(flow)
        if planned is None or _changes_rows(planned) or moving.intersection(graph.upstream(flow)):
            moving.add(flow)
        elif (
            not planned[1].compact
            and not requests[flow].force
            and (report := _reported(requests[flow], planned))
        ):
            found[flow] = report
    return found


def _plans(requests: Mapping[str, Request], seconds: float) -> dict[str, _Plan | None]:
    """Return the plans that are made within `seconds`, None for one that raises. Flows are planned
    side by side.

    Daemon threads, unlike those of a pool, keep no process from its end.
    """
    waiting, made = SimpleQueue[str](), SimpleQueue[tuple[str, _Plan | None]]()
    for flow in requests:
        waiting.put(flow)

    def work() -> None:
        with suppress(Empty):
            while True:
                flow, planned = waiting.get_nowait(), None
                try:
                    planned = _plan(requests[flow])
                finally:
                    made.put((flow, planned))

    for _ in range(min(_AT_ONCE, len(requests))):
        Thread(target=work, name="plan", daemon=True).start()
    until, plans = monotonic() + seconds, dict[str, _Plan | None]()
    with suppress(Empty):
        while len(plans) < len(requests):
            flow, planned = made.get(timeout=max(0.0, until - monotonic()))
            plans[flow] = planned
    with suppress(Empty):  # what begins from now on is too late
        while True:
            waiting.get_nowait()
    return plans


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
