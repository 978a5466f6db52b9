"""A write-ahead note for a batch that releases quarantined rows: written before its commit, settled
after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.flow import generations, quarantine
from draindown.lake.home import FlowHome
from draindown.lake.transactions import WriterId
from draindown.ledger import table as ledger_table


@dataclass(frozen=True)
class Pending:
    """Quarantine ids to release once the target holds `batch` of `app`, a transaction id.

    `read_again`: the batch read the rows' input again instead of their copies in the quarantine.
    """

    app: str
    batch: int
    run_id: str
    ids: tuple[str, ...]
    read_again: bool = False

    def is_applied(self, layout: FlowHome) -> bool:
        """Return whether the target holds the batch."""
        newest = layout.tables.target.last(WriterId(self.app))
        return newest is not None and newest >= self.batch


def pending(layout: FlowHome) -> Pending | None:
    """Return the note that waits to be settled, or None. Raises TerminalError `state-damaged`."""
    lost = "quarantined rows that were let through last may stay open: see `state-damaged` before you decide about them"
    # no fallback to an older copy: its batch was settled long ago
    return layout.replaying.parsed(_read, without=lost, copied=False)


def note(layout: FlowHome, of: Pending) -> None:
    """Write the note of a batch, replacing any older one. Call it under the lease."""
    layout.replaying.write(asdict(of))


def forget(layout: FlowHome, settled: Pending) -> None:
    """Remove the note if it is still this one. A driver that wakes up late may find the note of a
    later batch.
    """
    if pending(layout) == settled:
        layout.replaying.delete()


def unsettled(layout: FlowHome) -> int:
    """Return how many rows the target holds that are not marked as released. Raises TerminalError
    `state-damaged`.
    """
    waiting = pending(layout)
    if waiting is None or not waiting.is_applied(layout):
        return 0
    return len(set(waiting.ids) - quarantine.released(layout, waiting.ids).keys())


def _read(content: Mapping[str, Any]) -> Pending:
    return Pending(**{**content, "ids": tuple(content["ids"])})


def release_applied(layout: FlowHome, *, by: str, reached: StepHook = ignore_step) -> int:
    """Record as released the rows that the newest batch with a release note has applied. Return how
    many.

    Call it under the lease, after such a batch. Raises TerminalError `state-damaged`, but not
    `ledger-does-not-add-up`: `resume` does, before a batch. The table holds the rows all the same,
    and the rebuild that the error advises opens the flow and decides about them again.
    """
    waiting = pending(layout)
    if waiting is None or not waiting.is_applied(layout):
        return 0
    _heal(layout)
    release = quarantine.read_again if waiting.read_again else quarantine.release
    settled = release(layout, waiting.ids, by=by, run_id=waiting.run_id)
    reached("released")
    # Keep the note until the decisions are stored: only it lists these rows. Recording a decision
    # twice is harmless.
    forget(layout, waiting)
    return settled


def _heal(layout: FlowHome) -> None:
    try:
        ledger_table.heal(layout, generations.generation_if_told(layout) or 0)
    except TerminalError as error:
        if error.code != "ledger-does-not-add-up":
            raise
