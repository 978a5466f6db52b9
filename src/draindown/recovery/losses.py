"""Input that is lost at the source: what it is, and a person's decision to go on without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.recovery import rebuild
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def reading(request: Request) -> dict[int, int]:
    """Return the first slice that no batch has read, by generation: the live one, and that of a
    rebuild in progress.

    A rebuild reads slices of its own, which may be lost although the live generation has read their
    ranges.
    """
    layout = request.layout
    live, begun = generations.generation(layout), rebuild.unfinished(layout)
    found = {live: generations.first_unread(layout, live)}
    if begun is not None and not rebuild.is_swapped(layout, begun):
        found[begun.generation] = generations.first_unread(
            layout.beside(begun.generation), begun.generation
        )
    return found


def found(request: Request) -> Mapping[str, str]:
    """Return the ranges that a generation has yet to read and that are gone, each with what is
    there instead.
    """
    source = source_of(request).perishable
    if source is None:
        return {}
    return {
        name: why for one in reading(request).items() for name, why in source.losses(*one).items()
    }


def accept(request: Request, ranges: Sequence[str], *, by: str, note: str) -> None:
    """Give up ranges that are lost, under the lease. Raises TerminalError `not-lost`, and as
    `open_flow` does.
    """
    with open_flow(request.spec, request.flow, Needs.FINISHED, owner=by, run_id=request.run_id):
        source = source_of(request).perishable
        if source is None:
            raise _nothing_lost(request, ranges)
        source.accept_losses(ranges, reading(request), by=by, note=note, at=now())


def _nothing_lost(request: Request, ranges: Sequence[str]) -> TerminalError:
    return TerminalError(
        "not-lost",
        tried=f"accept the loss of {', '.join(ranges)} of flow {request.flow} of pipeline {request.spec.pipeline}",
        found="its source deletes nothing: units are there, or are named one by one",
        changed="nothing",
        next="draindown doctor   # says what stands in the way",
    )
