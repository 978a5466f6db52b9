"""The versions that a proof compares: a derived table as it stands, and its source as the newest batch read it."""

from __future__ import annotations

from dataclasses import dataclass

from draindown.base.errors import TerminalError
from draindown.flow import generations
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.sources import intake
from draindown.sources.tables.source import part_way


@dataclass(frozen=True)
class Pinned:
    """Both tables, each opened at its version. `decided`: the newest decision about late rows that counts by then."""

    source: TableLog
    table: TableLog
    decided: int = 0


def pinned(layout: FlowLayout) -> Pinned:
    """Return what a proof of the flow compares.

    Raises TerminalError `nothing-to-prove`: nothing was derived yet, or a range of versions is half done;
    `source-replaced`: the source is another table than the one that was read.
    """
    generation = generations.generation(layout)
    done = generations.first_unread(layout, generation) - 1
    found = next(intake.slices(layout, generation, done), None) if done else None
    part = part_way(layout, generation, done) if found else None
    if found is None or part is not None:
        what = f"{part[0]} of {part[1]} buckets are in the table" if part else "no batch has derived anything yet"
        raise _impossible(layout, "nothing-to-prove", what, f"draindown run {layout.pipeline} --flow {layout.flow}")
    (unit,) = found.units
    log = TableLog(unit.name)
    if not log.exists or log.id != unit.row["table_id"]:
        next_ = f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table with its source"
        raise _impossible(layout, "source-replaced", f"{unit.name} is another table than the one that was read", next_)
    table = TableLog(layout.table)
    _ = table.version  # opened once, so that both are compared at one version
    return Pinned(log.at(unit.until), table, unit.row["decided"])


def _impossible(layout: FlowLayout, code: str, found: str, next_: str) -> TerminalError:
    return TerminalError(
        code,
        tried=f"prove flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        changed="nothing",
        next=next_,
    )
