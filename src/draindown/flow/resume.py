"""Whether the live generation can continue: proofs that checkpoint, table and intake still agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draindown.base.errors import TerminalError
from draindown.flow import generations, integrity
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.transactions import app_id
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import from_commit
from draindown.sources.files import catalog

_LOOK_BACK = 1000  # commits after the newest batch


def resume(layout: FlowLayout) -> int:
    """The live generation, once it is proven that its next batch may follow the last; heals the ledger.

    Call it under the lease, before anything is taken in: that would make a lost intake anew. Raises TerminalError
    `table-damaged`, `reset-unfinished`, `generation-damaged`, `checkpoint-damaged`, `checkpoint-missing`,
    `checkpoint-without-metadata`, `table-behind-checkpoint`, `intake-behind-checkpoint`, `intake-replaced`.
    """
    integrity.refuse(layout)
    generation = generations.generation(layout)
    Checkpoint(layout.checkpoint(generation)).verify()
    generations.refuse_lost(
        layout, generation, delta.transaction_version(layout.table, app_id(layout, generation, "rows"))
    )
    refuse_behind(layout, generation)
    refuse_other_intake(layout, generation)
    ledger_table.heal(layout)
    return generation


def refuse_behind(layout: FlowLayout, generation: int) -> None:
    """Refuse to go on where the target lost batches that the checkpoint is done with: their rows would be missing.

    Raises TerminalError `table-behind-checkpoint`.
    """
    found = behind(layout, generation)
    if found:
        raise TerminalError(
            "table-behind-checkpoint",
            tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=found,
            next=[
                f"draindown reset {layout.pipeline} --flow {layout.flow}",
                f"put {layout.table} back as it was, as a whole",
            ],
        )


def refuse_other_intake(layout: FlowLayout, generation: int) -> None:
    """Refuse to go on over another intake than the checkpoint reads: its cuts would count as done, unread.

    Raises TerminalError `intake-behind-checkpoint`, `intake-replaced`.
    """
    read = Checkpoint(layout.checkpoint(generation))
    planned, reads = read.last_offset, read.intake_id
    if planned is None:
        return
    last = catalog.last_cut(layout)  # after the checkpoint: a drain at work writes the intake first
    replaced = reads is not None and delta.exists(layout.intake) and delta.table_id(layout.intake) != reads
    if not replaced and planned.next_version - 1 <= last:
        return
    found = f"{layout.intake} is another table than the one the checkpoint reads: it was made anew"
    if not replaced:
        ends = f"ends at cut {last}" if delta.exists(layout.intake) else "is gone"
        found = f"the checkpoint has planned the cuts below {planned.next_version}, the intake {layout.intake} {ends}"
    raise TerminalError(
        "intake-replaced" if replaced else "intake-behind-checkpoint",
        tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        next=[
            f"draindown reset {layout.pipeline} --flow {layout.flow}",
            f"put {layout.intake} back as it was, as a whole",
        ],
    )


def behind(layout: FlowLayout, generation: int) -> str | None:
    """In words, which batches that the checkpoint is done with the target lacks; None if it has them all."""
    done = Checkpoint(layout.checkpoint(generation)).last_commit
    if done is None:
        return None
    newest = delta.transaction_version(layout.table, app_id(layout, generation, "rows"))
    if newest is None:
        what = "knows no batch of it" if delta.exists(layout.table) else "is gone"
        return f"the checkpoint is done with batches up to {done}, the table {layout.table} {what}"
    if newest < done:
        return f"the checkpoint is done with batches up to {done}, the table {layout.table} ends at batch {newest}"
    return _taken_back(layout, generation)


def _taken_back(layout: FlowLayout, generation: int) -> str | None:
    """A RESTORE keeps the transaction ids of what it takes back, so it must be looked for."""
    last = _last_version(layout, generation)
    ahead = delta.version(layout.table) - last
    restored = []
    for commit in delta.history(layout.table, min(ahead, _LOOK_BACK)) if ahead > 0 else ():
        row = from_commit(commit)
        if row and (row.pipeline, row.flow) == (layout.pipeline, layout.flow):
            last = commit["version"]  # which the ledger need not know yet
            break
        restored += [(restored_to(commit), commit["version"])] if commit.get("operation") == "RESTORE" else []
    to, by = min(restored, default=(last, 0))
    if to >= last:
        return None
    return f"version {by} of the table {layout.table} restored version {to}, before the newest batch in version {last}"


def _last_version(layout: FlowLayout, generation: int) -> int:
    """The table version of the newest batch of a generation, as the ledger says it; -1 where it says nothing."""
    if not delta.exists(layout.ledger):
        return -1
    sql = f"select max(table_version) as last from t where generation = {int(generation)}"
    last = delta.query(layout.ledger, sql).to_pylist()[0]["last"]
    return -1 if last is None else int(last)


def restored_to(commit: Mapping[str, Any]) -> int:
    """The version that a RESTORE restored; 0 where it was named by time."""
    version = (commit.get("operationParameters") or {}).get("version")
    return int(version) if version is not None else 0
