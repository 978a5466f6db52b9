"""Switch on the change feed of a table that derived flows read."""

from __future__ import annotations

from pyspark.sql import SparkSession

from draindown.lake.layout import FlowLayout
from draindown.runs.request import Request
from draindown.sources.tables import readers
from draindown.sources.tables.upstream import FEED
from draindown.spark.sql import quoted

LOG_RETENTION = "delta.logRetentionDuration"
_KEPT = "interval 90 days"
"""How long the log of a table with readers is kept. Delta's own log cleanup knows no readers."""


def switch_on(request: Request, spark: SparkSession, state: FlowLayout) -> None:
    """Give the table of the request's flow what its readers need, in one commit. No-op if it has it, or has no readers.

    Changes of earlier commits can't be read: a reader begins with a fill at a version that was published later.
    """
    if readers.lacking(request, state):
        properties = f"'{FEED}' = 'true', '{LOG_RETENTION}' = '{_KEPT}'"
        spark.sql(f"ALTER TABLE delta.{quoted(state.table)} SET TBLPROPERTIES ({properties})")
