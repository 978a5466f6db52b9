"""The job a careful engineer writes by hand for a topic of change events: a stream, `from_json`,
append or MERGE.

    spark-submit --conf spark.driver.extraClassPath=JARS benchmarks/programs/kafka_job.py --mode
        upsert \\ --servers HOST:PORT --topic changes --offsets 250000 --shape changes --landing -
        --lake lake

As `hand_written.py` it has no quarantine, no memory of deleted keys, no ledger and no raw records.
"""

from __future__ import annotations

from hand_written import drain, options, session, shapes
from pyspark.sql import functions as F


def main() -> None:
    """Drain the topic into `<lake>/tables/<shape>`."""
    parser = options()
    parser.add_argument("--mode", choices=["append", "upsert"], required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--offsets", type=int, required=True, help="offsets per trigger")
    asked = parser.parse_args()
    spark, shape, table = (
        session(tuned=True),
        shapes()[asked.shape],
        f"{asked.lake}/tables/{asked.shape}",
    )
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", asked.servers)
        .option("subscribe", asked.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", asked.offsets)
        .load()
    )
    parsed = records.select(F.from_json(F.col("value").cast("string"), shape.schema).alias("row"))
    found = parsed.select("row.*").filter(shape.good)
    drain(found, asked.lake, table, shape, asked.mode)


if __name__ == "__main__":
    main()
