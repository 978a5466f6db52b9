"""Find the source rows that rows of a derived table follow from, with DuckDB."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.duck import connected
from draindown.config.derived import DerivedFlow
from draindown.config.history import History
from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.processor import Processor
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.window import Window
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier, literal, moment, rows, stream
from draindown.proof import folds, histories, pairs, ranking, sessions, windows
from draindown.proof.source_rows import SourceRows, late_rows
from draindown.sources.tables import late

ROW, COUNTS = "_row", "_counts"
"""Columns of `source_rows`: the place of the result's row that a source row is behind, and whether
it is in it.
"""
_MOST_LITERALS = 1000


def behind(flow: DerivedFlow, sources: Sequence[Table]) -> list[SourceRows]:
    """Return, by source table, which of its rows are behind a row of the result. Late rows of these
    don't count.
    """
    found = _of_kind(flow, sources)
    if flow.allowed_lateness is None:
        return found
    return [
        _in_time(one, flow, table.table) for one, table in zip(found, flow.source.read, strict=True)
    ]


def _in_time(asked: SourceRows, flow: DerivedFlow, table: str) -> SourceRows:
    time, accept = flow.derivation.timed_by(table), flow.allowed_lateness
    assert time is not None and accept is not None
    why = " or ".join(
        filter(None, [asked.otherwise, "it came later than `allowed_lateness` allows"])
    )
    return replace(
        asked,
        counts=f"{asked.counts} and not ({late_rows(table, time, accept, '_s.')})",
        otherwise=why,
    )


def _of_kind(flow: DerivedFlow, sources: Sequence[Table]) -> list[SourceRows]:
    types = [one.column_types for one in sources]
    match flow.derivation:
        case Window() as window:
            return [windows.behind(window)]
        case Session() as session:
            return [sessions.behind(session)]
        case Deduplicate() | Top() as part:
            return [ranking.behind(part, types[0])]
        case Join() | Lookup() as part:
            return pairs.behind(part, types)
        case History() as history:
            return [histories.behind(history)]
        case Processor() as processor:
            return [folds.behind(processor)]
        case Query() as per:
            return [
                SourceRows({key: table.column(key) for key in per.keys})
                for table in flow.source.read
            ]


def of_key(asked: SourceRows, key: Collection[str] | None) -> SourceRows:
    """Return which source rows are behind a row of the result of which only its key is known; of
    None, all of it.

    A row of the result that does not exist has no values of other columns, by which a source row
    could be behind it.
    """
    if key is None or set(asked.equal) <= set(key):
        return asked
    equal = {name: own for name, own in asked.equal.items() if name in key}
    condition = asked.condition if equal or asked.condition != "true" else "false"
    return replace(asked, equal=equal, condition=condition)


def source_rows(
    layout: FlowHome,
    flow: DerivedFlow,
    sources: Sequence[Table],
    results: pa.Table,
    decided: int,
    limit: int,
    key: Collection[str] | None = None,
) -> list[tuple[list[dict[str, Any]], dict[int, int]]]:
    """Return, by source table, the rows behind each row of `results`, and how many count, by the
    result's place in it.

    The rows have ROW and COUNTS besides their own columns; at most `limit` of each row of the
    result, those that count first. `decided`: the newest decision about late rows that counts.
    `key`: columns of `results` that are known, if not all are. Each source is read at the version
    that it was opened with.
    """
    placed = results.append_column(ROW, pa.array(range(results.num_rows), pa.int64()))
    with connected() as db:
        db.register("results", placed)
        db.register("applied", late.applied(layout, decided))
        return [
            _of_source(db, log, of_key(asked, key), results, limit)
            for log, asked in zip(sources, behind(flow, sources), strict=True)
        ]


def _of_source(
    db: duckdb.DuckDBPyConnection, log: Table, asked: SourceRows, results: pa.Table, limit: int
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    take_rows(db, log, asked, results)
    find_rows(db, asked)
    numbers = db.execute(
        f"select {ROW}, count(*) filter ({COUNTS}) from found group by all"
    ).fetchall()
    first = f"row_number() over (partition by {ROW} order by {COUNTS} desc, nth)"
    few = db.sql(
        f"select unnest(_s), {ROW}, {COUNTS} from found qualify {first} <= {limit} order by {ROW}, {COUNTS} desc, nth"
    )
    return rows(few.to_arrow_table()), {int(row): int(number) for row, number in numbers}


def take_rows(
    db: duckdb.DuckDBPyConnection, log: Table, asked: SourceRows, results: pa.Table
) -> None:
    """Make the table `source`: the rows of a version of the source that may be behind a result's
    row.
    """
    listed = ", ".join(map(identifier, log.column_types))
    db.register(
        "_rows",
        stream(log.table, f"select {listed} from t where {_narrowed(log, asked, rows(results))}"),
    )
    db.execute(
        f"create or replace temp table source as select * from _rows _s where {among(asked)}"
    )
    db.unregister("_rows")


def find_rows(db: duckdb.DuckDBPyConnection, asked: SourceRows) -> None:
    """Make the table `found`: the rows of `source` behind a row of `results`, each as a struct with
    its place there.
    """
    order = f" order by {asked.order}" if asked.order else ""
    db.execute(
        f"create or replace temp table found as "
        f"select _s, {ROW}, nth, coalesce({asked.counts}, false) as {COUNTS} from "
        f"(select _r, _s, _r.{ROW} as {ROW}, row_number() over (partition by _r.{ROW}{order}) as nth "
        f"from results _r join source _s on {' and '.join([*equalities(asked), asked.condition])})"
    )


def among(asked: SourceRows) -> str:
    """Return the condition that a row `_s` may be behind a row of `results`."""
    narrowed = [*equalities(asked), *([asked.condition] if asked.by_itself else [])]
    return f"exists (select 1 from results _r where {' and '.join(narrowed) or 'true'})"


def equalities(asked: SourceRows) -> list[str]:
    """Return the conditions that columns of `_s` and `_r` are equal."""
    same = "is not distinct from" if asked.null_is_value else "="
    return [
        f"_s.{identifier(own)} {same} _r.{identifier(name)}" for name, own in asked.equal.items()
    ]


def _narrowed(log: Table, asked: SourceRows, results: Sequence[Mapping[str, Any]]) -> str:
    """Return a condition in the SQL of Delta tables that holds for all rows asked for, so that few
    files are read.
    """
    tests = [_one_of(own, [row[name] for row in results]) for name, own in asked.equal.items()]
    if asked.span is not None:
        time, start, end = asked.span
        starts = [row[start] for row in results]
        ends = [row[end] for row in results]
        if str(log.column_types[time]) == "timestamp" and all(
            isinstance(one, datetime) for one in starts
        ):
            tests.append(f"{identifier(time)} >= {moment(min(starts))}")
            if all(isinstance(one, datetime) for one in ends):
                tests.append(f"{identifier(time)} <= {moment(max(ends))}")
    return " and ".join(test for test in tests if test) or "true"


def _one_of(column: str, values: Sequence[Any]) -> str:
    """Return a condition that a column has one of these values; empty where they have no plain
    literal.
    """
    distinct = set(values)
    texts = [literal_of(value) for value in distinct if value is not None]
    if None in texts or len(texts) > _MOST_LITERALS:
        return ""
    null = [f"{identifier(column)} is null"] if None in distinct else []
    listed = [f"{identifier(column)} in ({', '.join(map(str, texts))})"] if texts else []
    return f"({' or '.join([*null, *listed])})"


def literal_of(value: Any) -> str | None:
    """Return a value as a literal in the SQL of a query over Delta tables; None for a type without
    one.
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return literal(value)
        case datetime():
            return moment(value)
        case date():
            return f"cast({literal(value.isoformat())} as date)"
        case Decimal():
            return f"cast({literal(str(value))} as decimal(38, {max(-int(value.as_tuple().exponent), 0)}))"
        case _:
            return None
