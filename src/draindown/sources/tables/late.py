"""Rows that came later than a derived flow accepts, and people's decisions about them. No Spark.

A late row is left out until a person applies it. Decisions are numbered, and each slice pins the
newest number that counts in it, so a batch that is repeated recomputes the same. They outlive
resets and rebuilds. Batches go on to write down whether the source has a row that was applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, begins, literal
from draindown.lake.table import rows as as_dicts

Action = Literal["released", "discarded"]
State = Literal["open", "released", "discarded", "gone"]
"""Gone: a person applied the row, and the source has it no more."""
CAME, WENT = "came", "went"
"""What a batch saw of a late row: it is in the source, or it is there no more."""
_CHOSEN = pa.schema(
    [
        *(("late_id", pa.string()), ("source_table", pa.string())),
        *(
            ("input", pa.string()),
            ("position", pa.int64()),
            ("arrived_at", pa.timestamp("us", "UTC")),
        ),
    ]
)
"""What a decision is about: a row of a table by its origin and arrival.

Two tables may have rows of one record, which both read. A topic that is created again has rows of
equal unit and position that arrived later.
"""
_DECISION = pa.schema(
    [
        *(("number", pa.int64()), ("action", pa.string()), ("at", pa.timestamp("us", "UTC"))),
        *(("by", pa.string()), ("note", pa.string())),
    ]
)
_SHOWN = "late_id, source_table, origin, event_time, arrived_at, lateness, window_start, groups, record, state"
_PLACES = (
    "late_id, source_table, origin['input'] as input, origin['position'] as position, arrived_at"
)
_SEEN = (
    "select * from (select *, row_number() over (partition by late_id order by generation desc, slice desc) as _newest "
    "from t where generation < {generation} or (generation = {generation} and slice < {first})) where _newest = 1"
)
_THERE = "(change = 'came' and generation = {generation} and slice >= {filled})"
_DECIDED = (
    "select late_id as _id, action from (select late_id, action, row_number() over "
    "(partition by late_id order by number desc) as _newest from decisions) where _newest = 1"
)


@dataclass(frozen=True)
class Place:
    """Which late rows are those of now: a flow's live generation, and the first slice that no batch
    has read.
    """

    layout: FlowHome
    generation: int
    first: int


def newest(layout: FlowHome) -> int:
    """Return the number of the newest decision that applied rows; 0 without any."""
    log = layout.tables.late_decisions
    found = (
        log.rows("select max(number) as n from t where action = 'released'") if log.exists else []
    )
    return int(found[0]["n"] or 0) if found else 0


def applied(layout: FlowHome, until: int) -> pa.Table:
    """Return table, unit, position and arrival of the rows that the decisions up to number `until`
    applied.
    """
    log = layout.tables.late_decisions
    names = ("source_table", "input", "position", "arrived_at")
    if not until or not log.exists:
        return pa.schema([_CHOSEN.field(name) for name in names]).empty_table()
    return log.query(
        f"select distinct {', '.join(names)} from t where action = 'released' and number <= {int(until)}"
    )


def listed(
    place: Place, state: State | None = "open", ids: Sequence[str] = (), limit: int | None = None
) -> list[dict[str, Any]]:
    """Return late rows with `state`, the latest first. `ids`: only these, by how they start.

    Open, applied and discarded ones are in the source, as the newest batch knows it. After a reset,
    applied ones stay applied until the fill has looked for them.
    """
    where = [f"state = {literal(state)}"] if state else []
    where += [begins("late_id", ids)] if ids else []
    return as_dicts(_query(place, _SHOWN, where, f"order by lateness desc, late_id{_most(limit)}"))


def counts(place: Place) -> dict[str, int]:
    """Return the number of late rows, by state, of those that `listed` returns."""
    found = as_dicts(_query(place, "state, count(*) as n", (), "group by state"))
    return dict.fromkeys(get_args(State), 0) | {row["state"]: row["n"] for row in found}


def decide(
    place: Place, rows: pa.Table, action: Action, *, by: str, note: str, at: datetime
) -> int:
    """Write down a decision about rows, as `chosen` returned them. Call it under the lease. Return
    its number.
    """
    layout = place.layout
    log = layout.tables.late_decisions
    number = 1 + (
        int(log.rows("select coalesce(max(number), 0) as n from t")[0]["n"]) if log.exists else 0
    )
    for field, value in zip(_DECISION, (number, action, at, by, note), strict=True):
        rows = rows.append_column(field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    if rows.num_rows:
        delta.append(layout.tables.late_decisions, rows)
    return number


def chosen(place: Place, ids: Sequence[str], action: Action) -> pa.Table:
    """Return the rows that a person may decide about so: open ones, and to apply, discarded ones
    that `ids` name.

    Columns: late_id, source_table, unit, position and arrived_at.

    Raises TerminalError `unknown-late-row` if one of `ids` names none of them, or several.
    """
    states = "state in ('open', 'discarded')" if ids and action == "released" else "state = 'open'"
    found = _query(place, _PLACES, [states, *([begins("late_id", ids)] if ids else [])])
    found = found.cast(_CHOSEN) if found.num_columns else _CHOSEN.empty_table()
    for start in ids:
        number = pc.sum(pc.starts_with(found["late_id"], start)).as_py() or 0
        if number != 1:
            layout = place.layout
            raise TerminalError(
                "unknown-late-row",
                tried=f"find late row {start!r} of flow {layout.flow} of pipeline {layout.pipeline}",
                found=f"{number or 'no'} rows that can be {action} begin with it",
                changed="nothing",
                next=f"draindown late list {layout.pipeline}/{layout.flow} --state all",
            )
    return found


def _query(place: Place, what: str, where: Sequence[str], rest: str = "") -> pa.Table:
    """Return the result of a query over late rows with their state; a table without columns if none
    was ever found.
    """
    layout = place.layout
    late, decisions = layout.tables.late, layout.tables.late_decisions
    if not late.exists:
        return pa.table({})
    seen, filled = _SEEN.format(generation=place.generation, first=place.first), _filled(place)
    there = _THERE.format(generation=place.generation, filled=filled or 0)
    beside: dict[str, Table] = {}
    sql = f"select l.*, 'open' as state from ({seen}) l where {there}"
    if decisions.exists:
        beside = {"decisions": decisions}
        gone = "change = 'went'" if filled is None else f"not {there}"
        state = f"case when d.action = 'released' and {gone} then 'gone' else coalesce(d.action, 'open') end as state"
        joined = f"({seen}) l left join ({_DECIDED}) d on l.late_id = d._id"
        sql = f"select l.*, {state} from {joined} where {there} or d.action = 'released'"
    only = f" where {' and '.join(where)}" if where else ""
    return late.query(f"select {what} from ({sql}){only} {rest}", beside)


def _filled(place: Place) -> int | None:
    """Return the first slice of the newest fill that was read as a whole: it looked at all rows
    anew. None without.
    """
    log = place.layout.tables.intake(place.generation)
    sql = f"select max(slice - bucket) as n from t where fill and bucket + 1 = buckets and slice < {int(place.first)}"
    found = log.rows(sql)
    return found[0]["n"] if found else None


def _most(limit: int | None) -> str:
    return "" if limit is None else f" limit {int(limit)}"
