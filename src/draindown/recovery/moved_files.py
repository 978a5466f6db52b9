"""A person's answer about new files that equal known files of another directory."""

from __future__ import annotations

from draindown.base.clock import now
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Request
from draindown.sources.port import Moved
from draindown.sources.registry import source_of


def find(request: Request) -> Moved | None:
    """Return what is to be answered about a flow; None if there is nothing, or it reads no
    files.
    """
    source = source_of(request)
    return source.named.moved(request.layout, now()) if source.named else None


def answer(request: Request, found: Moved, *, same: bool, by: str, note: str) -> None:
    """Record the answer under the lease. `same`: they are the known files. Raises as
    `open_flow`.
    """
    with open_flow(
        request.spec, request.flow, Needs.FINISHED, owner=by, run_id=request.run_id
    ) as flow:
        flow.check()
        found.answer(request.layout, same=same, by=by, note=note, at=now())
