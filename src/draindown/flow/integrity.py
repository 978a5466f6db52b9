"""Detect tables whose newest commits are empty, torn or missing, as a power failure leaves them,
and put them aside.

A torn data file is found where a table is read, and by whoever looks for it: doctor and reset.

Delta reads an empty commit as one that changed nothing. Intake, inputs, tombstones and quarantine
would silently lose rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.flow import generations, owner, table_features
from draindown.lake import directories
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lake.lost_files import absent_files
from draindown.lake.table import UNREADABLE, Table
from draindown.lake.torn import TableDamaged, torn_file
from draindown.ledger import table as ledger_table

SideTable = Literal["tombstones", "hidden", "quarantine"]


def damaged(layout: FlowHome, *, files: bool = False) -> dict[str, str]:
    """Return the flow's unreadable or incomplete tables: path, and a description of the damage.

    `files`: look into data files too, as `torn.torn_file` does. Without it that is done only if the
    ledger can't be read.
    """
    found = {table.path: words for table in tables(layout) if (words := _damage(table, files))}
    generation = generations.generation_if_told(layout)
    if (
        generation is not None
        and layout.tables.ledger.path not in found
        and layout.tables.ledger.exists
    ):
        try:
            found |= _all_behind(layout, generation, found)
        except TableDamaged:
            return damaged(layout, files=True)
    return found


def _damage(table: Table, files: bool) -> str | None:
    return table.damage or (torn_file(table.path) if files and table.exists else None)


def examined(layout: FlowHome) -> FlowHome:
    """Return a view of the home in which each table that `damaged` finds, files included, is no
    whole one.

    Raises TerminalError `table-of-another-flow`.
    """
    owner.refuse_other(layout)
    state = layout.view()
    for path, words in damaged(state, files=True).items():
        state.tables.at(path).mark_damaged(words)
    return state


def _all_behind(layout: FlowHome, generation: int, torn: Collection[str]) -> dict[str, str]:
    """Return the side tables that lack a batch, except those that are torn."""
    sides = [
        (table, of) for table, of in _side_tables(layout, generation) if table.path not in torn
    ]
    lacking = {table.path: _behind(layout, table, generation, of) for table, of in sides}
    return {path: f"{words} of generation {generation}" for path, words in lacking.items() if words}


def _side_tables(layout: FlowHome, generation: int) -> list[tuple[Table, SideTable]]:
    """Return the side tables to compare with the ledger, each with the purpose of its writes.

    The quarantine is compared only in the first generation. A later one refuses most rows again
    without adding them.
    """
    memory: list[tuple[Table, SideTable]] = [
        (layout.tables.tombstones, "tombstones"),
        (layout.tables.hidden, "hidden"),
    ]
    return memory if generation > 1 else [*memory, (layout.tables.quarantine, "quarantine")]


def _behind(layout: FlowHome, table: Table, generation: int, purpose: SideTable) -> str | None:
    """Describe how a side table lacks the newest batch that the ledger counts; None if complete or
    missing.
    """
    if not table.exists:
        return None
    last = ledger_table.last_with(layout, generation, purpose)
    newest = table.last(layout.app_id(generation, purpose))
    if last is None or (newest is not None and newest >= last):
        return None
    return f"the ledger counts rows of batch {last}, it {'knows none' if newest is None else f'ends at batch {newest}'}"


def refuse(layout: FlowHome) -> None:
    """Refuse to work on tables that lost commits or that an engine cannot handle.

    Tables of another flow lack batches of this one, which is no damage: the owner is checked first.

    Raises TerminalError `table-of-another-flow`, `table-damaged`, `reset-unfinished`,
    `table-feature`.
    """
    owner.refuse_other(layout)
    _refuse_half_a_reset(layout)
    table_features.refuse(layout, tables(layout))
    if found := damaged(layout):
        raise _error(layout, found)


def refuse_lost_files(layout: FlowHome) -> None:
    """Refuse tables whose newest version lists data files that do not exist. Raises TerminalError
    `table-damaged`.

    Lists the tables' directories. What a torn log or a lost deletion vector lacks is found by
    others.
    """
    found = {table.path: words for table in tables(layout) if (words := _lost(table))}
    if found:
        raise _error(layout, found)


def _lost(log: Table) -> str | None:
    """Describe the data files that a table's newest version lacks; None if it lacks none."""
    if not log.is_whole or not absent_files(log):
        return None
    # another driver may have rewritten and vacuumed files since the log was opened
    newest = Table(log.path)
    lost = absent_files(newest) if newest.is_whole else []  # a reset may have put the table aside
    if not lost:
        return None
    return f"{count(len(lost), 'data file')} of version {newest.version} removed, such as {lost[0]}"


def refuse_torn(layout: FlowHome) -> None:
    """Refuse to read tables whose logs are torn, or that deltalake cannot read.

    Raises TerminalError `table-of-another-flow`, `table-damaged`, `table-feature`. Whether a table
    lacks a batch is not checked: an audit finds that by its own count.
    """
    owner.refuse_other(layout)
    every = tables(layout)
    table_features.refuse(layout, filter(table_features.unsupported, every))
    if found := {table.path: words for table in every if (words := table.damage)}:
        raise _error(layout, found)


def _error(layout: FlowHome, found: Mapping[str, str]) -> TerminalError:
    again = [way for path in found if (way := made_again(layout, path))]
    ways = [
        f"draindown reset {layout.pipeline}/{layout.flow}   # puts them aside and reads all input again",
        f"restore {' and '.join(found)} from a copy, as a whole",
    ]
    return TerminalError(
        "table-damaged",
        tried=f"read the tables of flow {layout.flow} of pipeline {layout.pipeline}",
        found="; ".join(f"{path}: {words}" for path, words in found.items()),
        next=again if len(again) == len(found) else ways,
    )


def made_again(layout: FlowHome, path: str) -> str | None:
    """Return how a damaged table comes back that only spares work; None for all others."""
    return (
        f"remove {path}, as a whole   # the next runs make its rows again"
        if path == layout.tables.snapshots.path
        else None
    )


def _refuse_half_a_reset(layout: FlowHome) -> None:
    """Refuse to continue a generation whose tables an interrupted reset put aside.

    A reset puts tables aside before it makes its generation live. The old generation would run
    without their rows. Raises TerminalError `reset-unfinished`.
    """
    live = generations.generation_if_told(layout)
    gone = [] if live is None else missed(layout, live)
    if gone:
        raise TerminalError(
            "reset-unfinished",
            tried=f"go on with generation {live} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"a reset that did not end put aside what it worked with: {', '.join(gone)}",
            next=[
                f"draindown reset {layout.pipeline}/{layout.flow}",
                f"restore {' and '.join(gone)} from a copy, as a whole",
            ],
        )


def missed(layout: FlowHome, generation: int) -> list[str]:
    """Return the tables of a generation that a reset put aside for a later one and that nobody
    restored.
    """
    aside = ((table, put_aside_last(layout, table)) for table in tables(layout))
    return [
        table.path
        for table, began in aside
        if began > generation and not _is_back(layout, began, table)
    ]


def _is_back(layout: FlowHome, generation: int, table: Table) -> bool:
    """Return whether a copy of the table that was put aside is in place again: the table ids are
    equal.
    """
    if not table.is_whole:
        return False
    with suppress(*UNREADABLE):  # its newest versions may be torn, and the oldest still be readable
        return table.id == Table(_aside(layout, generation, table), version=0).id
    return False


def put_aside(layout: FlowHome, generation: int) -> list[str]:
    """Move each damaged table, as a whole, out of the way of a new generation. Return the new
    paths.
    """
    broken = damaged(layout, files=True)
    return _move(layout, generation, [one for one in tables(layout) if one.path in broken])


def put_target_aside(layout: FlowHome, generation: int) -> list[str]:
    """Move the target out of the way of a new generation, and hidden events. Return the new paths.

    Hidden events are the other half of a history, and count as known to a fold that may have
    changed since, or to input that is left out.
    """
    return _move(
        layout,
        generation,
        [table for table in (layout.tables.target, layout.tables.hidden) if table.exists],
    )


def _move(layout: FlowHome, generation: int, damaged: Iterable[Table]) -> list[str]:
    moved = []
    for table in damaged:
        aside = _aside(layout, generation, table)
        directories.move(table.path, aside)
        moved.append(aside)
    return moved


def put_aside_last(layout: FlowHome, table: Table) -> int:
    """Return the newest generation that began without this table because its reset put it aside; 0
    if there is none.
    """
    names = directories.names(layout.all_aside)
    known = [int(name) for name in names if name.isascii() and name.isdigit()]
    return max((one for one in known if directories.exists(_aside(layout, one, table))), default=0)


def replaced_last(layout: FlowHome, table: Table) -> int:
    """Return the newest generation that began with another table in the place of this one; 0 if
    there is none.

    A table that was put back since is in its place again.
    """
    began = put_aside_last(layout, table)
    return began if began and not _is_back(layout, began, table) else 0


def _aside(layout: FlowHome, generation: int, table: Table) -> str:
    kind, name = table.path.split("/")[-2:]
    return f"{layout.aside(generation)}/{kind}/{name}"


def tables(layout: FlowHome) -> tuple[Table, ...]:
    """Return the flow's tables in the reverse of the order in which a batch writes
    them.

    A reader that follows this order sees no table behind one it has read before, even while a drain
    is running.
    """
    generation = generations.generation_if_told(layout) or 1
    return tuple(one.table for one in reversed(flow_tables(layout, generation)))
