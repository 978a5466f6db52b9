"""The hand-written job again, with the reader of Spark and the writers of koheesio, an ETL
framework on Spark.

    spark-submit --conf spark.driver.extraClassPath=JARS benchmarks/programs/koheesio_job.py \\
        --shape changes --landing landing --lake lake

The framework has steps and writers, and keeps no account; which row of a key is newest is the
user's to say.
"""

from __future__ import annotations

from hand_written import conditions, events, newest, options, session, shapes
from koheesio.spark.writers import BatchOutputMode
from koheesio.spark.writers.delta import DeltaTableWriter
from koheesio.spark.writers.stream import ForEachBatchStreamWriter, Trigger
from pyspark.sql import DataFrame


def main() -> None:
    """Drain the landing directory into `<lake>/tables/<shape>`."""
    asked = options().parse_args()
    spark, table, shape = (
        session(tuned=False),
        f"{asked.lake}/tables/{asked.shape}",
        shapes()[asked.shape],
    )
    found = events(spark, shape, f"{asked.landing}/{asked.shape}", asked.files, table)
    # its writers know tables by name
    spark.sql(f"create table {asked.shape} using delta location '{table}'")
    on = conditions(shape)
    merge = [
        {"clause": "whenMatchedDelete", "condition": on["delete"]},
        {"clause": "whenMatchedUpdateAll", "condition": on["update"]},
        {"clause": "whenNotMatchedInsertAll", "condition": on["insert"]},
    ]
    names = {"source_alias": "s", "target_alias": "t"}

    def write(batch: DataFrame, _: int) -> None:
        how = {"merge_builder": merge, "merge_cond": on["match"], **names}
        writer = DeltaTableWriter(
            table=asked.shape, output_mode=BatchOutputMode.MERGE, output_mode_params=how
        )
        writer.write(newest(batch, shape))

    stream = ForEachBatchStreamWriter(
        df=found,
        checkpoint_location=f"{asked.lake}/_checkpoint",
        batch_function=write,
        trigger=Trigger(available_now=True),
    )
    stream.execute()
    stream.await_termination()


if __name__ == "__main__":
    main()
