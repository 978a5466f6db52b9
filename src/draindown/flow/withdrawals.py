"""Rows that the gate withdrew from the target, and which of these batches are committed. Without
Spark.

The rows are written to the quarantine (kind `gate`) before they leave the target. A batch counts
once the target or the ledger has it; the next run removes the rows of a batch that neither has. A
ledger row is enough: a lost table loses its transactions too, and people's decisions about rows
must survive that.
"""

from __future__ import annotations

from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook
from draindown.flow import generations, integrity
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW

REASON = "gate:"
"""Prefix of a withdrawn row's reason. The name of the expectation follows."""
Name = tuple[int, int]
"""Generation and number of a batch."""


def ever(layout: FlowHome) -> bool:
    """Return whether any row was ever withdrawn. Reads only the quarantine's log, no rows."""
    refused = layout.tables.quarantine
    if not refused.exists:
        return False
    try:
        live = generations.generation(layout)
    # a damaged generation file must block neither readers nor the reset that repairs it
    except TerminalError:
        return bool(_begun(layout))
    apps = (layout.app_id(number, "quarantine", WITHDRAW) for number in range(1, live + 1))
    return any(refused.last(app) is not None for app in apps)


def unfinished(layout: FlowHome) -> list[Name]:
    """Return batches whose rows are in the quarantine although no commit removed them from the
    target.
    """
    if not ever(layout):
        return []
    begun = _begun(layout)
    return sorted(
        name
        for name in begun - ledger_table.batches(layout, WITHDRAW)
        if not _may_be_committed(layout, name)
    )


def rows_of(name: Name) -> str:
    """Return SQL that is true for the quarantine's rows of one batch."""
    return f"kind = '{WITHDRAW}' and generation = {int(name[0])} and batch = {int(name[1])}"


def clean(layout: FlowHome, *, reached: StepHook) -> int:
    """Remove the quarantine rows of interrupted withdrawals. Call it under the lease. Return the
    number of batches.

    Calls `reached("looked")` before it removes each batch, since the next batch reuses its number.
    """
    left = unfinished(layout)
    for name in left:
        reached("looked")
        delta.delete(layout.tables.quarantine, rows_of(name))
    return len(left)


def next_batch(layout: FlowHome, generation: int) -> int:
    """Return the number after the last committed batch. An interrupted batch is overwritten under
    its number.
    """
    known = [
        batch for number, batch in ledger_table.batches(layout, WITHDRAW) if number == generation
    ]
    newest = layout.tables.target.last(layout.app_id(generation, "rows", WITHDRAW))
    return max([*known, -1 if newest is None else newest], default=-1) + 1


def _may_be_committed(layout: FlowHome, name: Name) -> bool:
    """Return whether the target committed the batch, or table and ledger are both lost and nothing
    can tell.
    """
    table = layout.tables.target
    of_gate, of_source = (
        table.last(layout.app_id(name[0], "rows", kind)) for kind in (WITHDRAW, "drain")
    )
    if of_gate is None and of_source is None:
        return integrity.put_aside_last(layout, layout.tables.ledger) > name[0]
    return of_gate is not None and of_gate >= name[1]


def _begun(layout: FlowHome) -> set[Name]:
    """Return the batches that have rows in the quarantine."""
    found = layout.tables.quarantine.rows(
        f"select distinct generation, batch from t where kind = '{WITHDRAW}'"
    )
    return {(int(row["generation"]), int(row["batch"])) for row in found}
