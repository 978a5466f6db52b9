"""Statuses of things as they change, as files of events, and the oracle of the history of each
thing.

Every event is one of a thing drawn at random, which gets one of five statuses and one of three
amounts, or in one of fifty cases its end. Of those that come after the first fill, three in a
hundred are late by up to a fifth of all.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from benchmarks.oracle import Verdict

THINGS = 100_000
_STATUSES, _AMOUNTS, _ENDS, _LATE, _PART = 5, 3, 50, 3, 10_000
_MEMORY = "2GB"


def write(
    directory: Path, start: int, rows: int, things: int = THINGS, late_from: int | None = None
) -> None:
    """Write events number `start` and following as files of 10,000. From `late_from` on some are
    late.
    """
    late = "false" if late_from is None else f"i >= {late_from} and hash(i, 5) % 100 < {_LATE}"
    back = "(hash(i, 6) % greatest(1, i // 5))::bigint * 10"
    columns = f"""(hash(i, 1) % {things})::bigint as thing, i * 10 - if({late}, {back} + 1 + i % 9, 0) as seq,
        's' || (hash(i, 2) % {_STATUSES}) as status, (hash(i, 3) % {_AMOUNTS})::int as amount,
        if(hash(i, 4) % {_ENDS} = 0, 'delete', 'upsert') as op"""
    _copy(directory, start, rows, columns)


def repeat(directory: Path, day: int, things: int) -> None:
    """Write one event of each thing, which says on each day what it said on the first."""
    columns = f"i % {things} as thing, {day} as seq, 's' || (i % {things} % 5) as status, 1 as amount, 'upsert' as op"
    _copy(directory, day * things, things, columns)


def _copy(directory: Path, start: int, rows: int, columns: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as con:
        for at in range(start, start + rows, _PART):
            path = directory / f"{at:012}.json.gz"
            last = min(at + _PART, start + rows)
            rows_of = f"select {columns} from range({at}, {last}) t(i)"
            con.execute(f"copy ({rows_of}) to '{path}.part' (format json, compression gzip)")
            Path(f"{path}.part").rename(path)


def closed(things: int) -> str:
    """A closed row of every `id` as a select list of Spark, before all events: things have as many
    each.
    """
    start = f"-1000000000 + id div {things} * 2"
    return (
        f"id % {things} as thing, {start} as __START_AT, {start} + 1 as __END_AT, {start} as seq, 'old' as status, "
        "1 as amount, 'upsert' as op"
    )


_FOLD = """
with single as (
    select distinct on (thing, seq) thing, seq, status, amount, op = 'delete' as gone from events
    order by thing, seq, gone desc, status desc, amount desc
), marked as (
    select *, lead(seq) over w as follows, gone or coalesce(lag(gone) over w, true)
        or status <> lag(status) over w or amount <> lag(amount) over w as begins
    from single window w as (partition by thing order by seq)
), runs as (select *, count_if(begins) over (partition by thing order by seq) as run from marked)
select thing, min(seq) as start_at, arg_max_null(follows, seq) as end_at, any_value(status) as status,
    any_value(amount) as amount
from runs where not gone group by thing, run
"""


def judge(
    table: Path, landing: Path, names: tuple[str, str] = ("__START_AT", "__END_AT")
) -> Verdict:
    """Compare a history with the fold of all events. `names`: of the columns with start and end."""
    from deltalake import DeltaTable, QueryBuilder

    with TemporaryDirectory() as scratch, duckdb.connect(f"{scratch}/oracle.db") as con:
        con.execute(f"set memory_limit = '{_MEMORY}'; set enable_progress_bar = false")
        con.execute(f"create table events as select * from read_json('{landing}/*.json.gz')")
        con.execute(f"create table expected as {_FOLD}")
        start, end = names
        sql = f'select thing, "{start}" as start_at, "{end}" as end_at, status, amount from t where "{start}" >= 0'
        con.register("arriving", QueryBuilder().register("t", DeltaTable(str(table))).execute(sql))
        con.execute("create table found as select * from arriving")
        sides = (("expected", "found"), ("found", "expected"))
        wrong = max(
            int(
                con.execute(
                    f"select count(*) from (from {one} except all from {other})"
                ).fetchall()[0][0]
            )
            for one, other in sides
        )
    return Verdict(wrong, 0, f"{wrong:,} wrong rows" if wrong else "exact")
