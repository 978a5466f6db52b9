"""How late the rows of a table came: their arrival less their time, as `allowed_lateness` compares them. No
JVM.

Exact, not estimated: DuckDB reads both columns of every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import duckdb

from draindown.base.duck import connected
from draindown.base.errors import TerminalError
from draindown.config.table_source import SourceTable
from draindown.gate import published
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier, stream

ARRIVED_AT = "_arrived_at"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
LADDER = (
    *(0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 3 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY),
)
"""Delays, in seconds, of which the share of rows is told, up to the first that covers all."""
SHARES = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Shares of the rows of which the delay is told that covers them."""
_TIMES = ("timestamp", "timestamp_ntz", "date")


@dataclass(frozen=True)
class Asked:
    """The rows that are asked about. `layout`: of the flow that writes them; `time`: the column
    with their time.
    """

    layout: FlowHome
    time: str

    @classmethod
    def of_source(cls, reader: FlowHome, table: SourceTable, time: str) -> Asked:
        """Return the rows of a table that a flow reads. `reader`: the layout of that flow."""
        pipeline = table.pipeline or reader.pipeline
        return cls(
            replace(reader, pipeline=pipeline, flow=table.written_by, table_name=table.table), time
        )


@dataclass(frozen=True)
class Day:
    """Rows whose time lies on a UTC day: their number, and seconds of lateness: median, 95th and
    99th centile, most.
    """

    day: date
    rows: int
    median: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Cover:
    """A delay in seconds, and what it covers: the rows that came no later after their time.
    `share`: of 0 to 1.
    """

    delay: float
    rows: int
    share: float


@dataclass(frozen=True)
class Lateness:
    """The lateness of a table's rows, in seconds; negative for rows that arrived before their time.

    `version`: of the table. `rows`: those with a time; `untimed`: those without, which are in no
    window. `covers`: of some delays. `quantiles`: the least delays that cover certain shares.
    `percentiles`: those that cover 1%, 2% and so on up to all. `days`: by day of the rows' time.
    """

    table: str
    version: int
    time: str
    rows: int
    untimed: int
    covers: Sequence[Cover]
    quantiles: Sequence[Cover]
    percentiles: Sequence[float]
    days: Sequence[Day]


def lateness(asked: Asked, delays: Sequence[int] = ()) -> Lateness:
    """Return the lateness of the rows of the published version. `delays`: seconds that are told
    besides LADDER's.

    Raises TerminalError `no-arrival` if the table has no such time, or its rows no arrival: those
    of derived tables.
    """
    with _rows(asked) as (db, log):
        total, untimed = _row(db, "select count(late), count(*) - count(late) from rows")
        return Lateness(
            table=asked.layout.table_name,
            version=log.version,
            time=asked.time,
            rows=total,
            untimed=untimed,
            covers=list(_covers(db, sorted({*LADDER, *delays}), total, delays)),
            quantiles=[_cover(db, delay, total) for delay in _delays(db, SHARES)] if total else [],
            percentiles=_delays(db, [at / 100 for at in range(1, 101)]) if total else [],
            days=_days(db),
        )


@contextmanager
def _rows(asked: Asked) -> Iterator[tuple[duckdb.DuckDBPyConnection, Table]]:
    """Yield a connection with the table `rows`: _us, arrived and late, in microseconds; NULL
    without a time.
    """
    log = _read(asked)
    time, arrived = identifier(asked.time), identifier(ARRIVED_AT)
    with connected() as db:
        db.register("_read", stream(log.table, f"select {time}, {arrived} from t"))
        db.execute(
            f"create temp table rows as select epoch_us({time}) as _us, epoch_us({arrived}) as arrived, "
            f"epoch_us({arrived}) - epoch_us({time}) as late from _read"
        )
        db.unregister("_read")
        yield db, log


def _read(asked: Asked) -> Table:
    log, pointer = asked.layout.tables.target, published.published(asked.layout)
    if not log.exists:
        raise _no_arrival(
            asked, "the table is not there yet", f"draindown run {asked.layout.pipeline}"
        )
    if pointer is not None and pointer.table_id == log.id:
        log = log.at(pointer.version)
    types = {name: str(kind) for name, kind in log.column_types.items()}
    if ARRIVED_AT not in types:
        asks = "draindown late list PIPELINE/FLOW --summary   # of the flow that reads its records"
        raise _no_arrival(asked, "its rows have no arrival: it is derived", asks)
    if types.get(asked.time) not in _TIMES:
        has = ", ".join(
            name for name, kind in types.items() if kind in _TIMES and not name.startswith("_")
        )
        found = f"{asked.time} is no time of it; times are {has or 'none'}"
        raise _no_arrival(
            asked,
            found,
            f"draindown validate {asked.layout.pipeline}",
        )
    return log


def _covers(
    db: duckdb.DuckDBPyConnection, delays: Sequence[int], total: int, asked: Sequence[int]
) -> Iterator[Cover]:
    """Yield what delays cover, up to the first that covers all, and those that were asked for."""
    whole = False
    for delay in delays:
        if not whole or delay in asked:
            found = _cover(db, delay, total)
            whole = whole or found.rows == total
            yield found


def _cover(db: duckdb.DuckDBPyConnection, delay: float, total: int) -> Cover:
    rows = int(_row(db, f"select count(*) from rows where late <= {round(delay * 1_000_000)}")[0])
    return Cover(delay, rows, rows / total if total else 0.0)


def _delays(db: duckdb.DuckDBPyConnection, shares: Sequence[float]) -> list[float]:
    """Return, by share of the rows, the least delay that covers it."""
    found = _row(db, f"select quantile_disc(late, {list(shares)}) from rows")[0]
    return [float(value) / 1_000_000 for value in found]


def _days(db: duckdb.DuckDBPyConnection) -> list[Day]:
    quantiles = ", ".join(f"quantile_disc(late, {share})" for share in (0.5, 0.95, 0.99))
    sql = f"select make_timestamp(_us)::date as day, count(*), {quantiles}, max(late) from rows where _us is not null"
    rows = db.execute(f"{sql} group by day order by day").fetchall()
    return [
        Day(day, number, *(value / 1_000_000 for value in values)) for day, number, *values in rows
    ]


def _row(db: duckdb.DuckDBPyConnection, sql: str) -> Sequence[Any]:
    found: Sequence[Any] | None = db.execute(sql).fetchone()
    assert found is not None
    return found


def _no_arrival(asked: Asked, found: str, next_: str) -> TerminalError:
    return TerminalError(
        "no-arrival",
        tried=f"compare time and arrival of the rows of table {asked.layout.table_name}",
        found=found,
        changed="nothing",
        next=next_,
    )


def as_dict(found: Lateness) -> Mapping[str, Any]:
    """Return the lateness as a JSON-ready dictionary."""
    flat = {name: getattr(found, name) for name in ("table", "version", "time", "rows", "untimed")}
    covers = {name: [vars(one) for one in getattr(found, name)] for name in ("covers", "quantiles")}
    return (
        flat
        | covers
        | {
            "percentiles": list(found.percentiles),
            "days": [vars(one) | {"day": one.day.isoformat()} for one in found.days],
        }
    )
