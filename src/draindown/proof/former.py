"""Find the source rows from which a row of a derived table followed earlier: their keys are behind
it no more.

A version of a source need not be readable for that: every row that a version had is in a data file
that a commit added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.duck import connected
from draindown.config.derived import DerivedFlow
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier, literal, rows
from draindown.lake.written_files import Values, Written, written_files
from draindown.proof.behind import ROW, among, behind, find_rows, of_key, take_rows
from draindown.proof.source_rows import SourceRows
from draindown.sources.tables import late

_STAMP = "_changed_at"
_PLAIN = {
    "byte": "tinyint",
    "short": "smallint",
    "long": "bigint",
    "string": "varchar",
    "binary": "blob",
}
_PLAIN |= {"timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
_PLAIN |= {name: name for name in ("integer", "float", "double", "boolean", "date")}


@dataclass(frozen=True)
class Former:
    """Rows of one source table that were behind a result's row: the newest of each key, `number`
    keys in all.

    `gone`: what could not be read, as text.
    """

    rows: Sequence[Mapping[str, Any]]
    number: int
    gone: Sequence[str] = ()


def former_rows(
    layout: FlowHome,
    flow: DerivedFlow,
    sources: Sequence[Table],
    keys: Sequence[Sequence[str]],
    result: pa.Table,
    decided: int,
    limit: int,
    key: Collection[str] | None = None,
) -> list[Former]:
    """Return, by source table, the rows that were behind the one row of `result` and are not any
    more.

    `keys`: by source table, the columns that name a row. `key`: the columns of `result` that are
    known, if not all are. Each source is read up to the version that it was opened with.
    """
    placed = result.append_column(ROW, pa.array(range(result.num_rows), pa.int64()))
    with connected() as db:
        db.register("results", placed)
        db.register("applied", late.applied(layout, decided))
        return [
            _of_source(db, log, names, of_key(asked, key), placed, limit)
            for log, names, asked in zip(sources, keys, behind(flow, sources), strict=True)
        ]


def _of_source(
    db: duckdb.DuckDBPyConnection,
    log: Table,
    keys: Sequence[str],
    asked: SourceRows,
    result: pa.Table,
    limit: int,
) -> Former:
    asked = replace(asked, counts="true", order="")
    key = ", ".join(f"_s.{identifier(name)}" for name in keys)
    take_rows(db, log, asked, result)
    find_rows(db, asked)
    db.execute(f"create or replace temp table present as select distinct {key} from found")
    written = written_files(log)
    _take_files(db, log, asked, written)
    find_rows(db, asked)
    same = " and ".join(
        f"_s.{identifier(name)} is not distinct from p.{identifier(name)}" for name in keys
    )
    newest = f" order by _s.{_STAMP} desc" if _STAMP in log.column_types else ""
    db.execute(
        f"create or replace temp table former as select _s from found "
        f"where not exists (select 1 from present p where {same}) "
        f"qualify row_number() over (partition by {key}{newest}) = 1"
    )
    ((number,),) = db.execute("select count(*) from former").fetchall()
    few = db.sql(f"select unnest(_s) from (select _s from former{newest} limit {limit})")
    return Former(rows(few.to_arrow_table()), int(number), written.gone)


def _take_files(
    db: duckdb.DuckDBPyConnection, log: Table, asked: SourceRows, written: Written
) -> None:
    """Make the table `source`: the rows of data files that may be behind the result's row, deleted
    ones included.
    """
    if not written.files:
        db.execute("delete from source")
        return
    listed = ", ".join(map(literal, written.files))
    read = f"read_parquet([{listed}], union_by_name = true, filename = '_file', hive_partitioning = false)"
    held = {str(name) for name, *_ in db.execute(f"describe select * from {read}").fetchall()}
    parted = {name for values in written.files.values() for name in values}
    db.register("_parts", _parts(written.files, sorted(parted)))
    columns = [_column(name, kind, held, parted) for name, kind in log.column_types.items()]
    db.execute(
        f"create or replace temp table source as "
        f"with _s as (select {', '.join(columns)} from {read} f left join _parts p on f._file = p._file) "
        f"select * from _s where {among(asked)}"
    )
    db.unregister("_parts")


def _parts(files: Mapping[str, Values], names: Sequence[str]) -> pa.Table:
    """Return the partition values of files as text."""
    texts = {name: [_text(values.get(name)) for values in files.values()] for name in names}
    return pa.table(
        {
            "_file": list(files),
            **{name: pa.array(found, pa.string()) for name, found in texts.items()},
        }
    )


def _text(value: Any) -> str | None:
    # Delta writes NULL as an empty text
    return None if value is None or value == "" else str(value)


def _column(name: str, kind: Any, held: set[str], parted: set[str]) -> str:
    """Return a column of Delta's type `kind`; a file of Spark may hold times in a form of their
    own.
    """
    known = kind if isinstance(kind, str) else ""
    duck = _PLAIN.get(known) or (known if known.startswith("decimal") else "")
    place = (
        f"p.{identifier(name)}"
        if name in parted
        else f"f.{identifier(name)}"
        if name in held
        else "null"
    )
    return (
        f"cast({place} as {duck}) as {identifier(name)}"
        if duck
        else f"{place} as {identifier(name)}"
    )
