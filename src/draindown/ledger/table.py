"""The ledger as a Delta table: a projection of the target's commits, repaired from them if it lags
behind.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import UNREADABLE, literal, moment
from draindown.ledger import target_log
from draindown.ledger.rows import (
    ACCOUNT,
    RUNS,
    TIMES,
    WITHDRAW,
    BatchKind,
    BatchRow,
    closed,
    from_commit,
)

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("flow", pa.string()),
        ("generation", pa.int32()),
        ("batch", pa.int64()),
    ]
    + [("run_id", pa.string()), ("kind", pa.string()), ("slice", pa.int64())]
    + [(name, pa.int64()) for name in ("inputs", "bytes", "records", "quarantined", "late")]
    + [
        (name, pa.int64())
        for name in ("superseded", "duplicate", "inserted", "updated", "deleted", "tombstoned")
    ]
    + [("reasons", pa.string()), ("max_sequence", pa.string())]
    + [(name, _TIME) for name in TIMES]
    + [
        ("seconds", pa.float64()),
        ("table_version", pa.int64()),
        ("applied", pa.int64()),
        ("attempt", pa.string()),
    ]
    + [
        ("form", pa.string()),
        *((name, pa.int64()) for name in ACCOUNT),
        ("sinks", pa.string()),
        ("reread", pa.int64()),
    ]
    + [(name, pa.int64()) for name in ("hidden", *RUNS)]
    + [("history", pa.string())]
)
_LOOK_BACK = 100
"""Newest commits of the target to search for batches missing from the ledger. A crash leaves at
most one.
"""


def record(layout: FlowHome, rows: Sequence[BatchRow]) -> None:
    """Append ledger rows. Idempotent: a row that is already recorded is skipped."""
    for row in rows:
        flat = pa.Table.from_pylist([_flat(row)], schema=SCHEMA)
        delta.append(layout.tables.ledger, flat, app=(row.child("ledger"), row.batch), widen=True)


def record_rebuilt(layout: FlowHome, generation: int, version: int) -> None:
    """Append the rows of a rebuilt generation that became version `version` of the target. One
    commit, idempotent.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    rows = [
        row
        for commit in reversed(target_log.made(layout, generation, version))
        if (row := closed(commit))
    ]
    if rows:
        flat = pa.Table.from_pylist([_flat(row) for row in rows], schema=SCHEMA)
        delta.append(
            layout.tables.ledger,
            flat,
            app=(f"ledger:{generation}:drain", rows[-1].batch),
            widen=True,
        )


def heal(layout: FlowHome, generation: int = 0) -> list[BatchRow]:
    """Append the batches of the target's newest commits that the ledger lacks. Return the added
    rows, oldest first.

    Raises TerminalError `ledger-does-not-add-up` until a rebuild or a reset has replaced what the
    batch wrote. The batch that made the commit raised the same error. `generation`: as for
    `target_log.lacking`.
    """
    added = []
    for commit, row in reversed(
        list(target_log.lacking(layout, recent(layout, _LOOK_BACK), _LOOK_BACK, generation))
    ):
        if closed(commit):
            record(layout, [row])
            added.append(row)
    return added


def recent(layout: FlowHome, limit: int) -> list[BatchRow]:
    """Return the newest ledger rows, oldest first, by generation, then version (a new table
    restarts at version 0).
    """
    return [
        BatchRow.from_dict(row)
        for row in reversed(_rows(layout, f"select * from t {_NEWEST} limit {int(limit)}"))
    ]


MOST_COSTS = 40
_NEWEST = "order by generation desc, table_version desc, batch desc"


def costs(layout: FlowHome, limit: int) -> list[BatchRow]:
    """Return the newest ledger rows, newest first, with only run id, key, version, bytes and
    seconds set. `limit`: at most MOST_COSTS.

    A cheaper `recent` for an idle plan, which needs no other column.
    """
    return [BatchRow.from_dict(row) for row in _newest_costs(layout)[:limit]]


def _newest_costs(layout: FlowHome) -> list[dict[str, Any]]:
    """Return the columns of `costs` of the newest rows: of a view one query answers whoever asks."""
    names = "pipeline, flow, generation, batch, run_id, kind, bytes, seconds, table_version"
    sql = f"select {names} from t {_NEWEST} limit {MOST_COSTS}"
    return layout.once(f"{layout.tables.ledger.path}: newest costs", lambda: _rows(layout, sql))


def newest_stamp(layout: FlowHome) -> datetime | None:
    """Return the newest `changed_at` in the ledger and, for a staged generation, in the live
    ledger; or None.
    """
    newest = [row for where in {layout, layout.live} for row in recent(where, 1)]
    return max((row.changed_at for row in newest if row.changed_at), default=None)


def row_of(layout: FlowHome, generation: int, batch: int, kind: BatchKind) -> BatchRow:
    """Return the ledger row of one batch. Raises TerminalError `ledger-row-missing`."""
    found = _rows(layout, f"select * from t where {_batch(generation, kind, batch)}")
    if len(found) != 1:
        raise TerminalError(
            "ledger-row-missing",
            tried=f"find batch {batch} of generation {generation} in {layout.tables.ledger.path}",
            found=f"{len(found)} rows, though the table {layout.tables.target.path} holds the batch",
            next=f"draindown audit {layout.pipeline}",
        )
    return BatchRow.from_dict(found[0])


def last_batch(
    layout: FlowHome, generation: int, kind: str, runs: Iterable[str] = ()
) -> int | None:
    """Return the newest batch of a generation and kind in the ledger; None if it has none.

    The ledger stores replays of input under the single kind `replay`. `runs`: ids of the runs that
    executed the replay in question.
    """
    where = f"generation = {int(generation)} and kind = {literal(kind.partition(':')[0])}"
    if kind.startswith("replay:"):
        where += f" and run_id in ({', '.join(map(literal, ['', *runs]))})"
    return _one(layout, f"select max(batch) as n from t where {where}")


def has(layout: FlowHome, generation: int, kind: str, batch: int) -> bool:
    """Return whether a batch is in the ledger. All replays of input share the kind `replay` and
    their numbering.
    """
    where = _batch(generation, kind.partition(":")[0], batch)
    return bool(_rows(layout, f"select 1 as n from t where {where} limit 1"))


def batches(layout: FlowHome, kind: BatchKind) -> set[tuple[int, int]]:
    """Return generation and number of every batch of a kind."""
    found = _rows(layout, f"select distinct generation, batch from t where kind = {literal(kind)}")
    return {(int(row["generation"]), int(row["batch"])) for row in found}


def of_run(layout: FlowHome, run_id: str) -> list[BatchRow]:
    """Return the ledger rows of one run, including all of its starts, oldest first."""
    return _where(layout, f"run_id = {literal(run_id)}")


def so_far(layout: FlowHome, run_id: str) -> str:
    """Return what a run has committed by now, by the ledger, as text."""
    try:
        rows = of_run(layout, run_id)
    except UNREADABLE:
        return "what it committed can't be read"
    if not rows:
        return "no batch of it is committed yet"
    batches, records = (
        count(len(rows), "batch", "batches"),
        count(sum(row.records for row in rows), "record"),
    )
    return f"{batches} of it committed so far, {records}"


def source_after(layout: FlowHome, version: int) -> list[BatchRow]:
    """Return rows of source batches that committed target versions after `version`, oldest first.

    Includes batches that are only in the target's newest commits because a driver died before
    recording them.
    """
    known = _where(layout, f"kind = 'drain' and table_version > {int(version)}")
    places = {row.place for row in known}
    found = map(from_commit, target_log.commits(layout, _LOOK_BACK))
    mine = [
        row for row in found if row and (row.pipeline, row.flow) == (layout.pipeline, layout.flow)
    ]
    late = [
        row
        for row in mine
        if row.kind == "drain" and row.table_version > version and row.place not in places
    ]
    return sorted([*known, *late], key=lambda row: (row.generation, row.table_version, row.batch))


def with_records(layout: FlowHome) -> list[BatchRow]:
    """Return the rows of all batches that have records, oldest first, of every kind and
    generation.
    """
    return _where(layout, "records > 0")


def by_stamp(layout: FlowHome, stamps: Collection[datetime]) -> dict[datetime, BatchRow]:
    """Return the batches that changed rows at these moments (`_changed_at`), by moment; a moment of
    none is absent.
    """
    if not stamps:
        return {}
    found = _where(layout, f"changed_at in ({', '.join(map(moment, stamps))})")
    return {row.changed_at: row for row in found if row.changed_at is not None}


def of_source(layout: FlowHome, condition: str) -> list[BatchRow]:
    """Return the ledger rows of source batches that a condition in SQL selects, oldest first."""
    return _where(layout, f"kind = 'drain' and {condition}")


def _where(layout: FlowHome, condition: str) -> list[BatchRow]:
    sql = f"select * from t where {condition} order by generation, table_version, batch"
    return [BatchRow.from_dict(row) for row in _rows(layout, sql)]


def units_read(layout: FlowHome) -> int:
    """Return the number of units that a generation has read; the maximum over all generations."""
    per_generation = "select sum(inputs) as n from t where kind = 'drain' group by generation"
    return _one(layout, f"select max(n) as n from ({per_generation})") or 0


def count_of(layout: FlowHome, generation: int) -> int:
    """Return the number of batches of a generation, of every kind; 0 if there is no ledger."""
    return _one(layout, f"select count(*) as n from t where generation = {int(generation)}") or 0


def newest_generation(layout: FlowHome) -> int:
    """Return the newest generation in the ledger; 0 if it has no batch."""
    return _one(layout, "select max(generation) as n from t") or 0


def last_version(layout: FlowHome, generation: int) -> int:
    """Return the highest table version among a generation's batches; -1 if the ledger has none."""
    newest = next(iter(_newest_costs(layout)), None)
    if newest is None:
        return -1
    if newest["generation"] == generation and newest["table_version"] is not None:
        return int(newest["table_version"])
    found = _one(
        layout, f"select max(table_version) as n from t where generation = {int(generation)}"
    )
    return -1 if found is None else found


def last_with(
    layout: FlowHome, generation: int, what: Literal["tombstones", "hidden", "quarantine"]
) -> int | None:
    """Return the newest source batch of a generation that wrote to a table beside the target; None
    if none did.
    """
    counted = {
        "tombstones": f"{_NO_HISTORY} and deleted + tombstoned > 0",
        "hidden": "hidden > 0",
        "quarantine": "quarantined > 0",
    }[what]
    where = f"generation = {int(generation)} and kind = 'drain' and {counted}"
    return _one(layout, f"select max(batch) as n from t where {where}")


_NO_HISTORY = "form <> 'history'"


@dataclass(frozen=True)
class Sums:
    """Sums over the ledger: rows, distinct batches, newest batch, newest table version.

    `deletes` excludes rows that the gate withdrew; `refused` includes them. `net`: inserted minus
    deleted rows. `hidden`: events of histories that no row held whole.
    """

    rows: int = 0
    batches: int = 0
    newest: int | None = None
    last_version: int | None = None
    deletes: int = 0
    refused: int = 0
    net: int = 0
    hidden: int = 0


def sums(layout: FlowHome, generation: int | None = None) -> Sums:
    """Return sums over the source batches of one generation, or over all batches of all generations
    (None).
    """
    where = (
        "" if generation is None else f" where generation = {int(generation)} and kind = 'drain'"
    )
    sql = (
        "select count(*) as rows, count(distinct batch) as batches, max(batch) as newest, "
        "max(table_version) as last_version, coalesce(sum(inserted) - sum(deleted), 0) as net, "
        # the gate deletes rows without a tombstone and keeps them in the quarantine
        f"coalesce(sum(case when kind = '{WITHDRAW}' or not {_NO_HISTORY} then 0 else deleted + tombstoned end), 0) "
        f"as deletes, coalesce(sum(hidden), 0) as hidden, "
        f"coalesce(sum(case when kind = '{WITHDRAW}' then records else quarantined end), 0) as refused from t"
    )
    return next((Sums(**row) for row in _rows(layout, sql + where)), Sums())


def _batch(generation: int, kind: str, batch: int) -> str:
    return f"generation = {int(generation)} and kind = {literal(kind)} and batch = {int(batch)}"


def _rows(layout: FlowHome, sql: str) -> list[dict[str, Any]]:
    return layout.tables.ledger.rows(sql)


def _one(layout: FlowHome, sql: str) -> int | None:
    """Return the number `n` of a query's only row; None if it is NULL or there is no ledger."""
    found = next((row["n"] for row in _rows(layout, sql)), None)
    return None if found is None else int(found)


def _flat(row: BatchRow) -> dict[str, Any]:
    flat = row.as_dict()
    for name in TIMES:
        flat[name] = datetime.fromisoformat(flat[name]) if flat[name] else None
    return flat | {name: json.dumps(flat[name], sort_keys=True) for name in ("reasons", "sinks")}
