"""Windows and sessions that end after their source was written: rows that come in time may still
change them.
"""

from __future__ import annotations

from datetime import UTC, datetime

from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.flow import generations
from draindown.lake.home import FlowHome, table_of_unit
from draindown.lake.table import Table, identifier, moment
from draindown.sources import intake
from draindown.sources.slices import slice_of


def open_windows(layout: FlowHome, flow: DerivedFlow, version: int) -> str:
    """Return in words which windows or sessions are open in a version of the table; empty if none
    is.

    One is open if it ends after the commit of the source version that the newest batch read. Any
    other one may change too, but only by rows that come late.
    """
    if flow.interval is None:
        return ""
    table, generation = Table(layout.tables.target.path, version), generations.generation(layout)
    newest = table.last(layout.app_id(generation, "rows"))
    read = (
        None if newest is None else next(intake.slices(layout, generation, slice_of(newest)), None)
    )
    if read is None:
        return ""
    (start, end), (unit,) = flow.interval, read.units  # windows and sessions are over one table
    commits = Table(layout.tables.other(table_of_unit(unit.name)).path, unit.until).commits(1)
    if not commits or commits[0].version != unit.until:
        return ""
    at = datetime.fromtimestamp(commits[0].timestamp / 1000, UTC)
    sql = (
        f"select count(*) as n, cast(min({identifier(start)}) as varchar) as since from t "
        f"where {identifier(end)} > {moment(at)}"
    )
    (row,) = table.rows(sql)
    if not row["n"]:
        return ""
    ends = "ends" if row["n"] == 1 else "end"
    return (
        f"{count(row['n'], flow.kind)} from {row['since'][:16]} on {ends} after the "
        f"source was written ({at:%H:%M} UTC)"
    )
