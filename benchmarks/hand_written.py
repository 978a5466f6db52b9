"""The job a careful engineer writes by hand for the demo's events: read, drop what is broken, newest row wins, MERGE.

    spark-submit --conf spark.driver.extraClassPath=JARS benchmarks/hand_written.py --landing landing --lake lake

It is the yardstick, so it is as short as is sensible: no quarantine, no memory of deleted keys, no ledger, and no
partitions, which made it slower.
`--tuned` is the same job with the settings that help a small machine; its JVM flags are in `bench.py`.
"""

from __future__ import annotations

import argparse

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

SCHEMA = (
    "flight_id string, status string, origin string, dest string, carrier string, tailnum string, "
    "sched_dep timestamp, dep_delay int, arr_delay int, updated_at timestamp"
)
STATUSES = "'scheduled', 'departed', 'arrived', 'diverted', 'cancelled', 'withdrawn'"
GOOD = (
    f"flight_id is not null and status in ({STATUSES}) "
    "and updated_at between '2000-01-01' and current_timestamp() + interval 1 day"
)
TUNED = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}


def session(tuned: bool) -> SparkSession:
    """A session with Delta; everything else as Spark has it unless tuned."""
    builder = (
        SparkSession.builder.appName("hand_written")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in TUNED.items() if tuned else ():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def upsert(batch: DataFrame, table: str) -> None:
    """MERGE the newest row of each key."""
    newest = Window.partitionBy("flight_id").orderBy(F.desc("updated_at"), F.desc("status"))
    source = batch.withColumn("n", F.row_number().over(newest)).filter("n = 1").drop("n")
    (
        DeltaTable.forPath(batch.sparkSession, table)
        .alias("t")
        .merge(source.alias("s"), "t.flight_id = s.flight_id")
        .whenMatchedDelete("s.status = 'withdrawn' and s.updated_at >= t.updated_at")
        .whenMatchedUpdateAll("s.updated_at > t.updated_at")
        .whenNotMatchedInsertAll("s.status <> 'withdrawn'")
        .execute()
    )


def main() -> None:
    """Drain the landing directory into `<lake>/tables/flights`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--landing", required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--files", type=int, default=10, help="files per trigger")
    parser.add_argument("--tuned", action="store_true")
    asked = parser.parse_args()
    spark, table = session(asked.tuned), f"{asked.lake}/tables/flights"
    events = (
        spark.readStream.schema(SCHEMA)
        .option("mode", "DROPMALFORMED")
        .option("maxFilesPerTrigger", asked.files)
        .json(f"{asked.landing}/flights")
        .filter(GOOD)
        .withColumn("flight_month", F.substring("flight_id", 1, 7))
    )
    DeltaTable.createIfNotExists(spark).location(table).addColumns(events.schema).execute()
    (
        events.writeStream.foreachBatch(lambda batch, _: upsert(batch, table))
        .option("checkpointLocation", f"{asked.lake}/_checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
