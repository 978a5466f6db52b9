"""The job a careful engineer writes by hand for a large load: a stream of files, then append or
MERGE.

    spark-submit --conf spark.driver.extraClassPath=JARS benchmarks/programs/bulk_by_hand.py --form
        json \\ --mode upsert --shape bulk --landing landing --lake lake

As `hand_written.py`, with default settings, for any format.
"""

from __future__ import annotations

from hand_written import Shape, drain, options, session
from pyspark.sql import DataFrame

SHAPE = Shape(
    schema="order_id bigint, seq bigint, event_date date, status string, customer string, amount decimal(12,2), "
    "quantity int, weight double, gift boolean, updated_at timestamp, note string",
    good="order_id is not null and seq is not null",
    keys=("order_id",),
    sequence="seq",
    gone="false",
    tie="seq",
)
"""Columns as `benchmarks.bulk.COLUMNS`."""
_OPTIONS = {
    "json": {"mode": "DROPMALFORMED"},
    "csv": {"mode": "DROPMALFORMED", "header": "true"},
    "parquet": {},
}


def main() -> None:
    """Drain the landing directory into `<lake>/tables/bulk`."""
    parser = options()
    parser.add_argument("--form", choices=list(_OPTIONS), required=True)
    parser.add_argument("--mode", choices=["append", "upsert"], required=True)
    asked = parser.parse_args()
    spark, table = session(tuned=False), f"{asked.lake}/tables/bulk"
    found: DataFrame = (
        spark.readStream.schema(SHAPE.schema)
        .format(asked.form)
        .options(**_OPTIONS[asked.form])
        .option("maxFilesPerTrigger", asked.files)
        .load(f"{asked.landing}/bulk")
        .filter(SHAPE.good)
    )
    drain(found, asked.lake, table, SHAPE, asked.mode)


if __name__ == "__main__":
    main()
