"""Frames of rows that Python holds."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from draindown.spark.frames import BYTES, NUMBER, TEXT, relation


def test_rows_arrive_as_they_are_in_their_order(spark: SparkSession) -> None:
    rows = [("ü\u0000'\"\\${env:HOME}", -1, b"\xff\x00"), (None, 2**62, None), ("", None, b"")]
    frame = relation(spark, {"a b": TEXT, "n": NUMBER, "raw": BYTES}, rows)
    assert [tuple(row) for row in frame.collect()] == rows
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "string",
        "bigint",
        "binary",
    ]


def test_no_row_is_a_frame_too(spark: SparkSession) -> None:
    frame = relation(spark, {"nested": pa.struct({"a": TEXT}), "n": NUMBER}, ())
    assert frame.collect() == []
    assert frame.schema.simpleString() == "struct<nested:struct<a:string>,n:bigint>"


def test_few_are_part_of_the_plan_and_many_are_shared_out(spark: SparkSession) -> None:
    """Of a list it would make an RDD that starts Python workers: processes that import Spark, for
    seconds.
    """
    many = relation(spark, {"n": NUMBER}, [(number,) for number in range(20_000)])
    assert many.count() == 20_000
    assert many._jdf.queryExecution().executedPlan().nodeName() == "LocalTableScan"
    # 30 MB, as a replay may have them
    large = relation(spark, {"raw": TEXT}, [("x" * 60_000,)] * 500)
    assert large.count() == 500
    assert large._jdf.queryExecution().executedPlan().nodeName() != "LocalTableScan"
    assert large.rdd.getNumPartitions() == 4
    listed = spark.createDataFrame([(1,)], "n long")
    assert listed._jdf.queryExecution().executedPlan().nodeName() != "LocalTableScan"
