"""Verify that the live generation can continue: checkpoint, table and intake agree."""

from __future__ import annotations

from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import altered, generations, integrity
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import directories
from draindown.lake.commits import Commit, standing_restores
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import from_commit
from draindown.sources.port import Source

_LOOK_BACK = 1000  # commits to read after the newest batch


def resume(layout: FlowHome, flow: FlowSpec | DerivedFlow | None = None) -> int:
    """Return the live generation after verifying that its next batch may follow its last. Repairs
    the ledger.

    `flow`: refuse tables that another engine altered since its newest commit, too.

    Call it under the lease and before pinning input, which would re-create a lost intake. Raises
    TerminalError `table-damaged`, `table-altered`, `table-feature`, `reset-unfinished`,
    `generation-damaged`, `checkpoint-damaged`, `checkpoint-missing`, `checkpoint-without-metadata`,
    `table-behind-checkpoint`, `intake-behind-checkpoint`, `intake-replaced`.
    """
    layout = layout.view()  # under the lease nobody else writes, so one view stays valid to the end
    integrity.refuse(layout)
    if flow is not None:
        altered.refuse(layout, flow)
    generation = generations.generation(layout)
    checkpoint = Checkpoint(layout.checkpoint(generation))
    checkpoint.verify()
    generations.refuse_lost(
        layout, generation, layout.tables.target.last(layout.app_id(generation, "rows"))
    )
    refuse_behind(layout, checkpoint, generation)
    refuse_other_intake(layout, checkpoint, generation)
    ledger_table.heal(layout, generation)
    return generation


def forget_void(layout: FlowHome, generation: int, source: Source) -> None:
    """Forget the slices of a generation that are void, and the checkpoint that planned them.
    Idempotent.

    Each goes out of the way in one step before its files are removed: half a checkpoint, or half an
    intake, would be refused as damaged. The checkpoint goes first: one without its intake would be
    refused too. What a call leaves that a crash ended goes with the next one.
    """
    forgotten = layout.forgotten(generation)
    directories.remove(forgotten)
    if source.following and source.following.is_void(layout, generation):
        for path in (layout.checkpoint(generation), layout.tables.intake(generation).path):
            if directories.exists(path):
                directories.move(path, f"{forgotten}/{path.rpartition('/')[2]}")
        directories.remove(forgotten)


def refuse_behind(layout: FlowHome, checkpoint: Checkpoint, generation: int) -> None:
    """Refuse to continue if the target lacks batches that the checkpoint has committed. Their rows
    would be missing.

    Raises TerminalError `table-behind-checkpoint`.
    """
    found = behind(layout, checkpoint, generation)
    if found:
        raise TerminalError(
            "table-behind-checkpoint",
            tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=found,
            next=[
                f"draindown reset {layout.pipeline}/{layout.flow}",
                f"put {layout.tables.target.path} back as it was, as a whole",
            ],
        )


def refuse_other_intake(layout: FlowHome, checkpoint: Checkpoint, generation: int) -> None:
    """Refuse to continue on another intake than the checkpoint's. Its slices would count as read
    without being read.

    Raises TerminalError `intake-behind-checkpoint`, `intake-replaced`.
    """
    planned, reads = checkpoint.last_offset, checkpoint.intake_id
    if planned is None:
        return
    path = layout.tables.intake(generation).path
    # opened after the checkpoint, since a running drain writes the intake first
    table = layout.tables.at(path)
    last = table.version if table.exists else 0
    replaced = reads is not None and table.exists and table.id != reads
    if not replaced and planned.next_version - 1 <= last:
        return
    found = f"{path} is another table than the one the checkpoint reads: it was made anew"
    if not replaced:
        ends = f"ends at slice {last}" if table.exists else "is gone"
        found = f"the checkpoint has planned the slices below {planned.next_version}, the intake {path} {ends}"
    raise TerminalError(
        "intake-replaced" if replaced else "intake-behind-checkpoint",
        tried=f"resume {checkpoint.path} of flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        next=[
            f"draindown reset {layout.pipeline}/{layout.flow}",
            f"put {path} back as it was, as a whole",
        ],
    )


def behind(layout: FlowHome, checkpoint: Checkpoint, generation: int) -> str | None:
    """Describe which batches committed in the checkpoint the target lacks; None if it lacks
    none.
    """
    done = checkpoint.last_commit
    if done is None:
        return None
    table = layout.tables.target
    newest = table.last(layout.app_id(generation, "rows"))
    ahead = f"the checkpoint is done with batches up to {done}, the table {table.path}"
    if newest is None:
        what = "knows no batch of it" if table.exists else "is gone"
        return f"{ahead} {what}"
    if newest < done:
        return f"{ahead} ends at batch {newest}"
    return _taken_back(layout, generation, table)


def _taken_back(layout: FlowHome, generation: int, table: Table) -> str | None:
    """Describe a RESTORE that removed batches of the generation; None if none did, or another one
    brought them back.

    RESTORE keeps the transaction ids of the commits that it reverts, so those ids prove nothing
    here.
    """
    last, later = ledger_table.last_version(layout, generation), list[Commit]()
    for commit in table.commits(min(table.version - last, _LOOK_BACK)):
        row = from_commit(commit)
        if row and (row.pipeline, row.flow) == (layout.pipeline, layout.flow):
            last = commit.version  # the ledger may not have this commit yet
            break
        later.append(commit)
    for restore in standing_restores(later):
        if (to := restore.restored) is not None and to < last:
            by = f"version {restore.version} of the table {layout.tables.target.path} restored version {to}"
            return f"{by}, before the newest batch in version {last}"
    return None
