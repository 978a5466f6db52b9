"""The history of things by the MERGE of Delta's documentation, in `foreachBatch` over files of
events.

    spark-submit --conf ... benchmarks/programs/scd2_by_hand.py --landing landing/statuses --lake
    lake --table by_hand

Of a batch the newest event of each thing counts. It closes the open row of its thing if it differs
or deletes, and is inserted once more under no key, which no row matches. Events between, and those
that come late, are lost.
"""

from __future__ import annotations

import argparse

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

_EVENT = "thing bigint, seq bigint, status string, amount int, op string"
_ROW = "thing bigint, status string, amount int, start_at bigint, end_at bigint"


def merge(batch: DataFrame, table: str) -> None:
    """Close the open rows that a batch changes, and insert the new ones."""
    number = F.row_number().over(Window.partitionBy("thing").orderBy(F.desc("seq")))
    newest = batch.withColumn("_number", number).where("_number = 1").drop("_number")
    history = DeltaTable.forPath(batch.sparkSession, table)
    opened = history.toDF().where("end_at is null").alias("t")
    differs = "(s.status <> t.status or s.amount <> t.amount)"
    again = (
        newest.alias("s")
        .join(opened, "thing")
        .where(f"s.op <> 'delete' and {differs}")
        .select("s.*")
    )
    staged = again.selectExpr("null as merge_key", "*").unionByName(
        newest.selectExpr("thing as merge_key", "*")
    )
    (
        history.alias("t")
        .merge(staged.alias("s"), "t.thing = s.merge_key and t.end_at is null")
        .whenMatchedUpdate(f"s.op = 'delete' or {differs}", {"end_at": "s.seq"})
        .whenNotMatchedInsert(
            "s.op <> 'delete'",
            {"thing": "s.thing", "status": "s.status", "amount": "s.amount", "start_at": "s.seq"},
        )
        .execute()
    )


def main() -> None:
    """Bring the history up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("--landing", "--lake", "--table"):
        parser.add_argument(name, required=True)
    asked = parser.parse_args()
    spark, table = (
        SparkSession.builder.appName("scd2_by_hand").getOrCreate(),
        f"{asked.lake}/tables/{asked.table}",
    )
    if not DeltaTable.isDeltaTable(spark, table):
        made = (
            DeltaTable.create(spark)
            .location(table)
            .addColumns(spark.createDataFrame([], _ROW).schema)
        )
        made.property("delta.enableDeletionVectors", "true").execute()
    events = spark.readStream.schema(_EVENT).option("maxFilesPerTrigger", 10).json(asked.landing)
    writer = events.writeStream.trigger(availableNow=True).foreachBatch(
        lambda batch, _: merge(batch, table)
    )
    writer.option(
        "checkpointLocation", f"{asked.lake}/_checkpoint_{asked.table}"
    ).start().awaitTermination()


if __name__ == "__main__":
    main()
