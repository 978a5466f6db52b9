"""Large loads of one shape, deterministic: many changes of few keys, without a wrong line, in one
file or in many.

DuckDB writes the files, and says what must come of them. Of one key the newest sequence wins; each
row has a sequence of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
from deltalake import DeltaTable, QueryBuilder

from benchmarks.oracle import Verdict

COLUMNS = {
    "order_id": "bigint", "seq": "bigint", "event_date": "date", "status": "string", "customer": "string",
    "amount": "decimal(12,2)", "quantity": "int", "weight": "double", "gift": "boolean", "updated_at": "timestamp",
    "note": "string",
}  # fmt: skip
"""Name and Spark type of each column."""
FORMS = ("json", "csv", "parquet")
"""Formats of the files, which end so."""
_CHANGES_PER_KEY = 5.5
_ROWS = """
select cast(hash(n) % {keys} as bigint) as order_id, n as seq,
    date '2026-01-01' + cast(hash(n) % 90 as int) as event_date,
    ['open', 'paid', 'sent', 'done'][1 + cast(n % 4 as int)] as status, 'c-' || (hash(n) % 50000) as customer,
    cast((hash(n) % 10000000) / 100 as decimal(12, 2)) as amount, cast(n % 12 as int) as quantity,
    (hash(n) % 100000) / 64.0 as weight, n % 7 = 0 as gift,
    timestamptz '2026-01-01 00:00:00Z' + to_seconds(cast(n % 7776000 as int)) as updated_at,
    'note ' || md5(cast(n as varchar)) || ' of change ' || n as note
from range({first}, {last}) rows(n)
"""
_TEXTS = "* replace (strftime(updated_at, '%Y-%m-%dT%H:%M:%SZ') as updated_at)"


def write(landing: Path, form: str, rows: int, files: int) -> None:
    """Write the rows in order of their sequence, as many to each file. Their times of change are in
    that order.
    """
    landing.mkdir(parents=True)
    how = {"json": "format json", "csv": "format csv, header", "parquet": "format parquet"}[form]
    columns = "*" if form == "parquet" else _TEXTS
    with duckdb.connect() as db:
        db.execute(
            "set timezone = 'UTC'; set memory_limit = '2GB'; set preserve_insertion_order = true"
        )
        for number in range(files):
            first, last = number * rows // files, (number + 1) * rows // files
            path = landing / f"changes-{number:05}.{form}"
            made = _ROWS.format(keys=_keys(rows), first=first, last=last)
            db.execute(f"copy (select {columns} from ({made})) to '{path}' ({how})")
            os.utime(path, (number + 1, number + 1))


def compare(table: Path, rows: int, *, appended: bool) -> Verdict:
    """Hold a Delta table against the rows: all of them if they are `appended`, else the newest of
    each key.
    """
    names = ", ".join(COLUMNS)
    with duckdb.connect() as db:
        db.execute(
            "set timezone = 'UTC'; set memory_limit = '6GB'; set enable_progress_bar = false"
        )
        found = (
            QueryBuilder().register("t", DeltaTable(str(table))).execute(f"select {names} from t")
        )
        db.register("arriving", found)
        db.execute("create table found as select * from arriving")
        newest = (
            ""
            if appended
            else "qualify row_number() over (partition by order_id order by seq desc) = 1"
        )
        made = _ROWS.format(keys=_keys(rows), first=0, last=rows)
        db.execute(f"create table expected as select {names} from ({made}) {newest}")
        # a sequence names a row
        missing, extra = (
            _count(db, f"select 1 from {one} anti join {other} using (seq)")
            for one, other in (("expected", "found"), ("found", "expected"))
        )
        twice = _count(db, "select seq from found group by seq having count(*) > 1")
        differs = " or ".join(f"e.{name} is distinct from f.{name}" for name in COLUMNS)
        different = _count(db, f"select 1 from expected e join found f using (seq) where {differs}")
    told = {"missing": missing, "extra": extra + twice, "different": different}
    text = ", ".join(f"{number:,} {what}" for what, number in told.items() if number)
    return Verdict(sum(told.values()), 0, text or "exact")


def _keys(rows: int) -> int:
    return max(1, int(rows / _CHANGES_PER_KEY))


def _count(db: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(db.execute(f"select count(*) from ({query})").fetchall()[0][0])
