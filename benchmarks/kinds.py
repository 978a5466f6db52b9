"""Visits of users and orders after them, in tables of days, and the oracle of what is derived from
both.

Visits are numbered in order of time, as many on every day, four after each other of one user. Every
third has an order, up to 45 minutes later. Of those that come after the first fill, three in a
hundred of either are late by up to five days, evenly: by a watermark of two days a stream drops
some of them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from benchmarks.oracle import Verdict

DAILY = 33_333
"""Visits of one day: a million in thirty days."""
ORDERED = 3
"""Every so many visits one has an order."""
WAITS_DAYS = 2
"""The watermark of the streams by hand."""
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_USERS, _AMOUNTS, _IN_A_ROW, _LONGEST = 50_000, 1_000, 4, 45 * 60
_LATE_DAYS, _LATE_PERCENT, _DAY, _WITHIN = 5, 3, 86_400, 30 * 60
_MEMORY = "4GB"


@dataclass(frozen=True)
class Found:
    """What the oracle says of a table. `lost`: visits or pairs that it lacks; `waiting`: those that
    may yet come.
    """

    verdict: Verdict
    lost: int = 0
    waiting: int = 0


def _columns(visit: str, late_from: int, after: str, salt: int) -> str:
    """Columns that visits and orders share. `visit`: its number; `after`: seconds from it to the
    row's own time.
    """
    drawn, of_user = (
        f"pmod(xxhash64({visit}, {salt}), 1000000007)",
        f"pmod(xxhash64({visit} div {_IN_A_ROW}), 1000000007)",
    )
    late = f"if({visit} >= {late_from} and {drawn} % 100 < {_LATE_PERCENT}, {drawn} div 100 % {_LATE_DAYS * _DAY}, 0)"
    time = f"timestamp_seconds({int(_FIRST.timestamp())} + {visit} * {_DAY} div {DAILY} + {after} - {late})"
    return (
        f"{time} as event_time, to_date({time}) as day, concat('u-', {of_user} % {_USERS}) as user, "
        f"cast({drawn} div 13 % {_AMOUNTS} as int) as amount, named_struct('input', 'seed', 'position', id) as _origin"
    )


def visits(late_from: int) -> str:
    """The visit of every `id` as a select list of Spark; those from number `late_from` on may be
    late.
    """
    return f"id as visit_id, {_columns('id', late_from, '0', 1)}"


def orders(late_from: int) -> str:
    """The order of every `id`, after visit `id` * ORDERED, as a select list. `late_from`: as for
    `visits`.
    """
    visit = f"(id * {ORDERED})"
    return f"id as order_id, {_columns(visit, late_from, f'pmod(xxhash64({visit}, 3), {_LONGEST})', 2)}"


def land_first(landing: Path, rows: int = 10) -> None:
    """Write a file of visits and one of orders of the day before the first: what is drained makes
    the tables.
    """
    for table, key in (("visits", "visit_id"), ("orders", "order_id")):
        (landing / table).mkdir(parents=True, exist_ok=True)
        lines = []
        for at in range(rows):
            when = _FIRST - timedelta(minutes=100 * (at + 1))
            row = {
                key: -1 - at,
                "event_time": when.isoformat(),
                "day": str(when.date()),
                "user": f"first-{at}",
            }
            lines.append(json.dumps(row | {"amount": at}) + "\n")
        (landing / table / "first.json.gz").write_bytes(
            gzip.compress("".join(lines).encode(), mtime=0)
        )


_SESSIONS = f"""
with timed as (
    select *, coalesce(date_diff('second', lag(event_time) over (partition by "user" order by event_time), event_time)
                       > {_WITHIN}, true) as begins
    from visits
), numbered as (select *, count_if(begins) over (partition by "user" order by event_time) as session from timed)
select "user", min(event_time) as session_start, max(event_time) as last, count(*)::bigint as visits,
       sum(amount)::bigint as amount
from numbered group by "user", session
"""
_PAIRS = f"""
select visit_id, order_id, v.amount, o.amount as order_amount
from visits v join orders o on v."user" = o."user"
    and o.event_time between v.event_time and v.event_time + interval {_WITHIN} second
"""
_NEWEST = """
select "user", arg_max(visit_id, event_time) as visit_id, max(event_time) as event_time from visits group by "user"
"""
_QUERIES: Mapping[str, tuple[str, str, str]] = {
    "sessions": (_SESSIONS, '"user", session_start', "visits, amount"),
    "pairs": (_PAIRS, "visit_id, order_id", "amount, order_amount"),
    "newest": (_NEWEST, '"user"', "event_time"),
}
"""The query of each kind, its keys, and what else is compared."""
_LOST: Mapping[str, str] = {
    "sessions": "coalesce(sum(e.visits), 0) - coalesce(sum(f.visits), 0)",
    "pairs": "count_if(f.amount is null)",
    "newest": "0",
}


def judge(kind: str, table: Path, tables: Path) -> Found:
    """Compare a table of `kind` with its query over the visits and orders in `tables`."""
    query, keys, compared = _QUERIES[kind]
    with TemporaryDirectory() as scratch, duckdb.connect(f"{scratch}/oracle.db") as con:
        con.execute(
            f"set timezone = 'UTC'; set memory_limit = '{_MEMORY}'; set enable_progress_bar = false"
        )
        _load(con, "visits", tables / "visits", 'visit_id, event_time, "user", amount')
        _load(con, "orders", tables / "orders", 'order_id, event_time, "user", amount')
        _load(con, "found", table, f"{keys}, {compared}")
        con.execute(f"create table expected as {query}")
        names = compared.split(", ")
        differs = " or ".join(f"e.{name} is distinct from f.{name}" for name in names)
        sql = (
            f"select count_if({differs}), {_LOST[kind]} from {{}} e full join {{}} f using ({keys})"
        )
        wrong, missing = map(int, con.execute(sql.format("expected", "found")).fetchall()[0])
        waiting = 0
        # those that end behind the watermark are not written yet
        if kind == "sessions" and missing:
            newest = f"(select max(event_time) from visits) - interval {WAITS_DAYS * _DAY + _WITHIN} second"
            missed = "coalesce(sum(e.visits - coalesce(f.visits, 0)), 0)"
            recent = f"select {missed} from expected e left join found f using ({keys}) where e.last >= {newest}"
            waiting = min(missing, int(con.execute(recent).fetchall()[0][0]))
    text = (
        "exact"
        if not wrong
        else f"{wrong:,} wrong rows, {missing - waiting:,} lost, {waiting:,} not there yet"
    )
    return Found(Verdict(wrong, 0, text), missing - waiting, waiting)


def _load(con: duckdb.DuckDBPyConnection, name: str, path: Path, columns: str) -> None:
    from deltalake import DeltaTable, QueryBuilder

    con.register(
        "arriving",
        QueryBuilder().register("t", DeltaTable(str(path))).execute(f"select {columns} from t"),
    )
    con.execute(f"create table {name} as select * from arriving")
    con.unregister("arriving")


Columns = Callable[[int], str]
SOURCES: Mapping[str, tuple[Columns, int]] = {"visits": (visits, 1), "orders": (orders, ORDERED)}
"""Of each source its columns, and how many visits there are for one of its rows."""
