"""Write Delta tables without Spark: create, append, replace, delete and fence, each in one
commit.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError

from draindown.lake import formats
from draindown.lake.table import NO_BATCH, Table, opened, stream
from draindown.lake.transactions import WriterId

_FENCES = 10  # attempts; an attempt fails if another writer commits first
_UNSUPPORTED = (
    "Unsupported"  # in deltalake's error for a table whose writer features it does not support
)
BOUNDED = "delta.dataSkippingStatsColumns"
"""The table property that lists the columns with min/max statistics."""
ROWS_BY = "draindown.rows"
"""The table property with what names and orders the rows of a table with keys. See
`spark.targets.identity`.
"""
_CONFIGURATION: dict[str, str | None] = {
    formats.PROPERTY: str(formats.FORMAT),
    # a stream that restarts from version 1 needs every version
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}


def create(
    path: str,
    schema: pa.Schema,
    *,
    statistics: tuple[str, ...] = (),
    private: bool = False,
    partition_by: tuple[str, ...] = (),
) -> None:
    """Create an empty table at version 0. No-op if the table exists.

    `statistics`: columns with min/max statistics; Delta's default if empty. `private`: only the
    owner can access the table's directory.
    """
    if Table(path).exists:
        return
    if private:
        make_private(path)
    configuration = dict(_CONFIGURATION)
    if statistics:
        configuration[BOUNDED] = ",".join(statistics)
    DeltaTable.create(
        path,
        schema=Schema.from_arrow(schema),
        mode="ignore",
        partition_by=list(partition_by) or None,
        configuration=configuration,
        raise_if_key_not_exists=False,  # deltalake does not know draindown's property
    )


def make_private(path: str) -> None:
    """Create the table's directory with access for its owner only. No-op if it exists."""
    Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)


def append(
    path: str, table: pa.Table, *, app: tuple[str, int] | None = None, widen: bool = False
) -> bool:
    """Append in one commit. Creates the table, in a separate commit, if it is absent. Return
    whether it wrote.

    `app`, a transaction id and version, makes the call idempotent: it skips a version that the
    table already contains or that a concurrent writer commits first. `widen` adds columns that the
    table lacks; it needs `app`.
    """
    target = _made(path, table.schema)
    if app is None:
        write_deltalake(target, table, mode="append")
        return True
    return _write_once(target, table, app, mode="append", schema_mode="merge" if widen else None)


def fence(path: str, apps: Sequence[WriterId], note: str) -> bool:
    """Fence the table: commit the newest transaction of each of `apps` again, without rows.

    A write under one of these transaction ids that began before the fence can't commit. `note`
    becomes the commit's `userMetadata`.

    Returns False if deltalake can't write the table because of a writer feature that Spark enabled,
    else True. Raises CommitFailedError if every attempt lost to another writer, or if a commit
    failed for any other reason.
    """
    nothing_else = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    for left in reversed(range(_FENCES)):
        table = opened(path)
        known = {app: table.transaction_version(app) for app in apps}
        again = [
            Transaction(app, NO_BATCH if version is None else version)
            for app, version in known.items()
        ]
        try:
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": note}, app_transactions=again
                ),
                post_commithook_properties=nothing_else,
            )
            return True
        except CommitFailedError as error:
            if _UNSUPPORTED in str(error):
                return False
            # retry if a commit in flight came first, so that the fence follows it; raise any other
            # failure
            if not left or Table(path).version == table.version():
                raise
    raise AssertionError("the last try returns or raises")


def clear_unmade(path: str) -> None:
    """Remove the leftovers of a crash during table creation: a `_delta_log` without commits, and
    nothing beside it.

    Spark's `createIfNotExists` takes such a directory for an existing table, and the next read
    fails. The table's own directory is kept, with its mode.
    """
    home, log = Path(path), Path(path, "_delta_log")
    if log.is_dir() and not Table(path).exists and [*home.iterdir()] == [log]:
        shutil.rmtree(log)


def append_query(path: str, source: str, sql: str, *, app: tuple[str, int]) -> None:
    """Append the result of a query, in one commit, streaming. `app` as in `append`.

    In `sql`, `t` is the table at `source`, and `held` is the table at `path` if it exists.
    """
    held = opened(path) if Table(path).exists else None
    rows = stream(opened(source), sql, {} if held is None else {"held": held})
    target = _made(path, rows.schema) if held is None else held
    _write_once(target, rows, app, mode="append", schema_mode="merge")


def replace(path: str, source: str, *, app: tuple[str, int]) -> None:
    """Overwrite the table at `path` with the rows and schema of the table at `source`, in one
    commit.

    `app` as in `append`.
    """
    rows = stream(opened(source), "select * from t")
    _write_once(_made(path, rows.schema), rows, app, mode="overwrite", schema_mode="overwrite")


def _made(path: str, schema: pa.Schema) -> DeltaTable:
    create(path, schema)
    return opened(path)


def _write_once(
    target: DeltaTable,
    rows: pa.Table | pa.RecordBatchReader,
    app: tuple[str, int],
    *,
    mode: Literal["append", "overwrite"],
    schema_mode: Literal["merge", "overwrite"] | None = None,
) -> bool:
    """Write under a transaction id and return whether it wrote.

    The write uses the version of the table in which the id was looked up. So a concurrent commit of
    the same id conflicts with it.
    """
    if _holds(target, app):
        return False
    once = CommitProperties(app_transactions=[Transaction(*app)])
    try:
        write_deltalake(target, rows, mode=mode, schema_mode=schema_mode, commit_properties=once)
    except CommitFailedError:
        target.update_incremental()
        if _holds(target, app):
            return False
        raise
    return True


def _holds(table: DeltaTable, app: tuple[str, int]) -> bool:
    known = table.transaction_version(app[0])
    return known is not None and known >= app[1]


def replace_where(path: str, table: pa.Table, where: str) -> None:
    """Replace the rows that match `where` (SQL), in one commit. All rows of `table` must match
    it.
    """
    if table.num_rows:
        write_deltalake(opened(path), table, mode="overwrite", predicate=where)
    else:
        delete(path, where)


def delete(path: str, where: str) -> None:
    """Delete the rows that match `where` (SQL), in one commit. No-op if the table is absent."""
    if Table(path).exists:
        opened(path).delete(where)


def delete_any(path: str, where: str) -> None:
    """Delete the rows that match `where` (SQL). Commits nothing if no row matches."""
    if Table(path).query(f"select 1 from t where {where} limit 1").num_rows:
        delete(path, where)
