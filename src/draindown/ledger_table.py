"""The ledger as a Delta table: a projection of what the target's commits say, healed from them when it lags behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from draindown import tables
from draindown.errors import TerminalError
from draindown.layout import FlowLayout
from draindown.ledger import TIMES, BatchRow, Origin, closed, from_commit

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("pipeline", pa.string()), ("flow", pa.string()), ("generation", pa.int32()), ("batch", pa.int64())]
    + [("run_id", pa.string()), ("origin", pa.string()), ("cut", pa.int64())]
    + [(name, pa.int64()) for name in ("files", "bytes", "lines", "blank", "records", "quarantined", "late")]
    + [(name, pa.int64()) for name in ("superseded", "duplicate", "inserted", "updated", "deleted", "remembered")]
    + [("reasons", pa.string()), ("max_sequence", pa.string())]
    + [(name, _TIME) for name in TIMES]
    + [("seconds", pa.float64()), ("table_version", pa.int64()), ("applied", pa.int64())]
)
_LOOK_BACK = 100
"""Commits of the target that are read to find what the ledger lacks; a crash leaves one."""


def record(layout: FlowLayout, rows: Sequence[BatchRow]) -> None:
    """Append ledger rows, each once however often it is called."""
    for row in rows:
        # two replays may end in another order than they began, so that each of their batches has an id of its own
        apart = f":{row.batch}" if row.origin == "replay" else ""
        app = f"ledger:{row.generation}:{row.origin}{apart}"
        tables.append(layout.ledger, pa.Table.from_pylist([_flat(row)], schema=SCHEMA), app=(app, row.batch))


def heal(layout: FlowLayout) -> list[BatchRow]:
    """Append what the target's newest commits say and the ledger lacks; returns the rows added, oldest first.

    Raises TerminalError `ledger-does-not-add-up`, as the batch did that made such a commit, until someone has looked.
    """
    if not tables.exists(layout.table):
        return []
    known = {(row.generation, row.origin, row.batch) for row in recent(layout, _LOOK_BACK)}
    added = []
    for commit in reversed(tables.history(layout.table, _LOOK_BACK)):
        row = from_commit(commit)
        if row is None or (row.pipeline, row.flow) != (layout.pipeline, layout.flow):
            continue
        if (row.generation, row.origin, row.batch) not in known and closed(commit):
            record(layout, [row])
            added.append(row)
    return added


def recent(layout: FlowLayout, limit: int) -> list[BatchRow]:
    """The newest ledger rows by generation and table version, oldest first: a table made anew counts from 0 again."""
    if not tables.exists(layout.ledger):
        return []
    found = tables.query(
        layout.ledger, f"select * from t order by generation desc, table_version desc limit {int(limit)}"
    )
    return [BatchRow.from_dict(row) for row in reversed(found.to_pylist())]


def row_of(layout: FlowLayout, generation: int, batch: int, origin: Origin) -> BatchRow:
    """The ledger row of one batch. Raises TerminalError `ledger-row-missing`."""
    where = f"generation = {int(generation)} and batch = {int(batch)} and origin = '{origin}'"
    found: list[Mapping[str, Any]] = []
    if tables.exists(layout.ledger):
        found = tables.query(layout.ledger, f"select * from t where {where}").to_pylist()
    if len(found) != 1:
        raise TerminalError(
            "ledger-row-missing",
            tried=f"find batch {batch} of generation {generation} in {layout.ledger}",
            found=f"{len(found)} rows, though the table {layout.table} holds the batch",
            next=f"draindown audit {layout.pipeline}",
        )
    return BatchRow.from_dict(found[0])


def of_run(layout: FlowLayout, run_id: str) -> list[BatchRow]:
    """The ledger rows of one run, oldest first."""
    return [row for row in recent(layout, 10_000) if row.run_id == run_id]


def _flat(row: BatchRow) -> dict[str, Any]:
    flat = row.as_dict()
    for name in TIMES:
        flat[name] = datetime.fromisoformat(flat[name]) if flat[name] else None
    return flat | {"reasons": json.dumps(flat["reasons"], sort_keys=True)}
