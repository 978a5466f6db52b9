"""Rows that the gate took out of the target: which of their batches count, told from table and ledger. No Spark.

They stand in the quarantine (kind `gate`) before they leave the target. Until the target or the ledger knows their
batch they count nowhere: the next run removes them. A ledger row is enough, as a table that was lost takes its
transactions with it, and what people decided about rows must outlive it.
"""

from __future__ import annotations

from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.progress import Reached
from draindown.flow import generations, integrity
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.transactions import app_id
from draindown.ledger.rows import GATE

REASON = "gate:"
"""What the reason of a withdrawn row begins with; the name of the expectation follows."""
Name = tuple[int, int]
"""Generation and number of a batch."""


def ever(layout: FlowLayout) -> bool:
    """Whether any row was ever withdrawn. Reads the quarantine's log alone: no row of it."""
    if not delta.exists(layout.quarantine):
        return False
    try:
        live = generations.generation(layout)
    except TerminalError:  # which must not keep anyone from looking, nor from the reset that puts it right
        return bool(_names(layout.quarantine))
    apps = [app_id(layout, number, "quarantine", GATE) for number in range(1, live + 1)]
    return any(version is not None for version in delta.transaction_versions(layout.quarantine, apps))


def unfinished(layout: FlowLayout) -> list[Name]:
    """Batches whose rows are in the quarantine although no commit of the target took them out of it."""
    if not ever(layout):
        return []
    begun = _names(layout.quarantine)
    return sorted(name for name in begun - _names(layout.ledger) if not _may_be_committed(layout, name))


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
    known = [batch for number, batch in _names(layout.ledger) if number == generation]
    newest = delta.transaction_version(layout.table, app_id(layout, generation, "rows", GATE))
    return max([*known, -1 if newest is None else newest], default=-1) + 1


def _may_be_committed(layout: FlowLayout, name: Name) -> bool:
    """Whether the target took the batch, or nothing is left that could say so: both tables were lost."""
    of_gate, of_source = delta.transaction_versions(
        layout.table, [app_id(layout, name[0], "rows", kind) for kind in (GATE, "source")]
    )
    if of_gate is None and of_source is None:
        return integrity.put_aside_last(layout, layout.ledger) > name[0]
    return of_gate is not None and of_gate >= name[1]


def _names(path: str) -> set[Name]:
    if not delta.exists(path):
        return set()
    sql = f"select distinct generation, batch from t where kind = '{GATE}'"
    rows: list[dict[str, Any]] = delta.query(path, sql).to_pylist()
    return {(int(row["generation"]), int(row["batch"])) for row in rows}
