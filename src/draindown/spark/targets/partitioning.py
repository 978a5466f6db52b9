"""How a table's partition values were computed from its keys: only a table whose rows all agree may
be pruned by them.

    draindown.partitions    a table property: by column, a hash of the computation; "" once rows of another one came

It is written when the table is made, and when a rebuild takes its place. A batch that computes a
column in another way writes "" before its rows, for good: if the earlier computation comes back,
the rows in between are where they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import SparkSession

from draindown.lake.table import Table
from draindown.spark.sql import literal, quoted

PROPERTY = "draindown.partitions"
_MIXED = ""


def proven(log: Table, computed: Mapping[str, str]) -> list[str]:
    """Return the columns of `computed` by whose values a table may be pruned: all, if there is no
    table.

    `computed`: by partition column, how a batch computes it from the keys alone.
    """
    if not computed or not log.exists:
        return list(computed)
    held = _held(log)
    return [name for name, how in computed.items() if held.get(name) == how]


def stored(computed: Mapping[str, str]) -> str:
    """Return the property of a table that a batch makes."""
    return json.dumps(computed, sort_keys=True)


def keep(spark: SparkSession, log: Table, computed: Mapping[str, str]) -> None:
    """Write down that rows of another computation come, before they do. No-op if all columns are
    computed as before.
    """
    held = _held(log)
    other = {name: _MIXED for name, how in held.items() if how not in (_MIXED, computed.get(name))}
    if other:
        _write(spark, log.path, held | other)


def forget(spark: SparkSession, path: str, source: str) -> None:
    """Prune the table at `path` no longer, before the rows of the table at `source` replace its
    own.

    No-op if those are computed alike.
    """
    if PROPERTY in (log := Table(path)).properties and _held(log) != _held(Table(source)):
        spark.sql(f"ALTER TABLE delta.{quoted(path)} UNSET TBLPROPERTIES IF EXISTS ('{PROPERTY}')")


def take(spark: SparkSession, path: str, source: str) -> None:
    """Let the table at `path` be pruned as the one at `source`, whose rows it has."""
    if (held := _held(Table(source))) and held != _held(Table(path)):
        _write(spark, path, held)


def _held(log: Table) -> dict[str, str]:
    return dict(json.loads(log.properties.get(PROPERTY, "{}")))


def _write(spark: SparkSession, path: str, held: Mapping[str, str]) -> None:
    said = literal(stored(held))
    spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{PROPERTY}' = {said})")
