"""Write Delta tables without Spark: create, append, replace, delete and fence, each in one
commit.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from draindown.lake import directories, formats
from draindown.lake.table import NO_BATCH, Table, stream
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
    table: Table,
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
    if _anew(table).exists:
        return
    if private:
        directories.make(table.path, private=True)
    configuration = dict(_CONFIGURATION)
    if statistics:
        configuration[BOUNDED] = ",".join(statistics)
    DeltaTable.create(
        table.path,
        schema=Schema.from_arrow(schema),
        mode="ignore",
        partition_by=list(partition_by) or None,
        configuration=configuration,
        raise_if_key_not_exists=False,  # deltalake does not know draindown's property
    )


def append(
    table: Table, rows: pa.Table, *, app: tuple[str, int] | None = None, widen: bool = False
) -> bool:
    """Append in one commit. Creates the table, in a separate commit, if it is absent. Return
    whether it wrote.

    `app`, a transaction id and version, makes the call idempotent: it skips a version that the
    table already contains or that a concurrent writer commits first. `widen` adds columns that the
    table lacks; it needs `app`.
    """
    target = _made(table, rows.schema)
    if app is None:
        write_deltalake(target, rows, mode="append")
        return True
    return _write_once(target, rows, app, mode="append", schema_mode="merge" if widen else None)


def fence(table: Table, apps: Sequence[WriterId], note: str) -> bool:
    """Fence the table: commit the newest transaction of each of `apps` again, without rows.

    A write under one of these transaction ids that began before the fence can't commit. `note`
    becomes the commit's `userMetadata`.

    Returns False if deltalake can't write the table because of a writer feature that Spark enabled,
    else True. Raises CommitFailedError if every attempt lost to another writer, or if a commit
    failed for any other reason.
    """
    nothing_else = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    for left in reversed(range(_FENCES)):
        opened = _anew(table).table
        known = {app: opened.transaction_version(app) for app in apps}
        again = [
            Transaction(app, NO_BATCH if version is None else version)
            for app, version in known.items()
        ]
        try:
            opened.create_write_transaction(
                [],
                "append",
                opened.schema(),
                opened.metadata().partition_columns,
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
            if not left or _anew(table).version == opened.version():
                raise
    raise AssertionError("the last try returns or raises")


def clear_unmade(table: Table) -> None:
    """Remove the leftovers of a crash during table creation: a `_delta_log` without commits, and
    nothing beside it.

    Spark's `createIfNotExists` takes such a directory for an existing table, and the next read
    fails. The table's own directory is kept, with its mode.
    """
    is_empty = directories.file_names(table.path) <= {"_delta_log"}
    if is_empty and not _anew(table).exists:
        directories.remove(table.log.home)


def append_query(table: Table, source: Table, sql: str, *, app: tuple[str, int]) -> None:
    """Append the result of a query, in one commit, streaming. `app` as in `append`.

    In `sql`, `t` is the source, and `held` is the table if it exists.
    """
    known = _anew(table)
    held = known.table if known.exists else None
    rows = stream(_anew(source).table, sql, {} if held is None else {"held": held})
    target = _made(table, rows.schema) if held is None else held
    _write_once(target, rows, app, mode="append", schema_mode="merge")


def replace(table: Table, source: Table, *, app: tuple[str, int]) -> None:
    """Overwrite a table with the rows and schema of the source, in one commit. `app` as in
    `append`.
    """
    rows = stream(_anew(source).table, "select * from t")
    _write_once(_made(table, rows.schema), rows, app, mode="overwrite", schema_mode="overwrite")


def _anew(table: Table) -> Table:
    """Return the table as it is now: the one at hand may have been opened before."""
    return Table(table.path)


def _made(table: Table, schema: pa.Schema) -> DeltaTable:
    create(table, schema)
    return _anew(table).table


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


def replace_where(table: Table, rows: pa.Table, where: str) -> None:
    """Replace the rows that match `where` (SQL), in one commit. All of `rows` must match it."""
    if rows.num_rows:
        write_deltalake(_anew(table).table, rows, mode="overwrite", predicate=where)
    else:
        delete(table, where)


def delete(table: Table, where: str) -> None:
    """Delete the rows that match `where` (SQL), in one commit. No-op if the table is absent."""
    known = _anew(table)
    if known.exists:
        known.table.delete(where)


def delete_any(table: Table, where: str) -> None:
    """Delete the rows that match `where` (SQL). Commits nothing if no row matches."""
    if _anew(table).query(f"select 1 from t where {where} limit 1").num_rows:
        delete(table, where)
