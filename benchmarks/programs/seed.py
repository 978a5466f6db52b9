"""Give a Delta table one row for every id, fast: rows as a SQL select list over `id`, appended by
Spark.

    spark-submit --conf ... benchmarks/programs/seed.py --table PATH --rows 1000000 --columns "id as
    order_id, ..."

Options may be repeated, for several tables. A table that is there keeps its schema: columns that
the list lacks are NULL, and `_changed_at` is long ago, so that the rows count as published.
Otherwise the table is made, by day, with deletion vectors.
"""

from __future__ import annotations

import argparse

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

_DAYS = 90  # partitions of ids: one file per day
_LONG_AGO = {"_changed_at": "timestamp '2020-01-01 00:00:00'"}


def filled(rows: DataFrame, table: DataFrame) -> DataFrame:
    """The rows with all columns of the table."""
    return rows.select(
        *[
            F.col(f.name)
            if f.name in rows.columns
            else F.expr(_LONG_AGO.get(f.name, "null")).cast(f.dataType).alias(f.name)
            for f in table.schema
        ]
    )


def main() -> None:
    """Append the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", required=True, action="append")
    parser.add_argument("--rows", type=int, required=True, action="append")
    parser.add_argument("--columns", required=True, action="append")
    parser.add_argument("--start", type=int, action="append", help="the first id")
    parser.add_argument(
        "--parts", type=int, default=_DAYS, help="tasks, of ids that follow each other"
    )
    asked = parser.parse_args()
    spark = SparkSession.builder.appName("seed").getOrCreate()
    starts = asked.start or [0] * len(asked.table)
    for table, number, columns, start in zip(
        asked.table, asked.rows, asked.columns, starts, strict=True
    ):
        append(spark, table, columns, start, number, asked.parts)


def append(
    spark: SparkSession, table: str, columns: str, start: int, number: int, parts: int
) -> None:
    """Append a row for every id of so many from `start` on to a table, which is made if it is not
    there.
    """
    spark.range(start, start + number, 1, parts).createOrReplaceTempView("ids")
    rows = spark.sql(f"select {columns} from ids")
    if DeltaTable.isDeltaTable(spark, table):
        rows = filled(rows, spark.read.format("delta").load(table))
    else:
        made = (
            DeltaTable.create(spark)
            .location(table)
            .addColumns(rows.schema)
            .partitionedBy("event_date")
        )
        made.property("delta.enableDeletionVectors", "true").execute()
    rows.write.format("delta").mode("append").save(table)


if __name__ == "__main__":
    main()
