"""Input that is lost at the source: what it is, and a person's decision to go on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draindown.base.clock import now
from draindown.flow import generations
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def found(request: Request) -> Mapping[str, str]:
    """Return the ranges that no batch has read and that are gone, each with what is there instead. Read-only."""
    generation = generations.generation(request.layout)
    return source_of(request).losses(generation, generations.first_unread(request.layout, generation))


def accept(request: Request, ranges: Sequence[str], *, by: str, note: str) -> None:
    """Give up ranges that are lost, under the lease. Raises TerminalError `not-lost`, and as `open_flow` does."""
    with open_flow(request.spec, request.flow, Needs.FINISHED, owner=by, run_id=request.run_id):
        generation = generations.generation(request.layout)
        first = generations.first_unread(request.layout, generation)
        source_of(request).accept_losses(ranges, generation, first, by=by, note=note, at=now())
