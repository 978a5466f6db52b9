"""The swap at the end of a rebuild: one commit replaces the live table; further steps complete
it.
"""

from __future__ import annotations

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.base.progress import StepHook, ignore_step
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.names import END_AT, START_AT
from draindown.flow import discards, generations, integrity, quarantine
from draindown.lake import delta, directories
from draindown.lake.commits import Commit, standing_restores
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.ledger import rows as ledger_rows
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.ledger.rows import Swap
from draindown.recovery import sink_bases
from draindown.recovery.rebuild import Rebuild, damaged_staging, forget, is_swapped, unfinished
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.kafka import accepted
from draindown.sources.slices import slice_of


def swap(request: Request) -> Swap:
    """Verify the staged tables and add a missing table of what the target remembers.

    Returns what the swapping commit records.

    `request` is about the staged generation. All of its batches are done. Raises TerminalError
    `ledger-does-not-add-up` if the table's rows do not match its batches, `rebuild-damaged` if a
    slice was not read.
    """
    staged, flow = request.layout, request.declared
    newest, slices = (
        staged.tables.target.last(staged.app_id(staged.staged, "rows")),
        intake.newest(staged, staged.staged),
    )
    if newest is None or slice_of(newest) != slices:
        raise damaged_staging(
            staged,
            staged.staged,
            f"its newest batch is {newest}, the intake has {count(slices, 'slice')}",
        )
    ledger_table.heal(staged)
    sums = ledger_table.sums(staged)
    batches, rows = sums.rows, sums.net
    if batches != slices:
        short = f"its ledger has {count(batches, 'row')} for {count(slices, 'slice')}"
        raise damaged_staging(staged, staged.staged, short)
    found = staged.tables.target.row_count
    if found != rows:
        wrong = [
            f"rows of the rebuilt table: {rows} by its ledger, {found} in {staged.tables.target.path}"
        ]
        raise ledger_rows.not_adding_up(ledger_table.recent(staged, 1)[0], wrong)
    memory = flow.target.kind.memory
    if memory and staged.live.tables.memory(memory).exists:
        beside = staged.tables.memory(memory)
        if not beside.exists:
            kept = staged.tables.target.columns(_remembered(flow, staged.tables.target))
            delta.create(beside, pa.schema([*kept, *_own(memory)]))
    return Swap(staged.pipeline, staged.flow, staged.staged, batches, rows, request.run_id)


def _remembered(flow: FlowSpec | DerivedFlow, table: Table) -> list[str]:
    """Return the columns of the target that a table beside it has."""
    if flow.target.kind.memory == "tombstones":
        return flow.target.essential
    return [name for name in table.column_types if name not in (START_AT, END_AT, "_changed_at")]


def _own(memory: str) -> tuple[pa.Field, ...]:
    """Return the columns of a table beside the target that are draindown's own."""
    return (*([pa.field("_delete", pa.bool_())] if memory == "hidden" else []), *_OF_MEMORY)


_OF_MEMORY = (
    *(
        pa.field("_generation", pa.int32()),
        pa.field("_batch", pa.int64()),
        pa.field("_kind", pa.string()),
    ),
    pa.field("_changed_at", pa.timestamp("us", tz="UTC")),
)


def finish(layout: FlowHome, *, by: str, reached: StepHook = ignore_step) -> Rebuild | None:
    """Complete an interrupted swap: tombstones, quarantine, ledger, generation. Idempotent.

    No-op if no swap is pending. Call it under the lease, before anything else. Returns the rebuild
    that it completed, or None. Calls `reached` with tombstones, moved, decided, ledger, named.
    Raises TerminalError `ledger-does-not-add-up` if the swap committed other rows than the rebuilt
    table held, `rebuild-damaged` if no commit of the table is the swap.
    """
    begun = unfinished(layout)
    if begun is None or not is_swapped(layout, begun):
        return None
    staged, number = layout.beside(begun.generation), begun.generation
    if generations.generation(layout) != number:
        last = layout.tables.target.last(layout.app_id(number, "rows"))
        assert last is not None, "a swapped table knows its batches"
        version = _swapped_at(layout, number)
        for memory in ("tombstones", "hidden", "snapshots"):
            if staged.tables.memory(memory).exists:
                app = (layout.app_id(number, memory), last)
                delta.replace(layout.tables.memory(memory), staged.tables.memory(memory), app=app)
        reached("tombstones")
        _move_refused(layout, begun, last)
        reached("moved")
        _decide_again(layout, begun, by)
        reached("decided")
        ledger_table.record_rebuilt(layout, number, version)
        reached("ledger")
        sink_bases.swapped(layout, version - 1)
        generations.take_place(staged)
    reached("named")
    _clear(staged, begun)
    return begun


def lost_properties(layout: FlowHome) -> str | None:
    """Return the path of the rebuilt table whose properties the table in its place lacks; None if
    it lacks none.

    A crash right after the swap leaves it so: they are set once its rows are there. Until then the
    table says what its earlier rows go by, and a batch by other keys is refused. Only an engine can
    set them.
    """
    rebuilt = [
        int(number) for number, card in generations.cards(layout).items() if card.get("rebuilt")
    ]
    table, newest = layout.tables.target, max(rebuilt, default=0)
    if (
        not newest
        or not table.exists
        or integrity.put_aside_last(layout, layout.tables.target) > newest
    ):
        return None
    source = layout.beside(newest).tables.target
    other_rows = source.exists and source.properties.get(delta.ROWS_BY) != table.properties.get(
        delta.ROWS_BY
    )
    lacks = other_rows or delta.BOUNDED not in table.properties
    return source.path if lacks and _stands(layout, newest) else None


def _stands(layout: FlowHome, generation: int) -> bool:
    """Return whether the log shows the swap, and no RESTORE that took it back: that brought earlier
    properties, too.
    """
    commit = _swap_commit(layout, generation)
    restores = standing_restores(layout.tables.target.commits())
    return commit is not None and not any(
        (one.restored or 0) < commit.version < one.version for one in restores
    )


def _swapped_at(layout: FlowHome, generation: int) -> int:
    """Return the version of the swapping commit, after verifying its number of rows."""
    commit = _swap_commit(layout, generation)
    if commit is not None and (swap := ledger_rows.swap_of(commit)):
        target_log.verify_swap(commit, swap)
        return commit.version
    raise TerminalError(
        "rebuild-damaged",
        tried=f"finish the rebuild of generation {generation} of flow {layout.flow}",
        found=f"{layout.tables.target.path} knows its batches, and none of its commits brought them",
        next=f"restore {layout.tables.target.path} from a copy, as a whole",
    )


def _swap_commit(layout: FlowHome, generation: int) -> Commit | None:
    """Return the commit that brought a rebuilt generation; None if the log has none."""
    for commit in layout.tables.target.commits():
        swap = ledger_rows.swap_of(commit)
        if swap and (swap.pipeline, swap.flow, swap.generation) == (
            layout.pipeline,
            layout.flow,
            generation,
        ):
            return commit
    return None


def _move_refused(layout: FlowHome, begun: Rebuild, last: int) -> None:
    """Append the rows that were never refused before. Rows refused before are left unchanged."""
    staged = layout.beside(begun.generation)
    discards.forget_unfinished(layout, begun.previous)
    quarantine.take_over(layout, staged, app=(layout.app_id(begun.generation, "quarantine"), last))


def _decide_again(layout: FlowHome, begun: Rebuild, by: str) -> None:
    """Release rows that were refused before and pass now. Reopen rows that were released and no
    longer exist.
    """
    staged = layout.beside(begun.generation)
    again = {row["quarantine_id"] for row in quarantine.places(staged)}
    rows = quarantine.places(layout)
    if not rows:
        return
    before = {
        row["quarantine_id"]: (row["input"], row["position"])
        for row in rows
        if discards.reads_input(row["kind"])
    }
    left_out = generations.without(staged, begun.generation)
    found = intake.find(layout, begun.generation, before, left_out)
    read = found.keys() - accepted.given_up(layout, {id: before[id] for id in found})
    passed = [one for one in before if one in read and one not in again]
    note = f"generation {begun.generation}, a rebuild,"
    quarantine.let_through(layout, passed, by=by, note=f"{note} let it through")
    released = quarantine.released(layout).keys()
    # These stay released. The batch that applied them is history, but the rebuild read the same
    # rows.
    others = [row["quarantine_id"] for row in rows if row["quarantine_id"] not in before]
    quarantine.let_through(
        layout, [one for one in others if one in released], by=by, note=f"{note} let it through"
    )
    gone = sorted(before.keys() - set(passed) & released)
    quarantine.reopen(layout, gone, by=by, note=f"{note} has no row of it")


def _clear(staged: FlowHome, begun: Rebuild) -> None:
    """Remove the staged files except the table's log, which records what each batch did."""
    target = staged.tables.target
    directories.clear(staged.staging, but=target.path)
    directories.clear(target.path, but=target.log.home)
    forget(staged, begun)
