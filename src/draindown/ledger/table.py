"""The ledger as a Delta table: a projection of what the target's commits say, healed from them when it lags behind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.ledger.rows import TIMES, BatchKind, BatchRow, closed, from_commit, is_fence, swap_of

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("pipeline", pa.string()), ("flow", pa.string()), ("generation", pa.int32()), ("batch", pa.int64())]
    + [("run_id", pa.string()), ("kind", pa.string()), ("cut", pa.int64())]
    + [(name, pa.int64()) for name in ("files", "bytes", "lines", "blank", "records", "quarantined", "late")]
    + [(name, pa.int64()) for name in ("superseded", "duplicate", "inserted", "updated", "deleted", "remembered")]
    + [("reasons", pa.string()), ("max_sequence", pa.string())]
    + [(name, _TIME) for name in TIMES]
    + [("seconds", pa.float64()), ("table_version", pa.int64()), ("applied", pa.int64())]
)
_LOOK_BACK = 100
"""Commits of the target that are read to find what the ledger lacks; a crash leaves one."""
_FENCES = 10  # commits among which one is no fence, however many drivers woke up


def record(layout: FlowLayout, rows: Sequence[BatchRow]) -> None:
    """Append ledger rows, each once however often it is called."""
    for row in rows:
        # two replays may end in another order than they began, so that each of their batches has an id of its own
        apart = f":{row.batch}" if row.kind == "replay" else ""
        app = f"ledger:{row.generation}:{row.kind}{apart}"
        delta.append(layout.ledger, pa.Table.from_pylist([_flat(row)], schema=SCHEMA), app=(app, row.batch))


def record_rebuilt(layout: FlowLayout, generation: int, version: int) -> None:
    """Append the rows of a generation that was rebuilt and is version `version` of the target now, in one commit, once.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    rows = [row for commit in reversed(made(layout, generation, version)) if (row := closed(commit))]
    if rows:
        flat = pa.Table.from_pylist([_flat(row) for row in rows], schema=SCHEMA)
        delta.append(layout.ledger, flat, app=(f"ledger:{generation}:source", rows[-1].batch))


def commits(layout: FlowLayout, limit: int) -> list[dict[str, Any]]:
    """The target's newest commits, newest first, at most `limit`.

    In the place of one that brought a rebuilt generation stand those of its batches, all of that version.
    """
    found: list[dict[str, Any]] = []
    for commit in delta.history(layout.table, limit):
        swap = swap_of(commit)
        mine = swap and (swap.pipeline, swap.flow) == (layout.pipeline, layout.flow)
        found += made(layout, swap.generation, commit["version"]) if swap and mine else [commit]
    return found[:limit]


def last_commit(path: str) -> dict[str, Any]:
    """A table's newest commit that is no fence: one by a driver that lost the lease and doesn't know yet is no harm."""
    newest = delta.history(path, _FENCES)
    return next((commit for commit in newest if not is_fence(commit)), newest[0])


def made(layout: FlowLayout, generation: int, version: int) -> list[dict[str, Any]]:
    """Commits of the batches of a rebuilt generation, newest first, as commits of version `version` of the target.

    They stand in the log of the table they were made in, which is kept; empty where it is gone.
    """
    path = layout.beside(generation).table
    history = delta.history(path, delta.version(path) + 1) if delta.exists(path) else []
    return [commit | {"version": version} for commit in history if from_commit(commit)]


def heal(layout: FlowLayout) -> list[BatchRow]:
    """Append what the target's newest commits say and the ledger lacks; returns the rows added, oldest first.

    Raises TerminalError `ledger-does-not-add-up`, as the batch did that made such a commit, until someone has looked.
    """
    if not delta.exists(layout.table):
        return []
    known = {row.place for row in recent(layout, _LOOK_BACK)}
    added = []
    for commit in reversed(commits(layout, _LOOK_BACK)):
        row = from_commit(commit)
        if row is None or (row.pipeline, row.flow) != (layout.pipeline, layout.flow):
            continue
        if row.place not in known and closed(commit):
            record(layout, [row])
            added.append(row)
    return added


def recent(layout: FlowLayout, limit: int) -> list[BatchRow]:
    """The newest ledger rows by generation and table version, oldest first: a table made anew counts from 0 again."""
    if not delta.exists(layout.ledger):
        return []
    found = delta.query(
        layout.ledger, f"select * from t order by generation desc, table_version desc, batch desc limit {int(limit)}"
    )
    return [BatchRow.from_dict(row) for row in reversed(found.to_pylist())]


def newest_stamp(layout: FlowLayout) -> datetime | None:
    """The `changed_at` of the newest batch: where a generation is rebuilt, of the live table too."""
    newest = [row for where in {layout, layout.live} for row in recent(where, 1)]
    return max((row.changed_at for row in newest if row.changed_at), default=None)


def row_of(layout: FlowLayout, generation: int, batch: int, kind: BatchKind) -> BatchRow:
    """The ledger row of one batch. Raises TerminalError `ledger-row-missing`."""
    where = f"generation = {int(generation)} and batch = {int(batch)} and kind = '{kind}'"
    found: list[Mapping[str, Any]] = []
    if delta.exists(layout.ledger):
        found = delta.query(layout.ledger, f"select * from t where {where}").to_pylist()
    if len(found) != 1:
        raise TerminalError(
            "ledger-row-missing",
            tried=f"find batch {batch} of generation {generation} in {layout.ledger}",
            found=f"{len(found)} rows, though the table {layout.table} holds the batch",
            next=f"draindown audit {layout.pipeline}",
        )
    return BatchRow.from_dict(found[0])


def last_batch(layout: FlowLayout, generation: int, kind: str, runs: Iterable[str] = ()) -> int | None:
    """The newest batch of a generation and kind in the ledger; None if it has none.

    The ledger calls all replays of input `replay`: `runs` are the ids of those that did the one that is meant.
    """
    if not delta.exists(layout.ledger):
        return None
    where = f"generation = {int(generation)} and kind = {delta.literal(kind.partition(':')[0])}"
    if kind.startswith("replay:"):
        where += f" and run_id in ({', '.join(map(delta.literal, ['', *runs]))})"
    last = delta.query(layout.ledger, f"select max(batch) as last from t where {where}").to_pylist()[0]["last"]
    return None if last is None else int(last)


def has(layout: FlowLayout, generation: int, kind: str, batch: int) -> bool:
    """Whether a batch is in the ledger. Replays of input, which it calls all `replay`, share their numbers."""
    if not delta.exists(layout.ledger):
        return False
    kind = delta.literal(kind.partition(":")[0])
    where = f"generation = {int(generation)} and kind = {kind} and batch = {int(batch)}"
    return bool(delta.query(layout.ledger, f"select 1 from t where {where} limit 1").num_rows)


def of_run(layout: FlowLayout, run_id: str) -> list[BatchRow]:
    """The ledger rows of one run, oldest first."""
    return [row for row in recent(layout, 10_000) if row.run_id == run_id]


def files_read(layout: FlowLayout) -> int:
    """Files that the generation which read most of them has read."""
    if not delta.exists(layout.ledger):
        return 0
    per_generation = "select sum(files) as n from t where kind = 'source' group by generation"
    return int(delta.query(layout.ledger, f"select max(n) as n from ({per_generation})").to_pylist()[0]["n"] or 0)


def _flat(row: BatchRow) -> dict[str, Any]:
    flat = row.as_dict()
    for name in TIMES:
        flat[name] = datetime.fromisoformat(flat[name]) if flat[name] else None
    return flat | {"reasons": json.dumps(flat["reasons"], sort_keys=True)}
