"""Whether what a drain leaves unread will still be at the source when the next run starts."""

from __future__ import annotations

from datetime import UTC, datetime

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.schedule import next_time
from draindown.runs.request import Request
from draindown.sources.port import Look


def refuse_expiring(request: Request, left: Look, now: datetime) -> None:
    """Fail a drain, after it has done all that it may, if what it leaves is deleted before the next
    scheduled run.

    A pipeline without a schedule has no next run. Raises TerminalError `backlog-expires`.
    """
    schedule = request.spec.schedule
    if schedule is None or left.expires is None or not left.units:
        return
    following = next_time(schedule, now, request.spec.airflow.timezone)
    if left.expires > following.timestamp():
        return
    gone = datetime.fromtimestamp(left.expires, UTC)
    raise TerminalError(
        "backlog-expires",
        tried=f"leave {count(left.units, left.unit)} of flow {request.flow} to the run of {following:%Y-%m-%d %H:%M}Z",
        found=f"the source may delete the first of them from {gone:%Y-%m-%d %H:%M:%S} UTC on",
        changed="what this run drained is in the table",
        next=f"draindown run {request.spec.pipeline}   # now; then allow more with max_duration and max_batches, "
        "or have the topic keep records longer",
    )
