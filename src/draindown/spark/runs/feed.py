"""Switch on what the readers of a table need: its change feed, and statistics of the columns that they look by."""

from __future__ import annotations

from pyspark.sql import SparkSession

from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.runs.request import Request
from draindown.sources.tables import readers
from draindown.spark.sql import literal, quoted


def switch_on(request: Request, spark: SparkSession, layout: FlowLayout) -> None:
    """Give the table of the request's flow what its readers need, in one commit. No-op if it has it, or has no readers.

    Changes of earlier commits can't be read: a reader begins with a fill at a version that was published later. A
    staged rebuild is left alone: its table is read by nobody.
    """
    log = TableLog(layout.table)
    if layout.staged or not readers.readers(request) or not log.exists:
        return
    owed = readers.owed(request, log)
    if owed:
        said = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in owed.items())
        spark.sql(f"ALTER TABLE delta.{quoted(layout.table)} SET TBLPROPERTIES ({said})")
