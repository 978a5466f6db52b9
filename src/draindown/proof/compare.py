"""Prove a derived table with DuckDB: recompute it from its source at a version, and compare key by
key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.clock import now
from draindown.base.duck import connected
from draindown.base.errors import TerminalError
from draindown.config.derived import TOLERANCE, DerivedFlow
from draindown.config.history import History
from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.names import is_own
from draindown.config.pairing import Pairing
from draindown.config.processor import Processor
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.window import Window
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier, stream
from draindown.processors.fold import Failed
from draindown.proof import folds, histories, pairs, ranking, sessions, windows
from draindown.proof.certificate import SHOWN, Certificate, Falsehood, What, snapshot
from draindown.proof.digest import digest
from draindown.proof.source_rows import late_rows
from draindown.sources.tables import late

_PARTS = 1_000_000


def statement(flow: DerivedFlow, sources: Sequence[Table]) -> str | None:
    """Return the flow's query in DuckDB's SQL; None if only Spark is certain to compute what Spark
    computed.
    """
    types = [one.column_types for one in sources]
    match flow.derivation:
        case Window() as window:
            return windows.query(window, types[0])
        case Session() as session:
            return sessions.query(session, types[0])
        case Deduplicate() | Top() as part:
            return ranking.query(part, types[0])
        case Join() | Lookup() as part:
            return pairs.query(part, types)
        case History() as history:
            return histories.query(history, types[0])
        case Query() | Processor():
            return None


def is_provable(flow: DerivedFlow, sources: Sequence[Table]) -> bool:
    """Return whether `audit` can ask it: there is a statement, or a fold whose order is certain
    to be Spark's.
    """
    if isinstance(flow.derivation, Processor):
        return folds.is_provable(sources[0].column_types)
    return statement(flow, sources) is not None


def prove(
    layout: FlowHome,
    flow: DerivedFlow,
    sources: Sequence[Table],
    table: Table,
    share: float = 1.0,
    decided: int = 0,
) -> Certificate:
    """Recompute the flow's table from `sources` and compare it with `table`: each at the version it
    was opened with.

    `share`: the share of the keys to compare, 0 to 1. `decided`: the newest decision about late
    rows that counts. Requires that it `is_provable`. Raises TerminalError `group-not-computed`
    where a processor can't fold a key.
    """
    begun, engine = time.monotonic(), f"duckdb {duckdb.__version__}"
    with connected() as db:
        for name, one in zip(pairs.SOURCES, sources, strict=False):
            _load(db, name, one, _used(flow, one))
        _leave_out_late(db, layout, flow, decided)
        _load(db, "held", table, [name for name in table.column_types if not is_own(name)])
        keys = flow.target.row_keys
        if isinstance(flow.derivation, Processor):
            engine = folds.ENGINE
            with _named(layout):
                folds.expect(db, flow.derivation, sources[0], table)
        else:
            db.execute(f"create table expected as {statement(flow, sources)}")
        _complete(db)
        _times_as_numbers(db, flow.times)
        _keep(db, keys, share)
        expected, found = (
            _number(db, f"select count(*) from {name}") for name in ("expected", "held")
        )
        differing, falsehoods = _differences(db, keys)
        return Certificate(
            pipeline=layout.pipeline,
            flow=layout.flow,
            kind=flow.kind,
            engine=engine,
            sources=[snapshot(one) for one in sources],
            table=snapshot(table),
            share=share,
            expected=expected,
            found=found,
            digest=digest(table),
            differing=differing,
            falsehoods=falsehoods,
            at=now(),
            seconds=round(time.monotonic() - begun, 3),
        )


@contextmanager
def _named(layout: FlowHome) -> Iterator[None]:
    """Replace the error of a fold that can't go on by TerminalError `group-not-computed`."""
    try:
        yield
    except Failed as error:
        raise TerminalError(
            "group-not-computed",
            tried=f"fold the rows of flow {layout.flow} of pipeline {layout.pipeline} in plain Python",
            found=str(error),
            changed="nothing",
            next=f"draindown run {layout.pipeline}/{layout.flow}   # once the class takes such rows, then audit",
        ) from error


def _used(flow: DerivedFlow, source: Table) -> list[str]:
    """Return the columns that the query names, or might name."""
    part, types = flow.derivation, source.column_types
    own = ["_origin"] if isinstance(flow.derivation, Pairing) and "_origin" in types else []
    own = own if flow.allowed_lateness is None else ["_arrived_at", "_origin"]
    if isinstance(part, Window):
        return [*windows.columns([part.time, *part.group_by], part.measures, types), *own]
    return [*(name for name in types if not is_own(name)), *own]


def _leave_out_late(
    db: duckdb.DuckDBPyConnection, layout: FlowHome, flow: DerivedFlow, decided: int
) -> None:
    """Delete the rows that came later than the flow accepts, but for those that a person
    applied.
    """
    if flow.allowed_lateness is None:
        return
    db.register("applied", late.applied(layout, decided))
    for name, table in zip(pairs.SOURCES, flow.source.read, strict=False):
        time = flow.derivation.timed_by(table.table)
        assert time is not None  # the flow has `allowed_lateness`
        db.execute(
            f"delete from {name} where {late_rows(table.table, time, flow.allowed_lateness)}"
        )


def _load(db: duckdb.DuckDBPyConnection, name: str, log: Table, columns: Sequence[str]) -> None:
    """Copy columns of a table into DuckDB, batch by batch. Deletion vectors are applied."""
    rows: pa.RecordBatchReader = stream(
        log.table, f"select {', '.join(map(identifier, columns))} from t"
    )
    db.register("_rows", rows)
    db.execute(f"create table {name} as select * from _rows")
    db.unregister("_rows")


def _times_as_numbers(db: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Turn the times that the derivation computes into microseconds since 1970, as in the query."""
    for name in names:
        db.execute(f"alter table held alter {name} set data type bigint using epoch_us({name})")


def _keep(db: duckdb.DuckDBPyConnection, keys: Sequence[str], share: float) -> None:
    if share < 1:
        chosen = f"{_key_hash(keys)} % {_PARTS} < {round(share * _PARTS)}"
        for name in ("expected", "held"):
            db.execute(f"delete from {name} where not ({chosen})")


def _key_hash(keys: Sequence[str]) -> str:
    parts = ", ".join(f"coalesce(cast({identifier(key)} as varchar), chr(0))" for key in keys)
    return f"md5_number_lower(concat_ws(chr(1), {parts}))"


def _complete(db: duckdb.DuckDBPyConnection) -> None:
    """Give both sides the columns of either: one that the table lacks, or that only an earlier
    query made, is NULL.
    """
    columns = {name: dict(_described(db, name)) for name in ("expected", "held")}
    for name, other in (("held", "expected"), ("expected", "held")):
        for column, kind in columns[other].items():
            if column not in columns[name] and not windows.is_scale(column):
                db.execute(f"alter table {name} add column {identifier(column)} {kind}")


def _differences(
    db: duckdb.DuckDBPyConnection, keys: Sequence[str]
) -> tuple[int, Sequence[Falsehood]]:
    columns = [name for name, _ in _described(db, "expected")]
    others = [name for name in columns if name not in keys and not windows.is_scale(name)]
    scales = {
        name: f"e.{identifier(windows.scale_of(name))}"
        for name in others
        if windows.scale_of(name) in columns
    }
    wrong = [differs(name, scales.get(name)) for name in others]
    same = " and ".join(
        f"e.{identifier(key)} is not distinct from h.{identifier(key)}" for key in keys
    )
    names = [*(f"coalesce(e.{identifier(key)}, h.{identifier(key)})" for key in keys)]
    for name, differ in zip(others, wrong, strict=True):
        names += [f"e.{identifier(name)}", f"h.{identifier(name)}", differ]
    listed = ", ".join(f"{text} as c{at}" for at, text in enumerate(names))
    what = (
        f"case when e._n is null then 'unexpected' when h._n is null or h._n < e._n then 'missing' "
        f"when h._n > e._n then 'doubled' when {' or '.join(wrong) or 'false'} then 'wrong' end"
    )
    grouped = ", ".join(map(identifier, keys))
    db.execute(
        f"create table falsehoods as select {what} as what, {listed} from "
        f"(select *, count(*) over (partition by {grouped}) as _n from expected) e "
        f"full join (select *, count(*) over (partition by {grouped}) as _n from held) h on {same}"
    )
    db.execute("delete from falsehoods where what is null")
    key = ", ".join(f"c{at}" for at in range(len(keys)))
    # NULL is a key
    number = _number(db, f"select count(*) from (select distinct {key} from falsehoods)")
    rows = db.execute(
        f"select * from falsehoods qualify row_number() over (partition by {key}) = 1 order by all limit {SHOWN}"
    ).fetchall()
    return number, [_falsehood(row, keys, others) for row in rows]


def differs(name: str, scale: str | None) -> str:
    """Return the condition that a column of rows `e` and `h` differs.

    `scale`: the size of what the column adds up, in SQL: both may differ by a share of it,
    TOLERANCE, as by one of themselves. None: not at all.
    """
    one, other = f"e.{identifier(name)}", f"h.{identifier(name)}"
    exact = f"{one} is distinct from {other}"
    if scale is None:
        return f"({exact})"
    # NaN equals itself and is greater than any number, so it and infinity are within any share of
    # themselves
    near = f"isfinite({one}) and isfinite({other}) and "
    near += f"abs({one} - {other}) <= {TOLERANCE} * greatest(abs({one}), abs({other}), {scale})"
    return f"({exact} and not coalesce({near}, false))"


def _falsehood(row: Sequence[Any], keys: Sequence[str], others: Sequence[str]) -> Falsehood:
    what: What = row[0]
    key = {name: _shown(name, value) for name, value in zip(keys, row[1:], strict=False)}
    return Falsehood(
        what, key, dict(_wrong(row[1 + len(keys) :], others)) if what == "wrong" else {}
    )


def _shown(name: str, value: Any) -> Any:
    """Return the start of a window, session or bucket, which the query has in microseconds since
    1970, as a time.
    """
    if name in (Window.START, Session.START, Join.BUCKET) and isinstance(value, int):
        with suppress(ValueError, OverflowError):  # Python's times are those of the years 1 to 9999
            return datetime.fromtimestamp(value / 1_000_000, UTC).isoformat()
    return value


def _wrong(values: Sequence[Any], others: Sequence[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for at, name in enumerate(others):
        expected, found, differ = values[3 * at : 3 * at + 3]
        if differ:
            yield name, (expected, found)


def _described(db: duckdb.DuckDBPyConnection, name: str) -> Sequence[tuple[str, str]]:
    """Return the columns of a table with their types."""
    return db.execute(f"select column_name, column_type from (describe {name})").fetchall()


def _number(db: duckdb.DuckDBPyConnection, sql: str) -> int:
    found: Mapping[int, Any] | Any = db.execute(sql).fetchone()
    return int(found[0])
