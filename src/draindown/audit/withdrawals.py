"""The audit of withdrawals: compare their batches with the quarantine, and list the keys that they
withhold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draindown.audit.context import AuditContext, where_of
from draindown.audit.raw import json_fields
from draindown.base.formatting import count
from draindown.ledger import rows as ledger_rows

_LOOK_BACK = 100  # commits; a crash leaves at most one batch unrecorded, and maintenance commits may follow it
_Name = tuple[int, int]


def settle_withdrawals(context: AuditContext) -> None:
    """Treat a withdrawal that crashed as the next run will: count it if it was committed, else
    ignore its rows.
    """
    known = _known(context)
    begun = {_name(row) for row in context.withdrawn} - known
    if not begun:
        return
    rows = (
        ledger_rows.from_commit(commit)
        for commit in context.layout.tables.target.commits(_LOOK_BACK)
    )
    mine = [
        row
        for row in rows
        if row and (row.pipeline, row.flow) == (context.layout.pipeline, context.layout.flow)
    ]
    committed = [
        row for row in mine if row.kind == "withdraw" and (row.generation, row.batch) in begun
    ]
    context.batches += committed
    for row in committed:
        context.unlooked.append(
            f"the ledger's row of {where_of(row)}: a crash came before it; the next run adds it"
        )
    unfinished = {name for name in begun - _known(context) if name > max(known, default=(0, -1))}
    if unfinished:
        kept = [row for row in context.withdrawn if _name(row) not in unfinished]
        number = len(context.withdrawn) - len(kept)
        context.unlooked.append(
            f"a withdrawal of {count(number, 'row')}: it was cut short before its commit"
        )
        context.withdrawn = kept


def withdrawals(context: AuditContext) -> None:
    """Compare the number of withdrawn rows in the ledger with the quarantine."""
    held = Counter(_name(row) for row in context.withdrawn)
    if context.withdrawn:
        context.seen["withdrawn rows"] = len(context.withdrawn)
    for batch in [*context.batches, *context.lost]:
        if batch.kind == "withdraw":
            found = held.pop((batch.generation, batch.batch), 0)
            context.expect(
                "withdrawn-count",
                where_of(batch),
                batch.records,
                found,
                "ledger against quarantine",
            )
    for (generation, number), rows in held.items():
        where = f"generation {generation}, gate batch {number}"
        context.expect(
            "quarantine-without-batch", where, 0, rows, "rows of a batch the ledger doesn't know"
        )
    for known, times in Counter(row["quarantine_id"] for row in context.withdrawn).items():
        context.expect("quarantine-double-id", known, 1, times)


def released_withdrawals(context: AuditContext) -> Counter[str]:
    """Return how many withdrawn rows each run released."""
    ids = (row["quarantine_id"] for row in context.withdrawn)
    return Counter(context.released[known] for known in ids if known in context.released)


def withheld_keys(context: AuditContext, names: Sequence[str]) -> list[list[str | None]]:
    """Return keys and sequence, as text, of every withdrawn row that was not released."""
    kept = [row for row in context.withdrawn if row["quarantine_id"] not in context.released]
    found = []
    for row in kept:
        try:
            values = json_fields(row["raw"], names)
            # Spark writes a plus sign before a year after 9999
            found.append([value and re.sub(r"^\+(?=\d{5,}-)", "", value) for value in values])
        except ValueError as error:
            context.expect(
                "withdrawn-unreadable", row["quarantine_id"], "a row as JSON", str(error)[:200]
            )
    return found


def _known(context: AuditContext) -> set[_Name]:
    return {
        (batch.generation, batch.batch) for batch in context.batches if batch.kind == "withdraw"
    }


def _name(row: Mapping[str, Any]) -> _Name:
    return row["generation"], row["batch"]
