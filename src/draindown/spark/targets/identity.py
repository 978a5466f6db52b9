"""What names and orders the rows of a table with keys, which all of its rows agree on.

    draindown.rows    a table property: keys and sequence_by, of a table that such rows were written to

A batch that compared its records by other columns would leave the rows of the keys that were beside
its own.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.target_kinds import APPEND, UPSERT
from draindown.lake import delta
from draindown.lake.table import Table
from draindown.spark.sql import literal, quoted

PROPERTY = delta.ROWS_BY


def stored(flow: FlowSpec | DerivedFlow) -> str | None:
    """Return the property of a table that a flow makes; None where batches append, or write down
    what they go by.
    """
    if not isinstance(flow, FlowSpec) or flow.target.kind is not UPSERT:
        return None
    return json.dumps(
        {"keys": list(flow.target.keys), "sequence_by": list(flow.target.sequence_by)}
    )


def is_known(table: Table) -> bool:
    """Return whether a table says what its rows go by, and so those of the deletes that are
    remembered beside it.
    """
    return PROPERTY in table.properties


def differing(table: Table, flow: FlowSpec | DerivedFlow) -> list[str]:
    """Return what differs between the rows of a table and those of a flow, in words.

    Nothing of a table without the property, whose making was cut short, and of kinds that show
    in its columns (see `table_schema.other_form`).
    """
    said, held = stored(flow), table.properties.get(PROPERTY)
    if held is not None and flow.target.kind is APPEND:
        return [f"the table has keys, {', '.join(json.loads(held)['keys'])}, and the spec has none"]
    if said is None or held is None:
        return []
    was, now = json.loads(held), json.loads(said)
    return [
        f"{name}: {', '.join(was[name]) or 'none'} of the table's rows, {', '.join(columns) or 'none'} in the spec"
        for name, columns in now.items()
        if columns != was[name]
    ]


def take(spark: SparkSession, path: str, source: str) -> None:
    """Say of the table at `path` what is said of the one at `source`, whose rows it has, or nothing
    like it.

    Not before it has them: rows of earlier keys would be taken for rows of the new ones.
    """
    if not Table(source).exists:
        return
    said, held = (Table(table).properties.get(PROPERTY) for table in (source, path))
    if said is None and held is not None:
        spark.sql(f"ALTER TABLE delta.{quoted(path)} UNSET TBLPROPERTIES IF EXISTS ('{PROPERTY}')")
    elif said is not None and said != held:
        spark.sql(
            f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{PROPERTY}' = {literal(said)})"
        )
