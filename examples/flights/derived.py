"""The correct derived tables of the flights, computed by DuckDB from the oracle's own table of flights.

It shares no SQL with the engine: the queries here say in other words what dags/pipelines/flights.yaml and
examples/flights/beside.yaml declare.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from draindown.lake.home import FlowHome

_QUERIES = {
    "departures_hourly": """
        select sched_dep // 3600 * 3600 as window_start, origin, (sched_dep // 3600 + 1) * 3600 as window_end,
               count(*) as flights, count(distinct carrier) as airlines, sum(dep_delay) as delay,
               max(dep_delay) as worst
        from expected where sched_dep is not null group by all
    """,
    "carrier_month": """
        select flight_month, carrier, count(*) as flights, count(*) filter (status = 'cancelled') as cancelled,
               avg(arr_delay) as mean_delay,
               first(flight_id order by dep_delay desc nulls last, flight_id desc) as worst
        from expected group by all
    """,
    "aircraft_days": """
        with leg as (
            select *, coalesce(sched_dep - lag(sched_dep) over (partition by tailnum order by sched_dep) > 28800, true)
                          as begins
            from expected where sched_dep is not null
        ),
        dated as (select *, count_if(begins) over (partition by tailnum order by sched_dep) as day from leg)
        select tailnum, min(sched_dep) as session_start, max(sched_dep) + 28800 as session_end,
               max(sched_dep) - min(sched_dep) as session_seconds, count(*) as flights,
               count(distinct origin) as airports, sum(dep_delay) as delay
        from dated group by tailnum, day
    """,
    "worst_delays": """
        select origin, place as position, flight_id, carrier, tailnum, dep_delay
        from (select * exclude (position), row_number() over (partition by origin order by dep_delay desc nulls last,
                  arr_delay nulls last, carrier nulls last, dest nulls last, flight_id) as place from expected)
        where place <= 10
    """,
}
"""The rows of each table over `expected`, whose times are UTC seconds."""
TABLES = {
    "departures_hourly": ("window_start", "origin"),
    "carrier_month": ("flight_month", "carrier"),
}
"""The derived tables of the demo's pipeline, with their keys."""
BESIDE = {"aircraft_days": ("tailnum", "session_start"), "worst_delays": ("origin", "position")}
"""Those of examples/flights/beside.yaml over flights alone."""
_KEYS = TABLES | BESIDE
_TIMES = ("window_start", "window_end", "session_start", "session_end")
_DOUBLES = ("mean_delay",)
_NEAR = 1e-9


@dataclass(frozen=True)
class DerivedComparison:
    """How a derived table differs from the oracle's: keys that it lacks, rows too many, keys with other values."""

    table: str
    expected: int
    found: int
    missing: int
    extra: int
    different: int

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        return (
            f"oracle: {'exact' if self.ok else 'WRONG'}: {self.found:,} rows of {self.expected:,} expected in "
            f"{self.table} ({self.missing} missing, {self.extra} extra, {self.different} different)"
        )


def compare_derived(con: duckdb.DuckDBPyConnection, lake: Path, table: str) -> DerivedComparison:
    """Compare a derived table with the query over `expected`, which `oracle.expect` made in `con`."""
    con.execute(f"create or replace temp table wanted as {_QUERIES[table]}")
    names = [row[0] for row in con.execute("describe wanted").fetchall()]
    _load(con, FlowHome(str(lake), "flights", table, table).tables.target.path, names)
    same = " and ".join(f"w.{key} is not distinct from h.{key}" for key in _KEYS[table])
    other = " or ".join(_differs(name) for name in names if name not in _KEYS[table])
    keys, rows = f"select distinct {', '.join(_KEYS[table])} from held", "select count(*) from"
    return DerivedComparison(
        table=table,
        expected=_number(con, f"{rows} wanted"),
        found=_number(con, f"{rows} held"),
        missing=_number(con, f"{rows} wanted w anti join held h on {same}"),
        extra=_number(con, f"{rows} held h anti join wanted w on {same}")
        + _number(con, f"select (select count(*) from held) - (select count(*) from ({keys}))"),
        different=_number(con, f"{rows} wanted w join held h on {same} where {other}"),
    )


def _differs(name: str) -> str:
    if name in _DOUBLES:
        near = f"abs(w.{name} - h.{name}) <= {_NEAR} * greatest(abs(w.{name}), abs(h.{name}))"
        return f"(w.{name} is distinct from h.{name} and not coalesce({near}, false))"
    return f"w.{name} is distinct from h.{name}"


def _load(con: duckdb.DuckDBPyConnection, path: str, names: list[str]) -> None:
    """Make table `held` of a Delta table's columns, times as UTC seconds; empty if there is no such table."""
    from deltalake import DeltaTable, QueryBuilder

    if not (Path(path) / "_delta_log").exists():
        con.execute("create or replace temp table held as from wanted limit 0")
        return
    rows = (
        QueryBuilder().register("t", DeltaTable(path)).execute(f"select {', '.join(names)} from t")
    )
    con.register("arriving", rows)
    picked = [f"epoch({name})::bigint as {name}" if name in _TIMES else name for name in names]
    con.execute(f"create or replace temp table held as select {', '.join(picked)} from arriving")
    con.unregister("arriving")


def _number(con: duckdb.DuckDBPyConnection, sql: str) -> int:
    return int(con.execute(sql).fetchall()[0][0])
