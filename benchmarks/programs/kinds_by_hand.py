"""Sessions, pairs and newest rows over tables of visits and orders, as a careful engineer writes
them by hand.

    spark-submit --conf ... benchmarks/programs/kinds_by_hand.py sessions --lake lake --table
    sessions_by_hand

Streams with AvailableNow, RocksDB and a watermark of two days. Sessions are `session_window`, which
has append mode only: one is written once the watermark has passed its end. Pairs are an inner join
of two streams within half an hour. Newest rows are numbered per batch, and merged where they are
newer.
"""

from __future__ import annotations

import argparse

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

DELAY = "2 days"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def sessions(visits: DataFrame) -> DataFrame:
    """One row per session of a user."""
    session = F.session_window("event_time", "30 minutes").alias("w")
    measures = [F.count("*").alias("visits"), F.sum("amount").alias("amount")]
    grouped = visits.withWatermark("event_time", DELAY).groupBy("user", session).agg(*measures)
    return grouped.select("user", F.col("w.start").alias("session_start"), "visits", "amount")


def pairs(visits: DataFrame, orders: DataFrame) -> DataFrame:
    """One row per visit and order of the same user within half an hour after it."""
    right = orders.withColumnsRenamed(
        {"event_time": "ordered_at", "user": "whose", "amount": "order_amount"}
    )
    within = "user = whose and ordered_at between event_time and event_time + interval 30 minutes"
    left = visits.withWatermark("event_time", DELAY)
    return left.join(right.withWatermark("ordered_at", DELAY), F.expr(within)).drop("whose")


def upsert(batch: DataFrame, table: str) -> None:
    """MERGE the newest row of each user of a batch, where it is newer than the table's."""
    number = F.row_number().over(
        Window.partitionBy("user").orderBy(F.desc("event_time"), F.desc("visit_id"))
    )
    newest = batch.withColumn("_number", number).where("_number = 1").drop("_number")
    merge = (
        DeltaTable.forPath(batch.sparkSession, table)
        .alias("t")
        .merge(newest.alias("s"), "t.user = s.user")
    )
    merge.whenMatchedUpdateAll("s.event_time > t.event_time").whenNotMatchedInsertAll().execute()


def main() -> None:
    """Bring the table up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=["sessions", "pairs", "newest"])
    parser.add_argument("--lake", required=True)
    parser.add_argument("--table", required=True)
    asked = parser.parse_args()
    spark = (
        SparkSession.builder.appName("kinds_by_hand")
        .config("spark.sql.streaming.stateStore.providerClass", _ROCKS)
        .getOrCreate()
    )
    table = f"{asked.lake}/tables/{asked.table}"
    columns = ("visit_id", "order_id", "event_time", "user", "amount")
    visits, orders = (
        _stream(spark, f"{asked.lake}/tables/{name}", columns) for name in ("visits", "orders")
    )
    stream = {
        "sessions": lambda: sessions(visits),
        "pairs": lambda: pairs(visits, orders),
        "newest": lambda: visits,
    }
    writer = stream[asked.kind]().writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{asked.lake}/_checkpoint_{asked.kind}")
    if asked.kind == "newest":
        if not DeltaTable.isDeltaTable(spark, table):
            made = DeltaTable.create(spark).location(table).addColumns(visits.schema)
            made.property("delta.enableDeletionVectors", "true").execute()
        writer.foreachBatch(lambda batch, _: upsert(batch, table)).start().awaitTermination()
    else:
        writer.format("delta").outputMode("append").start(table).awaitTermination()


def _stream(spark: SparkSession, path: str, columns: tuple[str, ...]) -> DataFrame:
    found = spark.readStream.format("delta").load(path)
    return found.select(*(name for name in columns if name in found.columns))


if __name__ == "__main__":
    main()
