"""Opening a flow: the one place that takes a lease, and brings what a crash left to its end before anything else.

Commands that write say what they need (`Needs`) and get an `OpenFlow`. Commands that only look open nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from draindown.base.progress import Reached, untold
from draindown.flow import resume
from draindown.lake.layout import FlowLayout
from draindown.lease.lease import Lease
from draindown.recovery import fencing, swap
from draindown.recovery.rebuild import Rebuild
from draindown.recovery.replay import settle
from draindown.spec.models import FlowSpec, LeaseSpec, PipelineSpec


class Needs(IntEnum):
    """What must hold before a command writes. Each includes the ones before it.

    `LEASE`: nobody else writes; enough to rewrite files, or to throw a rebuild away.
    `FINISHED`: no swap of a rebuild is half done. For what puts a damaged flow right: its tables need not be whole.
    `SETTLED`: no withdrawal, delete or release is half done, and the tables are whole. For decisions about rows.
    `RESUMED`: the next batch of the live generation may follow its last. For batches.
    """

    LEASE = 0
    FINISHED = 1
    SETTLED = 2
    RESUMED = 3


class Engine(Protocol):
    """What only an engine that writes tables can do for an opening; who starts none opens without."""

    def hold(self, lease: Lease) -> None:
        """Have the engine's own process hold the lease too, before anything is written."""
        ...

    def keep_bounds(self, layout: FlowLayout, flow: FlowSpec) -> None:
        """Have the target keep bounds of its keys again, by which files are skipped. Idempotent."""
        ...


@dataclass(frozen=True)
class OpenFlow:
    """A flow under its lease.

    Attributes:
        layout: where its live tables and documents are.
        generation: the live one, proven to go on; 0 unless the opening needed `RESUMED`.
        finished: the rebuild whose swap the opening brought to its end, if there was one.
    """

    layout: FlowLayout
    generation: int
    finished: Rebuild | None
    _lease: Lease

    def check(self) -> None:
        """Raise TransientError `lease-lost` unless the lease is certainly held. Call it before each write."""
        self._lease.check()

    def guard(self, reached: Reached = untold) -> Reached:
        """Return `reached` followed by `check`, to be told each step of a batch before the next one writes."""
        return self._lease.guard(reached)


@contextmanager
def open_flow(
    spec: PipelineSpec,
    flow: str,
    needs: Needs,
    *,
    owner: str,
    run_id: str,
    engine: Engine | None = None,
    reached: Reached = untold,
) -> Iterator[OpenFlow]:
    """Hold a flow's lease, with what `needs` says; `reached` is told the steps that this takes.

    Raises TransientError `lease-held`, `lease-lost`; TerminalError what `swap.finish`, `replay.settle` and
    `resume.resume` raise, as far as they are needed. What they had brought to its end by then stays.
    """
    layout = spec.layout(flow)
    with lease_of(layout, spec.lease, owner=owner, run_id=run_id) as lease:
        if engine is not None:
            engine.hold(lease)
        guard, finished, generation = lease.guard(reached), None, 0
        if needs >= Needs.FINISHED:
            finished = swap.finish(layout, by=owner, reached=guard)
            if engine is not None and swap.lost_bounds(layout):
                engine.keep_bounds(layout, spec.flow(flow))
        if needs >= Needs.SETTLED:
            settle(layout, by=owner, reached=guard)
        lease.check()
        if needs >= Needs.RESUMED:
            generation = resume.resume(layout)
        yield OpenFlow(layout, generation, finished, lease)


def lease_of(layout: FlowLayout, terms: LeaseSpec, *, owner: str, run_id: str) -> Lease:
    """Return the lease of a flow with its fence, not yet taken. Errors are those of `Lease`."""
    return Lease(layout, terms, owner=owner, run_id=run_id, fence=fencing.write)
