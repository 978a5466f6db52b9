"""Data frames of rows that Python holds, and persisted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

TEXT, NUMBER, BYTES = pa.string(), pa.int64(), pa.binary()
_SHARE = 8 * 1024**2
"""Bytes per partition, for rows of about equal size. A partition is sent to its task as a whole."""


def relation(
    spark: SparkSession, columns: Mapping[str, pa.DataType], rows: Sequence[Sequence[Any]]
) -> DataFrame:
    """Return a DataFrame of `rows` with `columns` (name to Arrow type), in their order.

    The rows go through Arrow, which the JVM reads. From a list Spark would make an RDD that starts
    Python workers, which takes seconds.
    """
    schema = pa.schema(list(columns.items()))
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)], schema
    )
    if table.nbytes > _SHARE:
        share = max(1, _SHARE * table.num_rows // table.nbytes)
        table = pa.Table.from_batches(table.to_batches(max_chunksize=share), schema)
    return spark.createDataFrame(table)


@contextmanager
def persisted(frame: DataFrame) -> Iterator[None]:
    """Persist the frame in memory and on disk until the context ends."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()
