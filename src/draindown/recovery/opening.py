"""Opening a flow: take its lease, and complete what a crash interrupted before anything else runs.

No other module takes a lease. Commands that write state what they need (`Needs`) and get an
`OpenFlow`. Commands that only read do not open the flow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from draindown.base.formatting import count
from draindown.base.progress import StepHook, ignore_step
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.lease import LeaseSpec
from draindown.config.models import PipelineSpec
from draindown.flow import owner as owners
from draindown.flow import release_intent, resume, withdrawals
from draindown.lake.home import FlowHome
from draindown.lease.lease import Lease
from draindown.lease.shared import CLOCK, Clock
from draindown.ledger.table import so_far
from draindown.recovery import fencing, rebuild, swap
from draindown.recovery.rebuild import Rebuild
from draindown.recovery.replay import settle


class Needs(IntEnum):
    """Preconditions of a command that writes. Each level includes the ones before it.

    `LEASE`: nobody else writes. Enough to rewrite files or to discard a rebuild.
    `FINISHED`: no swap of a rebuild is half done. For commands that repair a damaged flow; its
    tables may be damaged. `SETTLED`: no withdrawal, delete or release is half done, and the tables
    are undamaged. For decisions about rows. `RESUMED`: the next batch of the live generation may
    follow its last. For batches.
    """

    LEASE = 0
    FINISHED = 1
    SETTLED = 2
    RESUMED = 3


class Engine(Protocol):
    """What an opening needs from an engine that writes tables. A command that starts no engine
    opens without one.
    """

    def hold(self, lease: Lease) -> None:
        """Make the engine's own process hold the lease too, before anything is written."""
        ...

    def restore_properties(
        self, layout: FlowHome, flow: FlowSpec | DerivedFlow, source: str
    ) -> None:
        """Give the target the properties of the rebuilt table at `source`, whose rows it has.
        Idempotent.
        """
        ...


@dataclass(frozen=True)
class OpenFlow:
    """A flow under its lease.

    Attributes:
        layout: paths of its live tables and documents, with the epoch of the lease.
        generation: the live generation, verified to continue; 0 unless the opening needed
            `RESUMED`.
        finished: the rebuild whose swap this opening completed, or None.
    """

    layout: FlowHome
    generation: int
    finished: Rebuild | None
    _lease: Lease

    def check(self) -> None:
        """Raise TransientError `lease-lost` unless the lease is certainly held. Call it before each
        write.
        """
        self._lease.check()

    def guard(self, reached: StepHook = ignore_step) -> StepHook:
        """Return a hook that calls `reached`, then `check`, after each step and before the next one
        writes.
        """
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
    reached: StepHook = ignore_step,
    again: str = "",
) -> Iterator[OpenFlow]:
    """Hold a flow's lease for the duration of a block and establish `needs`. Calls `reached` after
    each step of this.

    `again`: the command that goes on with the work if the lease is lost; default: a run.

    Raises TransientError `lease-held`, `lease-lost`, TerminalError `table-of-another-flow`, and the
    TerminalErrors of `swap.finish`, `replay.settle` and `resume.resume` as far as `needs` requires
    them. Steps that completed before an error are kept.
    """
    layout = spec.layout(flow)
    is_first = owners.refuse_other(layout)  # before the lease: its fence is a commit in the table
    with lease_of(layout, spec.lease, owner=owner, run_id=run_id, again=again) as lease:
        if engine is not None:
            engine.hold(lease)
        if is_first:
            owners.claim(layout)
        layout = layout.held(lease.epoch)
        guard, finished, generation = lease.guard(reached), None, 0
        if needs >= Needs.FINISHED:
            finished = swap.finish(layout, by=owner, reached=guard)
            if engine is not None and (source := swap.lost_properties(layout)):
                engine.restore_properties(layout, spec.declared(flow), source)
        if needs >= Needs.SETTLED:
            settle(layout, by=owner, reached=guard)
        lease.check()
        if needs >= Needs.RESUMED:
            generation = resume.resume(layout, spec.declared(flow))
        yield OpenFlow(layout, generation, finished, lease)


def unsettled(layout: FlowHome) -> list[str]:
    """Return, in words, what a crash left half done that `open_flow` completes for a run, as far as
    it has to.

    Raises TerminalError `rebuild-damaged`, `state-damaged`.
    """
    found, begun = list[str](), rebuild.unfinished(layout)
    if begun is not None and rebuild.is_swapped(layout, begun):
        found.append(
            f"generation {begun.generation} took the table's place, and what follows is not done"
        )
    if withdrawals.unfinished(layout):
        found.append("a withdrawal was cut short")
    if number := release_intent.unsettled(layout):
        found.append(f"{count(number, 'row')} that the table holds, to be marked as released")
    return found


def lease_of(
    layout: FlowHome,
    terms: LeaseSpec,
    *,
    owner: str,
    run_id: str,
    again: str = "",
    clock: Clock = CLOCK,
) -> Lease:
    """Return a flow's lease with its fence, not yet taken. Its errors are those of `Lease`."""
    return Lease(
        layout,
        terms,
        owner=owner,
        run_id=run_id,
        fence=fencing.write,
        so_far=so_far,
        again=again,
        clock=clock,
    )
