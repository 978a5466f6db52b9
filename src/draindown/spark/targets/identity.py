"""What names and orders the rows of a table with keys, which all of its rows agree on.

    draindown.rows    a table property: keys and sequence_by, of a table that such rows were written to

A batch that compared its records by other columns would leave the rows of the keys that were beside its own.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from draindown.lake.table_log import TableLog
from draindown.spark.sql import literal, quoted
from draindown.spec.derived import DerivedFlow
from draindown.spec.landing import FlowSpec
from draindown.spec.target_kinds import UPSERT

PROPERTY = "draindown.rows"


def stored(flow: FlowSpec | DerivedFlow) -> str | None:
    """Return the property of a table that a flow makes; None where batches append, or write down what they go by."""
    if not isinstance(flow, FlowSpec) or flow.target.kind is not UPSERT:
        return None
    return json.dumps({"keys": list(flow.target.keys), "sequence_by": list(flow.target.sequence_by)})


def is_known(table: TableLog) -> bool:
    """Return whether a table says what its rows go by, and so those of the deletes that are remembered beside it."""
    return PROPERTY in table.properties


def differing(table: TableLog, flow: FlowSpec | DerivedFlow) -> list[str]:
    """Return what differs between the rows of a table and those of a flow, in words.

    Nothing of a table without the property: one that an earlier version made, or whose swap was cut short.
    """
    said, held = stored(flow), table.properties.get(PROPERTY)
    if said is None or held is None:
        return []
    was, now = json.loads(held), json.loads(said)
    return [
        f"{name}: {', '.join(was[name]) or 'none'} of the table's rows, {', '.join(columns) or 'none'} in the spec"
        for name, columns in now.items()
        if columns != was[name]
    ]


def forget(spark: SparkSession, path: str, source: str) -> None:
    """Know nothing of the table at `path`, before the rows of the table at `source` replace its own.

    No-op if those are named alike.
    """
    held = TableLog(path).properties.get(PROPERTY)
    if held is not None and held != TableLog(source).properties.get(PROPERTY):
        spark.sql(f"ALTER TABLE delta.{quoted(path)} UNSET TBLPROPERTIES IF EXISTS ('{PROPERTY}')")


def take(spark: SparkSession, path: str, source: str) -> None:
    """Say of the table at `path` what is said of the one at `source`, whose rows it has."""
    said = TableLog(source).properties.get(PROPERTY)
    if said is not None and said != TableLog(path).properties.get(PROPERTY):
        spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{PROPERTY}' = {literal(said)})")
