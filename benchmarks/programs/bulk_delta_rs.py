"""A large load without Spark: DuckDB reads the files and takes the newest of each key, delta-rs
writes them.

    python benchmarks/programs/bulk_delta_rs.py --form json --mode upsert --landing landing --lake
    lake

The limit of one machine: no MERGE into what is there, no accounting, nothing refused.
"""

from __future__ import annotations

import argparse

import duckdb
from deltalake import write_deltalake

COLUMNS = {
    "order_id": "bigint", "seq": "bigint", "event_date": "date", "status": "varchar", "customer": "varchar",
    "amount": "decimal(12,2)", "quantity": "int", "weight": "double", "gift": "boolean", "updated_at": "timestamptz",
    "note": "varchar",
}  # fmt: skip


def main() -> None:
    """Load the landing directory into `<lake>/tables/bulk`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--form", choices=["json", "csv", "parquet"], required=True)
    parser.add_argument("--mode", choices=["append", "upsert"], required=True)
    parser.add_argument("--landing", required=True)
    parser.add_argument("--lake", required=True)
    asked = parser.parse_args()
    files = f"'{asked.landing}/bulk/*.{asked.form}'"
    read = {
        "json": f"read_json({files}, format = 'newline_delimited', columns = {COLUMNS})",
        "csv": f"read_csv({files}, header = true, columns = {COLUMNS})",
        "parquet": f"read_parquet({files})",
    }[asked.form]
    newest = (
        ""
        if asked.mode == "append"
        else "qualify row_number() over (partition by order_id order by seq desc) = 1"
    )
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        rows = db.sql(f"select * from {read} {newest}").to_arrow_reader()
        write_deltalake(f"{asked.lake}/tables/bulk", rows, mode="append")


if __name__ == "__main__":
    main()
