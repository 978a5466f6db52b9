"""Refuse a flow's tables that require a feature which one of the engines lacks, before anything is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from draindown.base.errors import TerminalError
from draindown.lake import features
from draindown.lake.home import FlowHome
from draindown.lake.table import Table


@dataclass(frozen=True)
class Unfit:
    """A table that requires features which an engine lacks: `found` describes them, `next` are the
    ways out.
    """

    path: str
    found: str
    next: tuple[str, ...]


def unfit(layout: FlowHome, table: Table) -> Unfit | None:
    """Return the features of one of the flow's tables that keep an engine from its work; None if
    all are supported.
    """
    path = table.path
    if error := unsupported(table):
        return Unfit(path, error.found, tuple(_ways(layout, path, error.names)))
    if not table.is_whole:
        return None
    beside = path != layout.tables.target.path
    names = features.unwritable(table.table.protocol(), beside=beside)
    if not names:
        return None
    engine = "deltalake, which writes the table," if beside else "Delta of Spark"
    return Unfit(path, features.described(path, names, engine), tuple(_ways(layout, path, names)))


def unsupported(log: Table) -> features.Unsupported | None:
    """Return the error of a table that deltalake cannot read because of a feature; None for any
    other table.
    """
    try:
        _ = log.exists and log.table
    except features.Unsupported as error:
        return error
    except (TerminalError, DeltaError):  # `Table.damage` describes it
        return None
    return None


def refuse(layout: FlowHome, tables: Iterable[Table]) -> None:
    """Refuse to work with tables that `unfit` finds. Raises TerminalError `table-feature`."""
    found = [one for table in tables if (one := unfit(layout, table))]
    if found:
        raise TerminalError(
            "table-feature",
            tried=f"open the tables of flow {layout.flow} of pipeline {layout.pipeline}",
            found="; ".join(one.found for one in found),
            next=list(dict.fromkeys(way for one in found for way in one.next)),
        )


def _ways(layout: FlowHome, path: str, names: Sequence[str]) -> Iterator[str]:
    yield from features.dropped(path, names)
    aside = " --table-aside" * (path == layout.tables.target.path)
    yield (
        f"draindown reset {layout.pipeline}/{layout.flow}{aside}   "
        "# moves the table to aside/; the next run reads all input into a new one"
    )
