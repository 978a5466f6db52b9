"""The job a careful engineer writes by hand for change events: read, drop what is broken, newest
row wins, MERGE.

    spark-submit --conf spark.driver.extraClassPath=JARS benchmarks/programs/hand_written.py \\
        --shape flights --landing landing --lake lake

It is the yardstick, so it is as short as is sensible: no quarantine, no memory of deleted keys, no
ledger, and no partitions, which made it slower. A table that is there already is taken as it is.
`--tuned` is the same job with the settings that help a small machine; its JVM flags are in
`benchmarks/contenders.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Shape:
    """What one kind of events needs to be drained."""

    schema: str
    good: str
    """Which rows are taken at all."""
    keys: tuple[str, ...]
    sequence: str
    gone: str
    """Condition of a delete, over the columns of the source `s`."""
    tie: str
    computed: Mapping[str, Column] = field(default_factory=dict)


def shapes() -> dict[str, Shape]:
    """The shapes by name; a function, as columns need a session."""
    flights = Shape(
        schema="flight_id string, status string, origin string, dest string, carrier string, tailnum string, "
        "sched_dep timestamp, dep_delay int, arr_delay int, updated_at timestamp",
        good="flight_id is not null and status in ('scheduled', 'departed', 'arrived', 'diverted', 'cancelled', "
        "'withdrawn') and updated_at between '2000-01-01' and current_timestamp() + interval 1 day",
        keys=("flight_id",),
        sequence="updated_at",
        gone="s.status = 'withdrawn'",
        tie="status",
        computed={"flight_month": F.substring("flight_id", 1, 7)},
    )
    changes = Shape(
        schema="order_id bigint, event_date date, op string, seq bigint, status string, customer string, amount int, "
        "updated_at timestamp, note string",
        good="order_id is not null and event_date is not null and seq is not null and op in ('upsert', 'delete')",
        keys=("event_date", "order_id"),
        sequence="seq",
        gone="s.op = 'delete'",
        tie="status",
    )
    return {"flights": flights, "changes": changes}


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
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in TUNED.items() if tuned else ():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def options() -> argparse.ArgumentParser:
    """What a job must be told, whoever merges."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--landing", required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--files", type=int, default=10, help="files per trigger")
    return parser


def events(spark: SparkSession, shape: Shape, landing: str, files: int, table: str) -> DataFrame:
    """The stream of good rows; the table is made if it is not there."""
    found = (
        spark.readStream.schema(shape.schema)
        .option("mode", "DROPMALFORMED")
        .option("maxFilesPerTrigger", files)
        .json(landing)
        .filter(shape.good)
        .withColumns(dict(shape.computed))
    )
    if not DeltaTable.isDeltaTable(spark, table):
        DeltaTable.create(spark).location(table).addColumns(found.schema).execute()
    return found


def newest(batch: DataFrame, shape: Shape) -> DataFrame:
    """The newest row of each key."""
    first = Window.partitionBy(*shape.keys).orderBy(F.desc(shape.sequence), F.desc(shape.tie))
    return batch.withColumn("n", F.row_number().over(first)).filter("n = 1").drop("n")


def conditions(shape: Shape) -> dict[str, str]:
    """Of a MERGE of `s` into `t`: when rows match, and when a match is deleted, updated, and
    another row inserted.
    """
    return {
        "match": " and ".join(f"t.{key} = s.{key}" for key in shape.keys),
        "delete": f"{shape.gone} and s.{shape.sequence} >= t.{shape.sequence}",
        "update": f"s.{shape.sequence} > t.{shape.sequence}",
        "insert": f"not ({shape.gone})",
    }


def upsert(batch: DataFrame, table: str, shape: Shape, partition: str | None = None) -> None:
    """MERGE the newest row of each key, of which the table is told the partitions, if it has
    any.
    """
    on = conditions(shape)
    if partition:
        batch = batch.persist()
        named = ", ".join(f"'{row[0]}'" for row in batch.select(partition).distinct().collect())
        on["match"] += f" and t.{partition} in ({named})"
    (
        DeltaTable.forPath(batch.sparkSession, table)
        .alias("t")
        .merge(newest(batch, shape).alias("s"), on["match"])
        .whenMatchedDelete(on["delete"])
        .whenMatchedUpdateAll(on["update"])
        .whenNotMatchedInsertAll(on["insert"])
        .execute()
    )
    batch.unpersist()


def drain(rows: DataFrame, lake: str, table: str, shape: Shape, mode: str) -> None:
    """Write a stream of rows into a table, which is made if it is not there: `append`, or MERGE of
    each batch.
    """
    written = rows.writeStream.option("checkpointLocation", f"{lake}/_checkpoint").trigger(
        availableNow=True
    )
    if mode == "append":
        written.format("delta").start(table).awaitTermination()
        return
    if not DeltaTable.isDeltaTable(rows.sparkSession, table):
        DeltaTable.create(rows.sparkSession).location(table).addColumns(rows.schema).execute()
    written.foreachBatch(lambda batch, _: upsert(batch, table, shape)).start().awaitTermination()


def main() -> None:
    """Drain the landing directory into `<lake>/tables/<shape>`."""
    parser = options()
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument(
        "--partition",
        help="column by which the table is partitioned, and the MERGE is to be pruned",
    )
    asked = parser.parse_args()
    spark, table, shape = (
        session(asked.tuned),
        f"{asked.lake}/tables/{asked.shape}",
        shapes()[asked.shape],
    )
    found = events(spark, shape, f"{asked.landing}/{asked.shape}", asked.files, table)
    (
        found.writeStream.foreachBatch(
            lambda batch, _: upsert(batch, table, shape, asked.partition)
        )
        .option("checkpointLocation", f"{asked.lake}/_checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
