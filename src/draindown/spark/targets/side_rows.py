"""Few rows of a side table, written from this process: a Delta write of Spark is two jobs and four plans."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from draindown.lake import delta
from draindown.lake.table_log import TableLog
from draindown.lake.transactions import WriterId

FEW = 1_000
"""Most rows: each may hold 64 KiB of a record, which passes through the memory of this process."""


def written(rows: DataFrame, path: str, app: tuple[WriterId, int], number: int) -> bool:
    """Append the `number` rows of `rows` under the transaction id and version `app`, and return True.

    Return False, with nothing written, where Spark has to: there are many rows or none, the table does not exist yet or
    holds rows of an earlier attempt, or it has features that this process may not write.
    """
    if not 0 < number <= FEW or not _takes(path, *app):
        return False
    return delta.append(path, _in_utc(rows.toArrow()), app=app)


def _takes(path: str, writer: WriterId, version: int) -> bool:
    log = TableLog(path)
    if not log.exists:
        return False
    held = log.last(writer)
    return (held is None or held < version) and not log.table.protocol().writer_features


def _in_utc(rows: pa.Table) -> pa.Table:
    """Return the rows with the zone of Delta's timestamps. Spark gives them the session's; the moments are the same."""
    schema = pa.schema([pa.field(one.name, _zoned(one.type), one.nullable) for one in rows.schema])
    return rows.cast(schema)


def _zoned(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind
