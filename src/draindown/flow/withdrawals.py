"""Rows that the gate took out of the target: which of their batches count, told from table and ledger. No Spark.

They stand in the quarantine (kind `gate`) before they leave the target. Until the target or the ledger knows their
batch they count nowhere: the next run removes them. A ledger row is enough, as a table that was lost takes its
transactions with it, and what people decided about rows must outlive it.
"""

from __future__ import annotations

from draindown.base.errors import TerminalError
from draindown.base.progress import Reached
from draindown.flow import generations, integrity
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import GATE

REASON = "gate:"
"""What the reason of a withdrawn row begins with; the name of the expectation follows."""
Name = tuple[int, int]
"""Generation and number of a batch."""


def ever(layout: FlowLayout) -> bool:
    """Whether any row was ever withdrawn. Reads the quarantine's log alone: no row of it."""
    refused = log_of(layout, layout.quarantine)
    if not refused.exists:
        return False
    try:
        live = generations.generation(layout)
    except TerminalError:  # which must not keep anyone from looking, nor from the reset that puts it right
        return bool(_begun(layout))
    apps = (app_id(layout, number, "quarantine", GATE) for number in range(1, live + 1))
    return any(refused.last(app) is not None for app in apps)


def unfinished(layout: FlowLayout) -> list[Name]:
    """Batches whose rows are in the quarantine although no commit of the target took them out of it."""
    if not ever(layout):
        return []
    begun = _begun(layout)
    return sorted(name for name in begun - ledger_table.batches(layout, GATE) if not _may_be_committed(layout, name))


def rows_of(name: Name) -> str:
    """SQL that is true for the quarantine's rows of one batch."""
    return f"kind = '{GATE}' and generation = {int(name[0])} and batch = {int(name[1])}"


def clean(layout: FlowLayout, *, reached: Reached) -> int:
    """Remove rows of batches that a crash cut short. Call it under the lease; returns how many batches that were.

    `reached` is told looked before each is removed: the next batch has its number.
    """
    left = unfinished(layout)
    for name in left:
        reached("looked")
        delta.delete(layout.quarantine, rows_of(name))
    return len(left)


def next_batch(layout: FlowLayout, generation: int) -> int:
    """The number after that of the last committed batch; one that was cut short is written again in its place."""
    known = [batch for number, batch in ledger_table.batches(layout, GATE) if number == generation]
    newest = log_of(layout, layout.table).last(app_id(layout, generation, "rows", GATE))
    return max([*known, -1 if newest is None else newest], default=-1) + 1


def _may_be_committed(layout: FlowLayout, name: Name) -> bool:
    """Whether the target took the batch, or nothing is left that could say so: both tables were lost."""
    table = log_of(layout, layout.table)
    of_gate, of_source = (table.last(app_id(layout, name[0], "rows", kind)) for kind in (GATE, "source"))
    if of_gate is None and of_source is None:
        return integrity.put_aside_last(layout, layout.ledger) > name[0]
    return of_gate is not None and of_gate >= name[1]


def _begun(layout: FlowLayout) -> set[Name]:
    """The batches that have rows in the quarantine."""
    found = log_of(layout, layout.quarantine).rows(f"select distinct generation, batch from t where kind = '{GATE}'")
    return {(int(row["generation"]), int(row["batch"])) for row in found}
