"""Few rows of a side table, written from this process: a Delta write of Spark is two jobs and four
plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from draindown.base.errors import TransientError
from draindown.lake import delta
from draindown.lake.table import Table
from draindown.lake.transactions import WriterId

FEW = 1_000
"""Most rows: each may hold some 64 KiB of a record, which passes through the memory of this
process.
"""
_PLAIN = 2
"""Newest protocol of writers without features such as deletion vectors, column mapping or times
without a zone.
"""


def written(rows: DataFrame, path: str, app: tuple[WriterId, int], number: int) -> bool:
    """Append the `number` rows of `rows` under the transaction id and version `app`, and return
    True.

    Return False, with nothing written, where Spark has to: there are many rows or none, the table
    does not exist yet, has other columns or holds rows of an earlier attempt, or it has features
    that this process may not write.

    Raises TransientError `lease-lost` if another driver wrote them since this one looked.
    """
    if not 0 < number <= FEW or not _takes(path, rows.columns, *app):
        return False
    if not delta.append(Table(path), _in_utc(rows.toArrow()), app=app):
        raise TransientError(
            "lease-lost",
            tried=f"write rows of batch {app[1]} to {path}",
            found="another driver wrote this batch's rows there meanwhile",
            changed="nothing of this batch is in the table",
            next="wait: the other driver goes on, or the next run does",
        )
    return True


def _takes(path: str, columns: Sequence[str], writer: WriterId, version: int) -> bool:
    log = Table(path)
    if (
        not log.exists
        or log.table.protocol().min_writer_version > _PLAIN
        or set(columns) != set(log.column_types)
    ):
        return False
    held = log.last(writer)
    return held is None or held < version


def _in_utc(rows: pa.Table) -> pa.Table:
    """Return the rows with the zone of Delta's timestamps. Spark gives them the session's; the
    moments are the same.
    """
    schema = pa.schema([pa.field(one.name, _zoned(one.type), one.nullable) for one in rows.schema])
    return rows.cast(schema)


def _zoned(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(kind) and kind.tz else kind
