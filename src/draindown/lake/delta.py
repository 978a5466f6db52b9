"""Delta without Spark, for writing: tables are made, appended to, replaced and fenced, each in one commit."""

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
from draindown.lake.table_log import NO_BATCH, TableLog, opened, stream
from draindown.lake.transactions import WriterId

_FENCES = 10  # tries, of which each that fails is a commit by someone else
_UNSUPPORTED = "Unsupported"  # what deltalake says of a table that it doesn't know how to write
BOUNDED = "delta.dataSkippingStatsColumns"
"""The property that names the columns whose bounds a table keeps."""
_CONFIGURATION: dict[str, str | None] = {
    formats.PROPERTY: str(formats.FORMAT),
    # a stream that starts again from version 1 needs every version
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}


def create(path: str, schema: pa.Schema, *, statistics: tuple[str, ...] = (), private: bool = False) -> None:
    """Make an empty table where there is none: version 0.

    `statistics` names the columns it keeps bounds of (none named: all); `private`: only the owner gets at its files.
    """
    if TableLog(path).exists:
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
        configuration=configuration,
        raise_if_key_not_exists=False,  # a property of ours is none that it knows
    )


def make_private(path: str) -> None:
    """Make the table's directory, where there is none, so that only its owner gets at its files."""
    Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)


def append(path: str, table: pa.Table, *, app: tuple[str, int] | None = None, widen: bool = False) -> bool:
    """Append in one commit; creates the table in a commit of its own where there is none.

    `app` makes it idempotent: an app's version that the table already holds, or gets meanwhile, is skipped. `widen`
    adds columns that the table lacks; with `app` only. Returns whether it wrote.
    """
    target = _made(path, table.schema)
    if app is None:
        write_deltalake(target, table, mode="append")
        return True
    return _write_once(target, table, app, mode="append", schema_mode="merge" if widen else None)


def fence(path: str, apps: Sequence[WriterId], note: str) -> bool:
    """Commit the newest transaction of each of `apps` once more, and nothing else: whoever began a write in the name of
    one of them before can't commit it. `note` becomes the commit's `userMetadata`.

    Returns whether it could: deltalake does not write tables with every feature that Spark gives them.
    """
    nothing_else = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    for left in reversed(range(_FENCES)):
        table = opened(path)
        known = {app: table.transaction_version(app) for app in apps}
        again = [Transaction(app, NO_BATCH if version is None else version) for app, version in known.items()]
        try:
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=CommitProperties(custom_metadata={"userMetadata": note}, app_transactions=again),
                post_commithook_properties=nothing_else,
            )
            return True
        except CommitFailedError as error:
            if _UNSUPPORTED in str(error):
                return False
            # one that was in flight came first: the next fence stands after it; any other failure stays what it is
            if not left or TableLog(path).version == table.version():
                raise
    raise AssertionError("the last try returns or raises")


def clear_unmade(path: str) -> None:
    """Remove what a creation that died left: a log without a commit, and nothing beside it.

    Delta takes such a directory for a table that is there, makes none, and then finds none.
    """
    home = Path(path)
    if not TableLog(path).exists and home.is_dir() and {entry.name for entry in home.iterdir()} <= {"_delta_log"}:
        shutil.rmtree(home)


def append_query(path: str, source: str, sql: str, *, app: tuple[str, int]) -> None:
    """Append what a query over the table at `source` gives (`t` there, and the table at `path`, if there is one, as
    `held`), in one commit and without holding it in memory. `app` as in `append`."""
    held = opened(path) if TableLog(path).exists else None
    rows = stream(opened(source), sql, {} if held is None else {"held": held})
    target = _made(path, rows.schema) if held is None else held
    _write_once(target, rows, app, mode="append", schema_mode="merge")


def replace(path: str, source: str, *, app: tuple[str, int]) -> None:
    """Put the rows and the columns of the table at `source` in the place of those at `path`, in one commit."""
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
    """Write under a transaction id, onto the version in which it is looked for, so that one more since is seen."""
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


def delete(path: str, where: str) -> None:
    """Delete rows, in one commit. Nothing happens where there is no table."""
    if TableLog(path).exists:
        opened(path).delete(where)


def delete_any(path: str, where: str) -> None:
    """Delete the rows where `where` (SQL) is true, and commit nothing if there are none."""
    if TableLog(path).query(f"select 1 from t where {where} limit 1").num_rows:
        delete(path, where)
