"""Refused rows and people's decisions about them. Refused rows are never edited: a decision is a
row of its own.

open = refused - released - discarded
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.flow import withdrawals
from draindown.lake import delta, directories
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, begins, literal, rows
from draindown.lake.transactions import WriterId

State = Literal["open", "released", "discarded"]
Action = Literal["released", "discarded", "reopened"]
COLUMNS = (
    *(
        "quarantine_id",
        "origin",
        "arrived_at",
        "raw",
        "raw_bytes",
        "raw_length",
        "reason",
        "field",
        "detail",
    ),
    *("first_seen", "generation", "batch", "kind", "run_id", "quarantined_at", "envelope"),
)
"""Columns of the quarantine table. `origin`: input and position; of a withdrawn row the table and
its version.
"""
UNIT, POSITION = "origin['input']", "origin['position']"
"""The fields of `origin` in the SQL of a query."""
_OLDEST_FIRST = f"order by quarantined_at, {UNIT}, {POSITION}, quarantine_id"
_ALL_OPEN = "select *, 'open' as state from t"
_WITH_STATE = """
    select t.*, case when d.action is null or d.action = 'reopened' then 'open' else d.action end as state
    from t left join ({decisions}) d on t.quarantine_id = d.quarantine_id
"""
_MANY = (
    5000  # ids in one list of a query; a list of 100,000 overflows the stack of the query planner
)
RESOLUTIONS = pa.schema(
    [
        pa.field("quarantine_id", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("run_id", pa.string()),
    ]
)
"""Columns of the resolutions table."""


@dataclass(frozen=True)
class Filter:
    """Selects quarantined rows. None does not restrict. `reason` may have its field, `type:n`; `ids`
    may be prefixes.
    """

    reason: str | None = None
    ids: tuple[str, ...] | None = None
    run_id: str | None = None
    state: State | None = "open"

    @property
    def restricts(self) -> bool:
        """Whether the filter restricts by anything besides the state."""
        return any((self.reason, self.ids, self.run_id))


@dataclass(frozen=True)
class Counts:
    """Numbers of rows: refused, and by decision. `by_reason` counts the open rows."""

    refused: int = 0
    released: int = 0
    discarded: int = 0
    by_reason: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Rows that nobody has decided about."""
        return self.refused - self.released - self.discarded

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as a flat, JSON-ready dict."""
        sums = {
            "quarantined": self.refused,
            "released": self.released,
            "discarded": self.discarded,
            "open": self.open,
        }
        return sums | {"by_reason": dict(self.by_reason)}


def place_of(row: Mapping[str, Any]) -> str:
    """Return where a quarantined row came from, in the `file:line` form that editors open."""
    return f"{row['origin']['input']}:{row['origin']['position']}"


def places(layout: FlowHome) -> list[dict[str, Any]]:
    """Return `quarantine_id`, `input`, `position` and the refusing batch's `kind` of every row that
    was ever refused.
    """
    sql = f"select quarantine_id, {UNIT} as input, {POSITION} as position, kind from t"
    return layout.tables.quarantine.rows(sql)


def take_over(layout: FlowHome, staged: FlowHome, *, app: tuple[WriterId, int]) -> None:
    """Append the rows that a staged generation refused and that were never refused before. One
    commit, idempotent.
    """
    if not staged.tables.quarantine.exists:
        return
    held = (
        " left anti join held on t.quarantine_id = held.quarantine_id"
        * layout.tables.quarantine.exists
    )
    # these may be the first quarantined rows of the flow
    directories.make(layout.tables.quarantine.path, private=True)
    delta.append_query(
        layout.tables.quarantine,
        staged.tables.quarantine,
        f"select t.* from t{held}",
        app=app,
    )


def counts(layout: FlowHome) -> Counts:
    """Return the flow's refused, released, discarded and open rows. The query returns one row per
    reason and state.
    """
    sums = rows(
        query(
            layout, "reason, state, count(*) as rows", Filter(state=None), "group by reason, state"
        )
    )
    total = dict.fromkeys(("open", "released", "discarded"), 0)
    for row in sums:
        total[row["state"]] += row["rows"]
    by_reason = {row["reason"]: row["rows"] for row in sums if row["state"] == "open"}
    ranked = dict(sorted(by_reason.items(), key=lambda item: (-item[1], item[0])))
    return Counts(sum(total.values()), total["released"], total["discarded"], ranked)


def listed(layout: FlowHome, which: Filter, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the first `limit` rows that `which` selects, oldest first, each with its `state`.
    Encode binary as base64.

    The limit is part of the query, so no other rows are loaded.
    """
    first = _OLDEST_FIRST if limit is None else f"{_OLDEST_FIRST} limit {int(limit)}"
    few = (
        _these(query(layout, f"quarantine_id, {UNIT} as input", which, first))
        if limit is not None and limit <= _MANY
        else ""
    )
    found = query(layout, ", ".join((*COLUMNS, "state")), which, first, few)
    return [row | {"raw_bytes": _base64(row["raw_bytes"])} for row in rows(found)]


def _these(chosen: pa.Table) -> str:
    """Return SQL that is true for the chosen rows, so that a query for their raw text reads little
    else.

    Random ids alone allow no file or page skipping. The bounds of the unit do.
    """
    if not chosen.num_rows:
        return "false"
    units = sorted(chosen["input"].to_pylist())
    between = f"{UNIT} between {literal(units[0])} and {literal(units[-1])}"
    return f"{between} and {_one_of(chosen['quarantine_id'].to_pylist())}"


def identified(layout: FlowHome, which: Filter) -> list[str]:
    """Return the ids of the open rows that `which` selects. Raises TerminalError
    `unknown-quarantine-id`.
    """
    if which.ids and (
        which.reason or which.run_id
    ):  # an id of a row with another reason is not an error
        of_others = set(identified(layout, replace(which, ids=None)))
        return [known for known in identified(layout, Filter(ids=which.ids)) if known in of_others]
    # nor is one of a row that is already decided
    states = replace(which, state=None) if which.ids else which
    found = query(layout, "quarantine_id, state", states, "order by quarantine_id")
    ids = found["quarantine_id"].to_pylist()
    for wanted in which.ids or ():
        if (matching := sum(known.startswith(wanted) for known in ids)) != 1:
            raise _unknown(layout, wanted, matching)
    return [
        known
        for known, state in zip(ids, found["state"].to_pylist(), strict=True)
        if state == "open"
    ]


def released_from(layout: FlowHome, *, without_kind: str) -> list[str]:
    """Return the ids of currently released rows that a batch of another kind than `without_kind`
    refused.
    """
    other = f"kind <> {literal(without_kind)}"
    found = query(
        layout, "quarantine_id", Filter(state="released"), "order by quarantine_id", other
    )
    return list(found["quarantine_id"].to_pylist())


def whole(layout: FlowHome, ids: Iterable[str]) -> list[dict[str, Any]]:
    """Return the open ones of these rows for a replay: quarantine_id, origin, arrived_at,
    first_seen, kind, `value`.

    `value` holds the bytes; None if the quarantine does not hold the whole record: it was too long
    or could not be stored.
    """
    # Ids chosen before an interrupted replay was settled may include rows that it applied. Do not
    # apply them twice.
    wanted = list(dict.fromkeys(ids))
    names = (
        "quarantine_id, origin, arrived_at, first_seen, kind, raw, raw_bytes, raw_length, envelope"
    )
    parts = (wanted[at : at + _MANY] for at in range(0, len(wanted), _MANY))
    found = (query(layout, names, Filter(), _OLDEST_FIRST, _one_of(part)) for part in parts)
    return [row | {"value": _record(row)} for part in found for row in rows(part)]


def _record(row: Mapping[str, Any]) -> bytes | None:
    held: bytes | None = row["raw_bytes"]
    if held is None and row["raw"] is not None:
        held = row["raw"].encode()
    return held if held is not None and len(held) == row["raw_length"] else None


def discard(layout: FlowHome, ids: Sequence[str], *, by: str, note: str = "") -> int:
    """Record that the open rows `ids` are discarded. Return how many. The quarantine keeps the
    rows.
    """
    return resolve(layout, ids, "discarded", by=by, note=note)


def release(layout: FlowHome, ids: Sequence[str], *, by: str, run_id: str) -> int:
    """Record that a run released the open rows `ids`. Return how many."""
    return resolve(layout, ids, "released", by=by, run_id=run_id)


def resolve(
    layout: FlowHome,
    ids: Sequence[str],
    action: Action,
    *,
    by: str,
    note: str = "",
    run_id: str = "",
) -> int:
    """Record a decision about rows and return how many were recorded. Idempotent: rows already
    decided are skipped.
    """
    decided = _decided(layout, ids)
    return _decide(
        layout,
        [known for known in dict.fromkeys(ids) if known not in decided],
        action,
        by,
        note,
        run_id,
    )


def reopen(layout: FlowHome, ids: Sequence[str], *, by: str, note: str) -> int:
    """Reopen rows whose decisions no longer apply. Idempotent. Return how many."""
    decided = _decided(layout, ids)
    return _decide(
        layout,
        [known for known in dict.fromkeys(ids) if known in decided],
        "reopened",
        by,
        note,
        "",
    )


def release_again(layout: FlowHome, *, by: str, note: str) -> int:
    """Release again the rows reopened with this note, under the runs that released them before.
    Return how many.
    """
    reopened = f"action = 'reopened' and note = {literal(note)}"
    found = layout.tables.resolutions.rows(
        f"""select quarantine_id, last_value(run_id order by "at") filter (where action = 'released') as run_id from t
        group by quarantine_id
        having bool_or({reopened}) and bool_or(action = 'released') and last_value(action order by "at") = 'reopened'
        order by quarantine_id"""
    )
    for run_id in sorted({row["run_id"] or "" for row in found}):
        ids = [row["quarantine_id"] for row in found if (row["run_id"] or "") == run_id]
        _decide(layout, ids, "released", by, "the reset was undone", run_id)
    return len(found)


def read_again(layout: FlowHome, ids: Sequence[str], *, by: str, run_id: str) -> int:
    """Release rows, including discarded ones, that passed when a batch read their file again.
    Idempotent.
    """
    already = released(layout, ids)
    fresh = [known for known in dict.fromkeys(ids) if known not in already]
    # without a run id, since rows that a replay of quarantined rows released are counted by run
    return _decide(
        layout,
        fresh,
        "released",
        by,
        f"let through by run {run_id}, which read their files again",
        "",
    )


def let_through(layout: FlowHome, ids: Sequence[str], *, by: str, note: str) -> int:
    """Release rows that passed in a rebuild, whatever was decided about them before, replays
    included. Idempotent.
    """
    already = released(layout, ids)
    return _decide(
        layout,
        [one for one in dict.fromkeys(ids) if already.get(one) != ""],
        "released",
        by,
        note,
        "",
    )


def released(layout: FlowHome, ids: Sequence[str] | None = None) -> dict[str, str]:
    """Return those of `ids` (None: all rows) that are currently released, with the run that
    replayed each.

    The run is "" if the row's file was read again.
    """
    return {
        known: run_id
        for known, (action, run_id) in _newest(layout, ids).items()
        if action == "released"
    }


def _decide(
    layout: FlowHome, ids: Sequence[str], action: Action, by: str, note: str, run_id: str
) -> int:
    if ids:
        same: dict[str, Any] = {
            "action": action,
            "at": _after_all(layout),
            "by": by,
            "note": note,
            "run_id": run_id,
        }
        columns = {"quarantine_id": ids} | {
            name: [value] * len(ids) for name, value in same.items()
        }
        delta.append(layout.tables.resolutions, pa.Table.from_pydict(columns, RESOLUTIONS))
    return len(ids)


def _after_all(layout: FlowHome) -> datetime:
    """Return now, or a microsecond after the newest decision if that is later: the order of
    decisions must hold.
    """
    found = layout.tables.resolutions.rows('select max("at") as newest from t')
    newest = next((row["newest"] for row in found), None)
    return now() if newest is None else max(now(), newest + timedelta(microseconds=1))


def _decided(layout: FlowHome, ids: Sequence[str]) -> set[str]:
    return {known for known, (action, _) in _newest(layout, ids).items() if action != "reopened"}


def _newest(layout: FlowHome, ids: Sequence[str] | None) -> dict[str, tuple[str, str]]:
    """Return action and run of the newest decision about each of `ids`; None: about every row that
    has a decision.
    """
    if ids is not None and not ids:
        return {}
    where = ""
    # a longer list would not fit a query: then all decisions are read, and filtered here
    if ids is not None and len(ids) <= _MANY:
        where = _one_of(ids)
    rows = layout.tables.resolutions.rows(_decisions("t", where))
    wanted = None if ids is None else frozenset(ids)
    return {
        row["quarantine_id"]: (row["action"], row["run_id"] or "")
        for row in rows
        if wanted is None or row["quarantine_id"] in wanted
    }


def _decisions(table: str, where: str = "") -> str:
    """Return SQL for the newest decision about each row, from the table of that name. `_after_all`
    rules out ties.
    """
    return (
        'select quarantine_id, last_value(action order by "at") as action, last_value(run_id order by "at") as run_id '
        f"from {table}{f' where {where}' if where else ''} group by quarantine_id"
    )


def query(
    layout: FlowHome,
    select: str,
    which: Filter,
    rest: str,
    restricts: str = "",
    *,
    join: str = "",
    beside: Mapping[str, Table] | None = None,
) -> pa.Table:
    """Run a query over the quarantined rows that match `which` and, if given, `restricts` (SQL).

    `join`: SQL that joins other rows, of the tables `beside`. Their columns have other names than
    the quarantine's.

    The rows have the columns of the quarantine and `state`. Filter, order, limit and sums run
    inside the query. It reads only the columns that `select` names.
    """
    refused, resolutions = layout.tables.quarantine, layout.tables.resolutions
    if not refused.exists:
        return pa.table({name: [] for name in (*COLUMNS, "state", "rows")})
    decided = {"resolutions": resolutions} if resolutions.exists else {}
    source = _WITH_STATE.format(decisions=_decisions("resolutions")) if decided else _ALL_OPEN
    tests = [test for test in (restricts, *_tests(layout, which)) if test]
    where = f" where {' and '.join(tests)}" if tests else ""
    return refused.query(
        f"select {select} from ({source}){join}{where} {rest}", decided | dict(beside or {})
    )


def _tests(layout: FlowHome, which: Filter) -> Iterator[str]:
    """Yield the SQL conditions of `which`, to be joined by AND."""
    if which.reason:
        yield f"{literal(which.reason)} in (reason, concat(reason, ':', field))"
    if which.run_id:
        yield f"run_id = {literal(which.run_id)}"
    if which.ids:
        yield begins("quarantine_id", which.ids)
    if which.state:
        yield f"state = {literal(which.state)}"
    # rows of an interrupted withdrawal never left the target
    for name in withdrawals.unfinished(layout):
        yield f"not ({withdrawals.rows_of(name)})"


def _one_of(ids: Iterable[str]) -> str:
    return f"quarantine_id in ({', '.join(map(literal, ids))})"


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _unknown(layout: FlowHome, wanted: str, matching: int) -> TerminalError:
    met = f"{matching} quarantined rows begin with it" if matching else "no quarantined row has it"
    return TerminalError(
        "unknown-quarantine-id",
        tried=f"find quarantined row {wanted!r} of flow {layout.flow}",
        found=met,
        next=f"draindown quarantine list {layout.pipeline}/{layout.flow}",
    )
