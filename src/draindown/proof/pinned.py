"""The versions that a proof compares: a derived table as it stands, and its sources as the newest batch read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.flow import generations
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.sources import intake
from draindown.sources.slices import Unit
from draindown.sources.tables.followed import Followed
from draindown.sources.tables.source import by_table, part_way
from draindown.spec.table_source import SourceTable, TableSource


@dataclass(frozen=True)
class Pinned:
    """All tables, each opened at its version.

    `sources`: in the order of the flow. `decided`: the newest decision about late rows that counts by then.
    """

    sources: Sequence[TableLog]
    table: TableLog
    decided: int = 0


def pinned(layout: FlowLayout, source: TableSource) -> Pinned:
    """Return what a proof of the flow compares.

    Raises TerminalError `nothing-to-prove`: nothing was derived yet, or a range of versions is half done;
    `source-replaced`: a source is another table than the one that was read, or was not read at all; `history-gone`:
    files of a source at the version that was read are not there.
    """
    generation = generations.generation(layout)
    done = generations.first_unread(layout, generation) - 1
    found = next(intake.slices(layout, generation, done), None) if done else None
    part = part_way(layout, generation, done) if found else None
    if found is None or part is not None:
        what = f"{part[0]} of {part[1]} buckets are in the table" if part else "no batch has derived anything yet"
        raise _impossible(layout, "nothing-to-prove", what, f"draindown run {layout.pipeline} --flow {layout.flow}")
    units = zip(source.read, by_table(layout, source, found.units), strict=True)
    sources = [_opened(layout, one, unit) for one, unit in units]
    table = TableLog(layout.table)
    _ = table.version  # opened once, so that all are compared at one version
    return Pinned(sources, table, found.units[0].row["decided"])


def _opened(layout: FlowLayout, table: SourceTable, unit: Unit | None) -> TableLog:
    log = None if unit is None else TableLog(unit.name)
    if unit is None or log is None or not log.exists or log.id != unit.row["table_id"]:
        next_ = f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table with its source"
        raise _impossible(layout, "source-replaced", f"table {table} is not the one that was read", next_)
    found = log.at(Followed(table, layout).readable(unit))
    if gone := found.missing_files():
        what = f"{count(len(gone), 'file')} of table {table} at version {found.version}, which was read, are not there"
        next_ = f"draindown run {layout.pipeline} --flow {layout.flow}   # reads a newer version, then prove again"
        raise _impossible(layout, "history-gone", f"{what}: VACUUM removed them, or a person did", next_)
    return found


def _impossible(layout: FlowLayout, code: str, found: str, next_: str) -> TerminalError:
    return TerminalError(
        code,
        tried=f"prove flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        changed="nothing",
        next=next_,
    )
