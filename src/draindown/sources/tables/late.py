"""Rows that came later than a derived flow accepts, and people's decisions about them. No Spark.

A late row counts in no window until a person applies it. Decisions are numbered, and each slice pins the newest number
that counts in it, so a batch that is repeated recomputes the same. They outlive resets and rebuilds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import literal, log_of
from draindown.sources.intake import Origin

Action = Literal["applied", "discarded"]
State = Literal["open", "applied", "discarded"]
CAME, WENT = "came", "went"
"""What a batch saw of a late row: it is in the source, or it is there no more."""
_DECISIONS = pa.schema(
    [
        *(("number", pa.int64()), ("late_id", pa.string()), ("unit", pa.string()), ("position", pa.int64())),
        *(("action", pa.string()), ("at", pa.timestamp("us", "UTC")), ("by", pa.string()), ("note", pa.string())),
    ]
)
_SHOWN = "late_id, origin, event_time, arrived_at, lateness, window_start, groups, record"
_IN_SOURCE = (
    "select * from (select *, row_number() over (partition by late_id order by slice desc) as _newest from t "
    "where generation = {generation} and slice >= {filled} and slice < {first}) where _newest = 1 and change = 'came'"
)
_DECIDED = (
    "select late_id as _id, action from (select late_id, action, row_number() over "
    "(partition by late_id order by number desc) as _newest from decisions) where _newest = 1"
)


@dataclass(frozen=True)
class Place:
    """Which late rows are those of now: a flow's live generation, and the first slice that no batch has read."""

    layout: FlowLayout
    generation: int
    first: int


def newest(layout: FlowLayout) -> int:
    """Return the number of the newest decision that applied rows; 0 without any."""
    log = log_of(layout, layout.late_decisions)
    found = log.rows("select max(number) as n from t where action = 'applied'") if log.exists else []
    return int(found[0]["n"] or 0) if found else 0


def applied(layout: FlowLayout, after: int, until: int) -> list[Origin]:
    """Return the origins of the rows that the decisions after number `after` up to `until` were the first to apply."""
    log = log_of(layout, layout.late_decisions)
    if until <= after or not log.exists:
        return []
    sql = (
        "select unit, position from t where action = 'applied' group by unit, position "
        f"having min(number) > {int(after)} and min(number) <= {int(until)}"
    )
    return [(row["unit"], row["position"]) for row in log.rows(sql)]


def listed(
    place: Place, state: State | None = "open", ids: Sequence[str] = (), limit: int | None = None
) -> list[dict[str, Any]]:
    """Return late rows that are in the source, with `state`, the latest first. `ids`: only these, by how they start."""
    return _query(place, f"{_SHOWN}, state", state, ids, f"order by lateness desc, late_id{_most(limit)}")


def counts(place: Place) -> dict[str, int]:
    """Return the number of late rows that are in the source, by state."""
    found = _query(place, "state, count(*) as n", None, (), "group by state")
    return dict.fromkeys(("open", "applied", "discarded"), 0) | {row["state"]: row["n"] for row in found}


def decide(place: Place, rows: Collection[dict[str, Any]], action: Action, *, by: str, note: str, at: datetime) -> int:
    """Write down a decision about late rows, as `listed` returned them. Call it under the lease. Return its number."""
    layout = place.layout
    log = log_of(layout, layout.late_decisions)
    number = 1 + (int(log.rows("select coalesce(max(number), 0) as n from t")[0]["n"]) if log.exists else 0)
    told = {"number": number, "action": action, "at": at, "by": by, "note": note}
    found = [
        {**told, "late_id": row["late_id"], "unit": row["origin"]["unit"], "position": row["origin"]["position"]}
        for row in rows
    ]
    if found:
        delta.append(layout.late_decisions, pa.Table.from_pylist(found, schema=_DECISIONS))
    return number


def chosen(place: Place, ids: Sequence[str], action: Action) -> list[dict[str, Any]]:
    """Return the rows that a person may decide about so: open ones, and to apply, discarded ones that `ids` name.

    Raises TerminalError `unknown-late-row` if one of `ids` names none of them, or several.
    """
    rows = listed(place, None, ids)
    fitting = [row for row in rows if row["state"] == "open" or (ids and action == "applied" != row["state"])]
    for start in ids:
        number = sum(row["late_id"].startswith(start) for row in fitting)
        if number != 1:
            layout = place.layout
            raise TerminalError(
                "unknown-late-row",
                tried=f"find late row {start!r} of flow {layout.flow} of pipeline {layout.pipeline}",
                found=f"{number or 'no'} rows that can be {action} begin with it",
                changed="nothing",
                next=f"draindown late list {layout.pipeline} --flow {layout.flow} --state all",
            )
    return fitting


def _query(place: Place, what: str, state: State | None, ids: Sequence[str], rest: str) -> list[dict[str, Any]]:
    layout = place.layout
    late, decisions = log_of(layout, layout.late), log_of(layout, layout.late_decisions)
    if not late.exists:
        return []
    inner = _IN_SOURCE.format(generation=place.generation, filled=_filled(place), first=place.first)
    decided = f"coalesce(d.action, 'open') as state from ({inner}) l left join ({_DECIDED}) d on l.late_id = d._id"
    sql = f"select l.*, {decided}" if decisions.exists else f"select l.*, 'open' as state from ({inner}) l"
    where = [f"state = {literal(state)}"] if state else []
    where += [f"({' or '.join(f'starts_with(late_id, {literal(one)})' for one in ids)})"] if ids else []
    only = f" where {' and '.join(where)}" if where else ""
    return late.rows(f"select {what} from ({sql}){only} {rest}", {"decisions": decisions} if decisions.exists else {})


def _filled(place: Place) -> int:
    """Return the first slice of the newest fill that was read: what came before it was looked at anew."""
    log = log_of(place.layout, place.layout.intake_of(place.generation))
    if not log.exists:
        return 0
    sql = f"select max(slice) as n from t where fill and bucket = 0 and slice < {int(place.first)}"
    return int(log.rows(sql)[0]["n"] or 0)


def _most(limit: int | None) -> str:
    return "" if limit is None else f" limit {int(limit)}"
