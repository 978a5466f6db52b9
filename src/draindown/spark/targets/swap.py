"""A rebuilt table takes the place of the live one: its rows in one commit, then the properties that
say of them.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.lake import delta
from draindown.lake.table import Table
from draindown.spark.session import configured
from draindown.spark.sql import quoted
from draindown.spark.targets import delta_target, identity, partitioning, restricted
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.table_schema import bounded


def swap(spark: SparkSession, writer: TableWriter, metadata: str) -> None:
    """Overwrite the live table with the staged table's rows, schema and partitioning, in one
    commit. Idempotent.

    Older versions of the live table stay readable. `writer` identifies the last batch of the staged
    table.
    """
    path, flow = writer.layout.live.tables.target.path, writer.flow
    rows = spark.read.format("delta").load(writer.layout.tables.target.path)
    if not Table(path).exists:
        delta_target.create(spark, path, rows.schema, flow)
    statistics = bounded(rows.schema, flow)
    # it may name columns that the overwrite drops
    if Table(path).properties.get(delta.BOUNDED, "") != statistics:
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} UNSET TBLPROPERTIES IF EXISTS ('{delta.BOUNDED}')"
        )
    partitioning.forget(spark, path, writer.layout.tables.target.path)
    how = {"overwriteSchema": "true", "partitionOverwriteMode": "static", "optimizeWrite": "true"}
    with (
        configured(spark, writer.settings("rows", metadata)),
        restricted.named(writer.layout, path),
    ):
        written = rows.write.format("delta").mode("overwrite").options(**how)
        written.partitionBy(*flow.target.partition_by).save(path)
    take_properties(spark, path, writer.layout.tables.target.path, flow)


def take_properties(
    spark: SparkSession, path: str, source: str, flow: FlowSpec | DerivedFlow
) -> None:
    """Say of the table at `path` what is said of the rebuilt one at `source`, whose rows it has.
    Idempotent.
    """
    partitioning.take(spark, path, source)
    identity.take(spark, path, source)
    keep_bounds(spark, path, flow)


def keep_bounds(spark: SparkSession, path: str, flow: FlowSpec | DerivedFlow) -> None:
    """Set the table's statistics columns to keys, sequence and `_changed_at`. No-op if they are set
    already.
    """
    statistics = bounded(spark.read.format("delta").load(path).schema, flow)
    if statistics and Table(path).properties.get(delta.BOUNDED) != statistics:
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{delta.BOUNDED}' = '{statistics}')"
        )
