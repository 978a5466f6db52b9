"""The one place that reads or appends Delta tables without Spark. Right with deletion vectors: every read is a query.

Neither pandas nor duckdb is imported here, and pyarrow only imports pandas when a timestamp becomes a Python object:
queries that an idle plan runs ask for numbers instead (`to_unixtime`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError

from draindown.base.formatting import shortened
from draindown.lake import formats

_FENCES = 10  # tries, of which each that fails is a commit by someone else
_UNSUPPORTED = "Unsupported"  # what deltalake says of a table that it doesn't know how to write
_NOTHING_YET = -1
"""Transaction version of a fence before the first batch."""
_NEWEST = 20  # commits that a power cut may have left empty
BOUNDED = "delta.dataSkippingStatsColumns"
"""The property that names the columns whose bounds a table keeps."""
_CONFIGURATION: dict[str, str | None] = {
    formats.PROPERTY: str(formats.FORMAT),
    # a stream that starts again from version 1 needs every version
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
}


def exists(path: str) -> bool:
    """Whether there is a Delta table at `path`."""
    return DeltaTable.is_deltatable(path)


def damage(path: str) -> str | None:
    """Why the table can't be trusted, in words: an empty commit among the newest, or a log that can't be read."""
    log = Path(path) / "_delta_log"
    commits = sorted(log.glob("*.json"))[-_NEWEST:]
    empty = [commit.name for commit in commits if commit.stat().st_size == 0]
    if empty:
        return f"commit {empty[0]} is empty"
    try:
        _ = exists(path) and _open(path)
    except DeltaError as error:
        return f"its log can't be read: {shortened(str(error))}"
    return None


def version(path: str) -> int:
    """The newest version of the table."""
    return _open(path).version()


def table_id(path: str, version: int | None = None) -> str:
    """The id the table got when it was made: another table at the same path has another."""
    return str(_open(path, version).metadata().id)


def partition_columns(path: str) -> list[str]:
    """The columns the table is partitioned by, in order."""
    return list(_open(path).metadata().partition_columns)


def properties(path: str) -> dict[str, str]:
    """The table's properties."""
    return dict(_open(path).metadata().configuration)


def size(path: str) -> int:
    """Bytes of the files that the newest version consists of."""
    return sum(file_sizes(path))


def file_sizes(path: str) -> list[int]:
    """Bytes of each file that the newest version consists of."""
    return [file["size_bytes"] for file in version_and_files(path)[1]]


def version_and_files(path: str, columns: Iterable[str] = ()) -> tuple[int, list[dict[str, Any]]]:
    """The newest version, and of each of its files what Delta's log says: `size_bytes`, `num_records`, and of the
    columns `partition.NAME`, `min.NAME` and `max.NAME`.

    What it doesn't say is missing or None; so are days that Python doesn't have.
    """
    told = {f"{what}.{name}" for name in columns for what in ("partition", "min", "max")}
    wanted = {"size_bytes", "num_records", *told}
    table = _open(path)
    adds = added_files(table)
    found: list[dict[str, Any]] = [{} for _ in range(adds.num_rows)]
    for name in wanted.intersection(adds.column_names):
        with suppress(OverflowError):  # a date before the year 1, or after 9999
            for file, value in zip(found, adds[name].to_pylist(), strict=True):
                file[name] = value
    return table.version(), found


def added_files(table: DeltaTable) -> pa.Table:
    """What the log says of each file of an opened table, as it says it: `path`, `size_bytes`, `partition.NAME`..."""
    # not pa.table(...): it imports pandas, which a plan must not wait for
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def column_types(path: str) -> dict[str, Any]:
    """Delta's types by column, in the table's order: names of plain types, the JSON of others."""
    return {field["name"]: field["type"] for field in json.loads(_open(path).schema().to_json())["fields"]}


def query(path: str, sql: str, *, version: int | None = None, beside: Mapping[str, str] | None = None) -> pa.Table:
    """The result of a query over the table, which is called `t` there; over its newest version unless one is named.

    `beside`: paths of other tables that the query reads, by the names they have there. Strings come as `string`, not
    as views.
    """
    others = {name: _open(other) for name, other in (beside or {}).items()}
    return _stream(_open(path, version), sql, others).read_all()


def rows(found: pa.Table) -> list[dict[str, Any]]:
    """The rows of a result as dictionaries, timestamps as `datetime` in UTC.

    `to_pylist` does the same, but imports pandas for timestamps where it is installed: 50 MB and 0.3 s.
    """
    columns = [_values(column) for column in found.columns]
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    epoch = datetime(1970, 1, 1, tzinfo=UTC if column.type.tz else None)
    numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if number is None else epoch + timedelta(microseconds=number) for number in numbers]


def literal(text: str) -> str:
    """The text as a string literal of `query`'s SQL."""
    return "'" + text.replace("'", "''") + "'"


def moment(at: datetime) -> str:
    """A time with a zone as a literal of `query`'s SQL, to the microsecond."""
    microseconds = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return f"""arrow_cast({microseconds}, 'Timestamp(Microsecond, Some("UTC"))')"""


def identifier(name: str) -> str:
    """The name of a column as `query` and DuckDB take it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def transaction_version(path: str, app: str) -> int | None:
    """The newest transaction the table holds of `app`, or None (also where there is no table)."""
    return _transaction(_open(path), app) if exists(path) else None


def transaction_versions(path: str, apps: Iterable[str]) -> list[int | None]:
    """The same of several apps, in their order. The log is read once."""
    table = _open(path) if exists(path) else None
    return [None if table is None else _transaction(table, app) for app in apps]


def _transaction(table: DeltaTable, app: str) -> int | None:
    version = table.transaction_version(app)
    return None if version == _NOTHING_YET else version


def history(path: str, limit: int) -> list[dict[str, Any]]:
    """Newest commits first: `version`, `timestamp` (ms), `operation`, `userMetadata`, `operationMetrics`."""
    return _open(path).history(limit)


def create(path: str, schema: pa.Schema, *, statistics: tuple[str, ...] = (), private: bool = False) -> None:
    """Make an empty table where there is none: version 0.

    `statistics` names the columns it keeps bounds of (none named: all); `private`: only the owner gets at its files.
    """
    if exists(path):
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


def fence(path: str, apps: Sequence[str], note: str) -> bool:
    """Commit the newest transaction of each of `apps` once more, and nothing else: whoever began a write in the name of
    one of them before can't commit it. `note` becomes the commit's `userMetadata`.

    Returns whether it could: deltalake does not write tables with every feature that Spark gives them.
    """
    nothing_else = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
    for left in reversed(range(_FENCES)):
        table = _open(path)
        known = {app: table.transaction_version(app) for app in apps}
        again = [Transaction(app, _NOTHING_YET if version is None else version) for app, version in known.items()]
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
            if not left or version(path) == table.version():
                raise
    raise AssertionError("the last try returns or raises")


def clear_unmade(path: str) -> None:
    """Remove what a creation that died left: a log without a commit, and nothing beside it.

    Delta takes such a directory for a table that is there, makes none, and then finds none.
    """
    home = Path(path)
    if not exists(path) and home.is_dir() and {entry.name for entry in home.iterdir()} <= {"_delta_log"}:
        shutil.rmtree(home)


def append_query(path: str, source: str, sql: str, *, app: tuple[str, int]) -> None:
    """Append what a query over the table at `source` gives (`t` there, and the table at `path`, if there is one, as
    `held`), in one commit and without holding it in memory. `app` as in `append`."""
    held = _open(path) if exists(path) else None
    rows = _stream(_open(source), sql, {} if held is None else {"held": held})
    target = _made(path, rows.schema) if held is None else held
    _write_once(target, rows, app, mode="append", schema_mode="merge")


def replace(path: str, source: str, *, app: tuple[str, int]) -> None:
    """Put the rows and the columns of the table at `source` in the place of those at `path`, in one commit."""
    rows = _stream(_open(source), "select * from t")
    _write_once(_made(path, rows.schema), rows, app, mode="overwrite", schema_mode="overwrite")


def _made(path: str, schema: pa.Schema) -> DeltaTable:
    create(path, schema)
    return _open(path)


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
    known = _transaction(table, app[0])
    return known is not None and known >= app[1]


def delete(path: str, where: str) -> None:
    """Delete rows, in one commit. Nothing happens where there is no table."""
    if exists(path):
        _open(path).delete(where)


def delete_any(path: str, where: str) -> None:
    """Delete the rows where `where` (SQL) is true, and commit nothing if there are none."""
    if query(path, f"select 1 from t where {where} limit 1").num_rows:
        delete(path, where)


def files_missing(path: str, version: int) -> list[str]:
    """Data files of one version of a table that are not there. Raises what reading that version raises."""
    # not `file_uris`: they encode the path of the table, and not that of the file in it once more
    found = added_files(DeltaTable(path, version=version))["path"].to_pylist()
    places = (Path(_plain(path)) / unquote(name) for name in found)
    return [str(place) for place in places if not place.is_file()]


def _plain(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path


def _open(path: str, version: int | None = None) -> DeltaTable:
    """Open a table. Raises TerminalError `format-unknown` if another version of draindown made it as one of its own."""
    table = DeltaTable(path, version=version)
    formats.refuse_unknown_table(path, table.metadata().configuration)
    return table


def _stream(
    table: DeltaTable, sql: str, beside: Mapping[str, DeltaTable] = MappingProxyType({})
) -> pa.RecordBatchReader:
    builder = QueryBuilder()
    for name, registered in {"t": table, **beside}.items():
        builder = builder.register(name, registered)
    found = pa.RecordBatchReader.from_stream(builder.execute(sql))
    fields = [pa.field(f.name, _without_views(f.type), f.nullable) for f in found.schema]
    return found.cast(pa.schema(fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
