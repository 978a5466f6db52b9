"""Five-minute windows over a table of events, as a careful engineer writes them by hand.

    spark-submit --conf ... benchmarks/programs/windows_by_hand.py --lake lake --table
    windows_by_state spark-submit --conf ... benchmarks/programs/windows_by_hand.py --lake lake
    --table windows_whole --whole

A stream keeps the windows in state: AvailableNow, a watermark of two days, RocksDB, update mode,
and a MERGE per batch whose condition names the batch's days. Spark counts no distinct users in a
stream, so it estimates them. `--whole` computes the table from all events and overwrites it.
"""

from __future__ import annotations

import argparse

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

DELAY = "2 days"
_KEYS = ("window_start", "day", "type")
_COLUMNS = (
    "window_start timestamp, day date, type string, window_end timestamp, events "
    "bigint, amount bigint, users bigint"
)
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def windows(events: DataFrame, users: Column) -> DataFrame:
    """One row per window, day and type."""
    window = F.window("event_time", "5 minutes").alias("w")
    measures = [F.count("*").alias("events"), F.sum("amount").alias("amount"), users.alias("users")]
    grouped = events.groupBy(window, "day", "type").agg(*measures)
    ends = [F.col(f"w.{one}").alias(f"window_{one}") for one in ("start", "end")]
    return grouped.select(ends[0], "day", "type", ends[1], "events", "amount", "users")


def upsert(batch: DataFrame, table: str) -> None:
    """MERGE the windows of a batch, of which the table is told the days."""
    batch = batch.persist()
    days = ", ".join(f"date '{row[0]}'" for row in batch.select("day").distinct().collect())
    if days:
        on = " and ".join([*(f"t.{key} = s.{key}" for key in _KEYS), f"t.day in ({days})"])
        merge = DeltaTable.forPath(batch.sparkSession, table).alias("t").merge(batch.alias("s"), on)
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    batch.unpersist()


def follow(spark: SparkSession, events: str, table: str, checkpoint: str) -> None:
    """Drain the events that the stream has not read."""
    if not DeltaTable.isDeltaTable(spark, table):
        made = (
            DeltaTable.create(spark)
            .location(table)
            .addColumns(spark.createDataFrame([], _COLUMNS).schema)
        )
        made.partitionedBy("day").property("delta.enableDeletionVectors", "true").execute()
    found = spark.readStream.format("delta").load(events).withWatermark("event_time", DELAY)
    (
        windows(found, F.approx_count_distinct("user"))
        .writeStream.foreachBatch(lambda batch, _: upsert(batch, table))
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main() -> None:
    """Bring the table up to date with the events."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--whole", action="store_true")
    asked = parser.parse_args()
    spark = (
        SparkSession.builder.appName("windows_by_hand")
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKS)
        .getOrCreate()
    )
    events, table = f"{asked.lake}/tables/events", f"{asked.lake}/tables/{asked.table}"
    if asked.whole:
        found = windows(spark.read.format("delta").load(events), F.countDistinct("user"))
        found.write.format("delta").partitionBy("day").mode("overwrite").save(table)
    else:
        follow(spark, events, table, f"{asked.lake}/_checkpoint")


if __name__ == "__main__":
    main()
