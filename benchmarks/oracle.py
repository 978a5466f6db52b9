"""What must become of the change events, worked out from the bytes of their files by DuckDB alone.

Shares nothing with the engine. The contract: a line is refused if it is no JSON object, lacks key,
sequence or operation, or has a value of another type or an unknown operation; of one key the newest
sequence wins; of equally new changes a delete, then the greater content, column by column, null
least; a key whose newest change is a delete has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from benchmarks.changes import NOTHING, Seeded, seed_columns

COLUMNS = {
    "order_id": "bigint", "event_date": "date", "op": "varchar", "seq": "bigint", "status": "varchar",
    "customer": "varchar", "amount": "int", "updated_at": "timestamptz", "note": "varchar",
}  # fmt: skip
_NEEDED = ("order_id", "event_date", "op", "seq")
_CONTENT = ("op", "status", "customer", "amount", "updated_at", "note")
_MEMORY = "4GB"


@dataclass(frozen=True)
class Verdict:
    """What the oracle says of one result. `text` is `exact` or what is wrong."""

    wrong_rows: int = 0
    quarantined: int = 0
    text: str = ""

    @property
    def exact(self) -> bool:
        """Whether nothing at all is wrong."""
        return self.text == "exact"


def compare(
    table: Path, files: Path, *, quarantine: Path | None, seeded: Seeded = NOTHING
) -> Verdict:
    """Hold a Delta table against the events in `files` on top of the seeded rows. Raises nothing
    about the data.

    Args:
        table: the Delta table.
        files: directory of the events.
        quarantine: Delta table of refused rows, where the contender has one: it must hold as many
        as are refused. seeded: the orders that the table had before.
    """
    try:
        # in a file, so that tables of many millions of rows need not fit into memory
        with TemporaryDirectory() as scratch, duckdb.connect(f"{scratch}/oracle.db") as con:
            con.execute(
                f"set timezone = 'UTC'; set memory_limit = '{_MEMORY}'; set enable_progress_bar = false"
            )
            _expect(con, files, seeded)
            _read(con, "found", table, list(COLUMNS))
            kept = _rows(quarantine) if quarantine else 0
            return _verdict(con, kept if quarantine else None)
    except Exception as error:  # noqa: BLE001  "not comparable" is a verdict, and the caller's to judge
        return Verdict(text=f"could not compare: {type(error).__name__}: {error}")


def compare_appended(table: Path, files: Path, *, quarantine: Path | None) -> Verdict:
    """Hold an append table against the events in `files`: each that is not refused is a row.
    Arguments as `compare`.
    """
    try:
        with TemporaryDirectory() as scratch, duckdb.connect(f"{scratch}/oracle.db") as con:
            con.execute(
                f"set timezone = 'UTC'; set memory_limit = '{_MEMORY}'; set enable_progress_bar = false"
            )
            _expect(con, files, NOTHING)
            _read(con, "found", table, list(COLUMNS))
            wanted, columns = "select {} from judged where not refused", ", ".join(COLUMNS)
            missing = _count(
                con, f"({wanted.format(columns)} except all select {columns} from found)"
            )
            extra = _count(
                con, f"(select {columns} from found except all {wanted.format(columns)})"
            )
            told = [f"{n:,} {what}" for n, what in ((missing, "missing"), (extra, "extra")) if n]
            kept, refused = (
                _rows(quarantine) if quarantine else 0,
                _count(con, "(select 1 from judged where refused)"),
            )
            if quarantine and kept != refused:
                told.append(f"{kept:,} rows quarantined of {refused:,}")
            return Verdict(missing + extra, kept, ", ".join(told) or "exact")
    except Exception as error:  # noqa: BLE001  as in `compare`
        return Verdict(text=f"could not compare: {type(error).__name__}: {error}")


_LINES = r"""
create table line as
select raw
from read_csv('{files}/*.json.gz', columns = {{'raw': 'varchar'}}, delim = '\x01', quote = '', escape = '',
    header = false, auto_detect = false, max_line_size = 1000000)
where trim(raw) <> ''
"""
_GIVEN = """
create table given as
select json_type(raw) = 'OBJECT' as is_object, json_extract_string(raw, [{paths}]) as v
from (select case when json_valid(raw) then raw end as raw from line)
"""
_JUDGED = """
create table judged as
select * exclude (v, is_object), not coalesce(is_object, false) or {bad} as refused
from (select *, {typed} from given)
"""
# Only seeded rows that an event names take part in the fold: the others are as they were.
_EXPECTED = """
create view seeded as select {columns} from (select {seed} from range({seeded}) ids(id));
create table touched as select distinct order_id, event_date from judged where not refused;
create table expected as
select {columns}
from (
    select *, row_number() over (
        partition by order_id, event_date order by seq desc, op = 'delete' desc, {content}) as place
    from (select {columns} from judged where not refused
          union all select {columns} from seeded semi join touched using (order_id, event_date)))
where place = 1 and op <> 'delete'
union all select {columns} from seeded anti join touched using (order_id, event_date)
"""


def _expect(con: duckdb.DuckDBPyConnection, files: Path, seeded: Seeded) -> None:
    """Tables `judged` (each line, and whether it is refused) and `expected` (the final rows)."""
    numbered = list(enumerate(COLUMNS.items(), start=1))
    bad = [f"{name} is null" for name in _NEEDED] + ["op not in ('upsert', 'delete')"]
    bad += [f"(v[{at}] is not null and {name} is null)" for at, (name, _) in numbered]
    typed = ", ".join(f"try_cast(v[{at}] as {kind}) as {name}" for at, (name, kind) in numbered)
    content = ", ".join(f"{name} desc nulls last" for name in _CONTENT)
    seed = seed_columns(seeded, "//")
    con.execute(_LINES.format(files=files))
    con.execute(_GIVEN.format(paths=", ".join(f"'$.{name}'" for name in COLUMNS)))
    con.execute(_JUDGED.format(bad=" or ".join(bad), typed=typed))
    con.execute(
        _EXPECTED.format(columns=", ".join(COLUMNS), content=content, seed=seed, seeded=seeded.rows)
    )


def _read(con: duckdb.DuckDBPyConnection, name: str, path: Path, columns: list[str]) -> None:
    """Copy columns of a Delta table, by the one reader of deltalake that honours deletion
    vectors.
    """
    from deltalake import DeltaTable, QueryBuilder

    rows = (
        QueryBuilder()
        .register("t", DeltaTable(str(path)))
        .execute(f"select {', '.join(columns)} from t")
    )
    con.register("arriving", rows)
    con.execute(f"create table {name} as select * from arriving")
    con.unregister("arriving")


def _rows(path: Path) -> int:
    if not (path / "_delta_log").exists():
        return 0
    with duckdb.connect() as con:
        _read(con, "kept", path, ["reason"])
        return _count(con, "kept")


def _count(con: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(con.execute(f"select count(*) from {relation}").fetchall()[0][0])


def _verdict(con: duckdb.DuckDBPyConnection, kept: int | None) -> Verdict:
    """Tell rows that are missing, extra or different; `kept`: rows in the quarantine, None where
    there is none.
    """
    differs = " or ".join(f"e.{name} is distinct from f.{name}" for name in COLUMNS)
    keys = "order_id, event_date"
    missing = _count(con, f"(select 1 from expected anti join found using ({keys}))")
    extra = _count(con, f"(select 1 from found anti join expected using ({keys}))")
    per_key = f"(select count(*) as n from found semi join expected using ({keys}) group by {keys})"
    twice = int(con.execute(f"select coalesce(sum(n - 1), 0) from {per_key}").fetchall()[0][0])
    different = _count(
        con, f"(select distinct {keys} from expected e join found f using ({keys}) where {differs})"
    )
    refused = _count(con, "(select 1 from judged where refused)")
    told = [
        f"{n:,} {what}"
        for n, what in ((missing, "missing"), (extra + twice, "extra"), (different, "different"))
        if n
    ]
    if kept is not None and kept != refused:
        told.append(f"{kept:,} rows quarantined of {refused:,}")
    return Verdict(missing + extra + twice + different, kept or 0, ", ".join(told) or "exact")
