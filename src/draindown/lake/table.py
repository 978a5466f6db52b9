"""Read Delta tables without Spark: each log is opened once. All rows come from queries, which apply
deletion vectors.

This module imports neither pandas nor duckdb. pyarrow imports pandas when it converts a timestamp
to a Python object, as in `to_pylist`; `rows` converts numbers to datetimes instead.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from draindown.base.clock import EPOCH
from draindown.base.errors import TerminalError
from draindown.base.formatting import shortened
from draindown.lake import features, formats, torn
from draindown.lake.commits import Commit
from draindown.lake.delta_log import DeltaLog
from draindown.lake.directories import file_names
from draindown.lake.row_values import values
from draindown.lake.transactions import WriterId

UNREADABLE = (DeltaError, pa.ArrowException, OSError, TerminalError)
"""What reading a table raises if its log or its files are damaged, gone, or of another version of
draindown.
"""
NO_BATCH = -1
"""Transaction version that a fence writes for a writer without a batch."""
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # Hadoop writes `file:/a` for `file:///a`
_NEWEST = 20  # newest commits to check; a power cut can leave empty files there


class Table:
    """A snapshot of a table from its log: at `version`, or at the newest version when the log is
    first read.

    The log is opened once, on first use; later commits are not visible. An absent table has no
    rows, no commits and no transactions.

    Raises TerminalError `table-damaged` if a file of the table is torn or gone, `table-feature` if
    deltalake lacks a feature of it, `format-unknown` if another version of draindown created it;
    deltalake's errors for anything else.
    """

    def __init__(self, path: str, version: int | None = None) -> None:
        self.path = path
        self._version = version
        self._commits: list[Commit] = []
        self._asked = 0

    @property
    def log(self) -> DeltaLog:
        """The files of the table's log."""
        return DeltaLog(self.path)

    @cached_property
    def exists(self) -> bool:
        """Whether there is a Delta table at the path. Checks that a log exists, without reading
        it.
        """
        return DeltaTable.is_deltatable(self.path)

    @cached_property
    def table(self) -> DeltaTable:
        """The opened table. Raises deltalake's TableNotFoundError if it is absent."""
        with torn.named(self.path):
            return opened(self.path, self._version)

    def at(self, version: int) -> Table:
        """Return the same table at `version`."""
        return self if self.exists and version == self.version else Table(self.path, version)

    def renew(self) -> Self:
        """Bring an opened log up to date, which reads only the commits since. What is known of it
        is forgotten.

        For a log that was opened at the newest version. Does not detect that the table was
        replaced, so use it only within one batch, under the lease.
        """
        held = self.__dict__
        for known in ("exists", "damage", "id"):
            held.pop(known, None)
        self._commits, self._asked = [], 0
        if "table" in held:
            with torn.named(self.path):
                self.table.update_incremental()
            features.refuse_unreadable(self.path, self.table.protocol())
        return self

    @cached_property
    def damage(self) -> str | None:
        """The log's corruption, in words: an empty file among the newest commits, or an unreadable
        log; else None.
        """
        newest = self.log.newest(_NEWEST)
        empty = [number for number, commit in newest.items() if commit.size == 0]
        if empty:
            return f"commit {empty[0]:020}.json is empty"
        try:
            _ = self.exists and self.table
        except torn.UNREAD as error:
            return error.found.removeprefix(f"{self.path}: ")
        except DeltaError as error:
            return f"its log can't be read: {shortened(str(error))}"
        return None

    def mark_damaged(self, words: str) -> None:
        """Set `damage`: the log can be read, and a data file was found that can't."""
        self.__dict__["damage"] = words

    @property
    def is_whole(self) -> bool:
        """Whether the table exists and its log is not damaged."""
        return self.damage is None and self.exists

    @property
    def version(self) -> int:
        """The version of this snapshot."""
        return self.table.version()

    @cached_property
    def id(self) -> str:
        """The table id from the metadata. A table that is created again at the same path has
        another id.
        """
        return str(self.table.metadata().id)

    @property
    def created_ms(self) -> int | None:
        """When the table was created, in milliseconds since 1970, if its metadata says so."""
        found: int | None = self.table.metadata().created_time
        return found

    @property
    def partition_columns(self) -> list[str]:
        """The columns that the table is partitioned by, in order."""
        return list(self.table.metadata().partition_columns)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.table.metadata().configuration)

    @property
    def column_types(self) -> dict[str, Any]:
        """Delta's types by column, in table order: the name of a primitive type, or what describes
        a nested one.
        """
        return {field["name"]: field["type"] for field in self.fields}

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns in table order, as Delta's JSON has them."""
        found: list[dict[str, Any]] = json.loads(self.table.schema().to_json())["fields"]
        return found

    def last(self, writer: WriterId) -> int | None:
        """Return the newest transaction version of `writer` in the table; None if it has none."""
        version = self.table.transaction_version(writer) if self.exists else None
        return None if version == NO_BATCH else version

    def commits(self, limit: int | None = None) -> list[Commit]:
        """Return the newest commits, newest first: at most `limit`, or all that the log still has
        if it is None.
        """
        wanted = (self.version + 1 if limit is None else limit) if self.exists else 0
        if wanted > self._asked:
            with torn.named(self.path):
                self._commits, self._asked = self._history(wanted), wanted
        return self._commits[: max(0, wanted)]

    def _history(self, wanted: int) -> list[Commit]:
        """Return the newest commits up to this version, newest first.

        deltalake reads the newest commits that the log has by now, whatever version was opened, and
        numbers them down from that version, as if none had come after it and none were missing: the
        names of the files tell the numbers.
        """
        before = self._numbers(wanted)
        while True:
            found = self.table.history(wanted + sum(number > self.version for number in before))
            after = self._numbers(wanted)
            if before[:1] == after[:1]:  # none was committed meanwhile
                break
            before = after
        numbered = (Commit.of(entry, number) for entry, number in zip(found, before, strict=False))
        return [commit for commit in numbered if commit.version <= self.version][:wanted]

    def _numbers(self, wanted: int) -> list[int]:
        """Return the numbers of the commits that the log has: of all of them if any is missing
        among the newest `wanted` of this version.
        """
        first = max(0, self.version + 1 - wanted)
        found = self.log.commits(first - 1)
        if first > 0 and len(found) < max(found, default=0) + 1 - first:
            found = self.log.commits()
        return list(found)[::-1]

    def commits_since(self, version: int) -> list[Commit]:
        """Return the commits after `version` that the log still has, newest first."""
        ahead = self.version - version if self.exists else 0
        return (
            [commit for commit in self.commits(ahead) if commit.version > version]
            if ahead > 0
            else []
        )

    def query(self, sql: str, beside: Mapping[str, Table] = MappingProxyType({})) -> pa.Table:
        """Return the result of a query. In `sql`, this table is `t`. String views are cast to
        `string`.

        `beside`: other tables of the query, by their names in `sql`.
        """
        with torn.named(self.path):
            return stream(
                self.table, sql, {name: log.table for name, log in beside.items()}
            ).read_all()

    def rows(
        self, sql: str, beside: Mapping[str, Table] = MappingProxyType({})
    ) -> list[dict[str, Any]]:
        """Return the rows of a query; none if the table is absent. Arguments as for `query`."""
        return rows(self.query(sql, beside)) if self.exists else []

    def columns(self, names: Iterable[str]) -> pa.Schema:
        """Return the Arrow schema of some columns, as `query` returns them."""
        return self.query(f"select {', '.join(map(identifier, names))} from t limit 0").schema

    @property
    def row_count(self) -> int:
        """Number of rows; 0 if the table is absent."""
        return int(self.rows("select count(*) as n from t")[0]["n"]) if self.exists else 0

    @property
    def size(self) -> int:
        """Size of the table's data files in bytes; 0 if the table is absent."""
        return sum(file["size_bytes"] for file in self.files()) if self.exists else 0

    def added_files(self) -> pa.Table:
        """Return the log's add actions: `path`, `size_bytes`, `num_records`, `partition.NAME` and
        so on per file.
        """
        # not pa.table(...): it imports pandas, which would slow down a plan
        return pa.RecordBatchReader.from_stream(self.table.get_add_actions(flatten=True)).read_all()

    def files(self, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return path, size_bytes and num_records per file, and of `columns` what is known.

        That is `partition.NAME`, `min.NAME`, `max.NAME` and `null_count.NAME`.

        Values that the log lacks are missing or None. So are dates outside Python's range.
        """
        statistics = {
            f"{what}.{name}"
            for name in columns
            for what in ("partition", "min", "max", "null_count")
        }
        adds = self.added_files()
        found: list[dict[str, Any]] = [{} for _ in range(adds.num_rows)]
        for name in {"path", "size_bytes", "num_records", *statistics}.intersection(
            adds.column_names
        ):
            with suppress(OverflowError):  # a date before the year 1, or after 9999
                for file, value in zip(found, adds[name].to_pylist(), strict=True):
                    file[name] = value
        return found

    def file(self, name: str) -> str | None:
        """Return the path of a data file that the log names; None for a file of another table, as
        those of a shallow clone are.
        """
        # not `file_uris`: it URL-encodes the table's path but does not encode the file's path again
        return None if _URI.match(name) else f"{self.path}/{unquote(name)}"

    def absent(self, files: Iterable[str]) -> set[str]:
        """Return which of these data files, as `file` returns them, are not there.

        Each directory is listed once. One that this user may not list lacks nothing.
        """
        names = defaultdict[str, set[str]](set)
        for file in files:
            directory, _, name = file.rpartition("/")
            names[directory].add(name)
        absent = set[str]()
        for directory, wanted in names.items():
            with suppress(PermissionError):
                absent.update(f"{directory}/{name}" for name in wanted - file_names(directory))
        return absent

    def deleted_rows(self) -> dict[str, int]:
        """Return the number of deleted rows per file, counted from the deletion vectors.

        The log has the count too, but deltalake does not expose it.
        """
        if "deletionVectors" not in (self.table.protocol().reader_features or ()):
            return {}
        root = self.table.table_uri.rstrip("/") + "/"
        found: dict[str, int] = {}
        for batch in pa.RecordBatchReader.from_stream(self.table.deletion_vectors()):
            for uri, kept in zip(
                batch.column("filepath"), batch.column("selection_vector"), strict=True
            ):
                path = uri.as_py().removeprefix(root)
                found[path] = len(kept.values) - (pc.sum(kept.values).as_py() or 0)
        return found

    def has_expired_files(self, hours: int) -> bool:
        """Return whether a VACUUM with a retention of `hours` would delete any file."""
        return bool(self.table.vacuum(hours, dry_run=True, enforce_retention_duration=False))


def opened(path: str, version: int | None = None) -> DeltaTable:
    """Open a table. Raises TerminalError `table-feature`, `format-unknown` if another version of
    draindown made it.
    """
    table = DeltaTable(path, version=version)
    formats.refuse_unknown_table(path, table.metadata().configuration)
    features.refuse_unreadable(path, table.protocol())
    return table


def stream(
    table: DeltaTable, sql: str, beside: Mapping[str, DeltaTable] = MappingProxyType({})
) -> pa.RecordBatchReader:
    """Return the result of a query over opened tables as a stream of record batches. In `sql`,
    `table` is `t`.
    """
    builder = QueryBuilder()
    for name, registered in {"t": table, **beside}.items():
        builder = builder.register(name, registered)
    found = pa.RecordBatchReader.from_stream(builder.execute(sql))
    fields = [pa.field(f.name, _without_views(f.type), f.nullable) for f in found.schema]
    return found.cast(pa.schema(fields))


def rows(found: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a result as dictionaries. Timestamps become `datetime`, in UTC if they
    have a time zone. A date or time beyond the years 1 to 9999 becomes text.

    `to_pylist` does the same, but for timestamps it imports pandas if installed, which takes 50 MB
    and 0.3 s.
    """
    columns = [values(column) for column in found.columns]
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def literal(text: str) -> str:
    """Return the text as a string literal in the SQL of `query`."""
    return "'" + text.replace("'", "''") + "'"


def begins(column: str, starts: Iterable[str]) -> str:
    """Return the condition, in the SQL of `query`, that a text begins with one of `starts`, of
    which there is one.
    """
    return "(" + " or ".join(f"starts_with({column}, {literal(start)})" for start in starts) + ")"


def moment(at: datetime) -> str:
    """Return a datetime as a timestamp literal in the SQL of `query`, with microseconds, and a zone
    if it has one.
    """
    # a cast to `timestamp` would be one to nanoseconds, of which there are none before 1677 and
    # after 2262
    zone, epoch = ('Some("UTC")', EPOCH) if at.tzinfo else ("None", EPOCH.replace(tzinfo=None))
    return (
        f"arrow_cast({(at - epoch) // timedelta(microseconds=1)}, 'Timestamp(Microsecond, {zone})')"
    )


def identifier(name: str) -> str:
    """Return a column name as a quoted identifier for `query` and DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
