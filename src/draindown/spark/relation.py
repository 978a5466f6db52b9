"""Rows that Python holds, as frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

TEXT, NUMBER, BYTES = pa.string(), pa.int64(), pa.binary()


def relation(spark: SparkSession, columns: Mapping[str, pa.DataType], rows: Sequence[Sequence[Any]]) -> DataFrame:
    """`rows` with these columns, in their order.

    By way of Arrow, which the JVM reads itself: of a list Spark makes an RDD that starts Python workers, for seconds.
    """
    schema = pa.schema(list(columns.items()))
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    return spark.createDataFrame(pa.table([pa.array(*one) for one in zip(values, schema.types, strict=True)], schema))
