"""The same job without Spark: DuckDB reads and folds the files, delta-rs merges, a manifest
remembers what was read.

    python benchmarks/programs/delta_rs.py --shape changes --landing landing --lake lake

As short as is sensible: broken lines are dropped, deleted keys forgotten. A crash between MERGE and
manifest repeats a MERGE, which changes nothing. Everything of one chunk of files must fit into
memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
from deltalake import DeltaTable, write_deltalake

COLUMNS = {
    "order_id": "BIGINT", "event_date": "DATE", "op": "VARCHAR", "seq": "BIGINT", "status": "VARCHAR",
    "customer": "VARCHAR", "amount": "INTEGER", "updated_at": "TIMESTAMPTZ", "note": "VARCHAR",
}  # fmt: skip
NEWEST = """
select * from read_json($files, format = 'newline_delimited', columns = {columns}, ignore_errors = true)
where order_id is not null and event_date is not null and seq is not null and op in ('upsert', 'delete')
qualify row_number() over (partition by event_date, order_id order by seq desc, status desc) = 1
"""


def new_files(landing: Path, manifest: Path) -> list[str]:
    """Files that no earlier run has read, by name."""
    seen = set(json.loads(manifest.read_text())) if manifest.exists() else set()
    return sorted(str(file) for file in landing.glob("*.json.gz") if str(file) not in seen)


def chunks(files: Sequence[str], size: int) -> Iterator[list[str]]:
    """The files, so many at a time."""
    for start in range(0, len(files), size):
        yield list(files[start : start + size])


def remember(manifest: Path, files: Sequence[str]) -> None:
    """Add files to the manifest, atomically."""
    seen = json.loads(manifest.read_text()) if manifest.exists() else []
    part = manifest.with_suffix(".part")
    part.write_text(json.dumps([*seen, *files]))
    part.replace(manifest)


def merge(con: duckdb.DuckDBPyConnection, files: Sequence[str], table: str) -> None:
    """MERGE the newest row of each key of these files."""
    rows = con.sql(NEWEST.format(columns=COLUMNS), params={"files": list(files)}).to_arrow_table()
    if not DeltaTable.is_deltatable(table):
        write_deltalake(table, rows.slice(0, 0))
    (
        DeltaTable(table)
        .merge(
            rows,
            "t.event_date = s.event_date and t.order_id = s.order_id",
            source_alias="s",
            target_alias="t",
        )
        .when_matched_delete("s.op = 'delete' and s.seq >= t.seq")
        .when_matched_update_all("s.seq > t.seq")
        .when_not_matched_insert_all("s.op <> 'delete'")
        .execute()
    )


def main() -> None:
    """Drain the landing directory into `<lake>/tables/<shape>`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=["changes"], required=True)
    parser.add_argument("--landing", type=Path, required=True)
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--files", type=int, default=50, help="files per MERGE")
    asked = parser.parse_args()
    manifest, table = asked.lake / "manifest.json", asked.lake / "tables" / asked.shape
    table.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as con:
        con.execute("set timezone = 'UTC'")
        for files in chunks(new_files(asked.landing / asked.shape, manifest), asked.files):
            merge(con, files, str(table))
            remember(manifest, files)


if __name__ == "__main__":
    main()
