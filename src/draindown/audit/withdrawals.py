"""The audit of withdrawals: compare their batches with the quarantine, and list the keys that they withhold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from draindown.audit.context import Desk, where_of
from draindown.audit.raw import json_fields
from draindown.base.formatting import count
from draindown.lake.table_log import log_of
from draindown.ledger import rows as ledger_rows

_LOOK_BACK = 100  # commits; a crash leaves at most one batch unrecorded, and maintenance commits may follow it
_Name = tuple[int, int]


def settle_withdrawals(desk: Desk) -> None:
    """Treat a withdrawal that crashed as the next run will: count it if it was committed, else ignore its rows."""
    known = _known(desk)
    begun = {_name(row) for row in desk.withdrawn} - known
    if not begun:
        return
    rows = (ledger_rows.from_commit(commit) for commit in log_of(desk.layout, desk.layout.table).commits(_LOOK_BACK))
    mine = [row for row in rows if row and (row.pipeline, row.flow) == (desk.layout.pipeline, desk.layout.flow)]
    committed = [row for row in mine if row.kind == "gate" and (row.generation, row.batch) in begun]
    desk.batches += committed
    for row in committed:
        desk.unlooked.append(f"the ledger's row of {where_of(row)}: a crash came before it; the next run adds it")
    unfinished = {name for name in begun - _known(desk) if name > max(known, default=(0, -1))}
    if unfinished:
        kept = [row for row in desk.withdrawn if _name(row) not in unfinished]
        number = len(desk.withdrawn) - len(kept)
        desk.unlooked.append(f"a withdrawal of {count(number, 'row')}: it was cut short before its commit")
        desk.withdrawn = kept


def withdrawals(desk: Desk) -> None:
    """Compare the number of withdrawn rows in the ledger with the quarantine."""
    held = Counter(_name(row) for row in desk.withdrawn)
    if desk.withdrawn:
        desk.seen["withdrawn rows"] = len(desk.withdrawn)
    for batch in [*desk.batches, *desk.lost]:
        if batch.kind == "gate":
            found = held.pop((batch.generation, batch.batch), 0)
            desk.expect("withdrawn-count", where_of(batch), batch.deleted, found, "ledger against quarantine")
    for (generation, number), rows in held.items():
        where = f"generation {generation}, gate batch {number}"
        desk.expect("quarantine-without-batch", where, 0, rows, "rows of a batch the ledger doesn't know")
    for known, times in Counter(row["quarantine_id"] for row in desk.withdrawn).items():
        desk.expect("quarantine-double-id", known, 1, times)


def released_withdrawals(desk: Desk) -> Counter[str]:
    """Return how many withdrawn rows each run released."""
    ids = (row["quarantine_id"] for row in desk.withdrawn)
    return Counter(desk.released[known] for known in ids if known in desk.released)


def withheld_keys(desk: Desk, names: Sequence[str]) -> list[list[str | None]]:
    """Return keys and sequence, as text, of every withdrawn row that was not released."""
    kept = [row for row in desk.withdrawn if row["quarantine_id"] not in desk.released]
    found = []
    for row in kept:
        try:
            values = json_fields(row["raw"], names)
            # Spark writes a plus sign before a year after 9999
            found.append([value and re.sub(r"^\+(?=\d{5,}-)", "", value) for value in values])
        except ValueError as error:
            desk.expect("withdrawn-unreadable", row["quarantine_id"], "a row as JSON", str(error)[:200])
    return found


def _known(desk: Desk) -> set[_Name]:
    return {(batch.generation, batch.batch) for batch in desk.batches if batch.kind == "gate"}


def _name(row: Mapping[str, Any]) -> _Name:
    return row["generation"], row["batch"]
