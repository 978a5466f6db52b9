"""The versions that a proof compares: a derived table as it stands, and its sources as the newest
batch read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from draindown.base.errors import DraindownError, TerminalError
from draindown.base.formatting import count
from draindown.config.table_source import SourceTable, TableSource
from draindown.flow import generations
from draindown.lake.home import FlowHome
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table
from draindown.sources import intake
from draindown.sources.slices import Unit, unread_after
from draindown.sources.tables.derivation import derivation_changed
from draindown.sources.tables.followed import Followed
from draindown.sources.tables.source import by_table, part_way


@dataclass(frozen=True)
class Pinned:
    """All tables, each opened at its version.

    `sources`: in the order of the flow. `decided`: the newest decision about late rows that counts
    by then.
    """

    sources: Sequence[Table]
    table: Table
    decided: int = 0


@contextmanager
def proving(layout: FlowHome, source: TableSource) -> Iterator[Pinned]:
    """Yield what `pinned` returns, to a proof of the flow.

    No lock keeps VACUUM from a table that is read. So the error of a proof is `history-gone` too,
    if a version that it read lacks files by then, whichever engine missed them.
    """
    found = pinned(layout, source)
    try:
        yield found
    except DraindownError:
        raise
    except Exception:
        _refuse_gone(layout, source, found)
        raise


def pinned(layout: FlowHome, source: TableSource) -> Pinned:
    """Return what a proof of the flow compares.

    Raises TerminalError `nothing-to-prove`: nothing was derived yet, or a range of versions is half
    done; `derivation-changed`: the table was computed by another query than the file has now;
    `source-replaced`: a source is another table than the one that was read, or was not read at all;
    `history-gone`: files of a source at the version that was read, or of the table, are not there.
    """
    generation, table = generations.generation(layout), layout.tables.target
    # by the table as it is opened here: a drain may commit the next batch any moment
    done = unread_after(table.last(layout.app_id(generation, "rows"))) - 1
    found = next(intake.slices(layout, generation, done), None) if done else None
    part = part_way(layout, generation, done) if found else None
    if found is None or part is not None:
        what = (
            f"{part[0]} of {part[1]} buckets are in the table"
            if part
            else "no batch has derived anything yet"
        )
        raise _impossible(
            layout,
            "nothing-to-prove",
            what,
            f"draindown run {layout.pipeline}/{layout.flow}",
        )
    if found.units[0].row["derivation"] != source.derivation:
        raise derivation_changed(layout, source, "prove")
    units = zip(source.read, by_table(source, found.units), strict=True)
    sources = [_opened(layout, one, unit) for one, unit in units]
    result = Pinned(sources, table, found.units[0].row["decided"])
    _refuse_gone(layout, source, result)
    return result


def _opened(layout: FlowHome, table: SourceTable, unit: Unit | None) -> Table:
    log = layout.tables.other(table.table)
    if unit is None or not log.exists or log.id != unit.row["table_id"]:
        next_ = f"draindown reset {layout.pipeline}/{layout.flow}   # compares the whole table with its source"
        raise _impossible(
            layout, "source-replaced", f"table {table} is not the one that was read", next_
        )
    version = Followed(table, layout).readable(unit)
    found = log.at(version)
    try:
        _ = found.version
    except DeltaError:
        raise _gone(
            layout, f"the log of table {table} at version {version}", _newer(layout)
        ) from None
    return found


def _refuse_gone(layout: FlowHome, source: TableSource, found: Pinned) -> None:
    """Raise TerminalError `history-gone` if files of one of the versions are not there."""
    doctor = f"draindown doctor {layout.pipeline}/{layout.flow}   # if its newest version is whole, audit again"
    read = [
        (str(table), log, _newer(layout))
        for table, log in zip(source.read, found.sources, strict=True)
    ]
    for name, log, next_ in (*read, (layout.table_name, found.table, doctor)):
        if gone := lost_files(log):
            raise _gone(
                layout,
                f"{count(len(gone), 'file')} of table {name} at version {log.version}",
                next_,
            )


def _newer(layout: FlowHome) -> str:
    return (
        f"draindown run {layout.pipeline}/{layout.flow}   # reads a newer version, then audit again"
    )


def _gone(layout: FlowHome, what: str, next_: str) -> TerminalError:
    found = f"a proof reads {what}: gone by VACUUM, by the cleanup of the log, or by a person"
    return _impossible(layout, "history-gone", found, next_)


def _impossible(layout: FlowHome, code: str, found: str, next_: str) -> TerminalError:
    return TerminalError(
        code,
        tried=f"prove flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        changed="nothing",
        next=next_,
    )
