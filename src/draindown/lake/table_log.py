"""Delta without Spark, for reading: one log, opened once. Right with deletion vectors: all rows come by queries.

Neither pandas nor duckdb is imported here, and pyarrow only imports pandas when a timestamp becomes a Python object, as
in `to_pylist`: `rows` makes times of numbers instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from draindown.base.formatting import shortened
from draindown.lake import formats
from draindown.lake.commits import Commit
from draindown.lake.layout import FlowLayout
from draindown.lake.transactions import WriterId

NO_BATCH = -1
"""Transaction version that a fence writes where the writer has written no batch."""
_NEWEST = 20  # commits that a power cut may have left empty


class TableLog:
    """A table as its log describes it, at its newest version when it was first asked or at `version`.

    The log is opened at the first question that needs it, and never again: what is committed later is not seen. An
    absent table has no rows, no commits and no transactions. What deltalake raises for a torn log is passed on; a
    table that another version of draindown made is refused: TerminalError `format-unknown`.
    """

    def __init__(self, path: str, version: int | None = None) -> None:
        self.path = path
        self._version = version
        self._commits: list[Commit] = []
        self._asked = 0

    @cached_property
    def exists(self) -> bool:
        """Whether there is a Delta table. Looks for its log, and doesn't read it."""
        return DeltaTable.is_deltatable(self.path)

    @cached_property
    def table(self) -> DeltaTable:
        """The opened table. Raises deltalake's TableNotFoundError where there is none."""
        return opened(self.path, self._version)

    def at(self, version: int) -> TableLog:
        """The same table at one of its versions."""
        return self if self.exists and version == self.version else TableLog(self.path, version)

    @cached_property
    def damage(self) -> str | None:
        """Why the table can't be trusted, in words: an empty commit among the newest, or a log that can't be read."""
        commits = sorted((Path(self.path) / "_delta_log").glob("*.json"))[-_NEWEST:]
        empty = [commit.name for commit in commits if commit.stat().st_size == 0]
        if empty:
            return f"commit {empty[0]} is empty"
        try:
            _ = self.exists and self.table
        except DeltaError as error:
            return f"its log can't be read: {shortened(str(error))}"
        return None

    @property
    def is_whole(self) -> bool:
        """Whether the table is there and not damaged."""
        return self.damage is None and self.exists

    @property
    def version(self) -> int:
        """The newest version."""
        return self.table.version()

    @cached_property
    def id(self) -> str:
        """The id that the table got when it was made: another table at the same path has another."""
        return str(self.table.metadata().id)

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
        """Delta's types by column, in the table's order: names of plain types, the JSON of others."""
        return {field["name"]: field["type"] for field in json.loads(self.table.schema().to_json())["fields"]}

    def last(self, writer: WriterId) -> int | None:
        """The newest transaction version that the table holds of a writer; None if it holds none."""
        version = self.table.transaction_version(writer) if self.exists else None
        return None if version == NO_BATCH else version

    def commits(self, limit: int | None = None) -> list[Commit]:
        """The newest commits, newest first, at most `limit`; all that the log still has where no limit is given."""
        wanted = (self.version + 1 if limit is None else limit) if self.exists else 0
        if wanted > self._asked:
            self._commits, self._asked = [Commit.of(entry) for entry in self.table.history(wanted)], wanted
        return self._commits[: max(0, wanted)]

    def commits_since(self, version: int) -> list[Commit]:
        """The commits after a version, newest first, as far as the log still has them."""
        ahead = self.version - version if self.exists else 0
        return [commit for commit in self.commits(ahead) if commit.version > version] if ahead > 0 else []

    def query(self, sql: str, beside: Mapping[str, TableLog] = MappingProxyType({})) -> pa.Table:
        """The result of a query over the table, which is called `t` there. Strings come as `string`, not as views.

        `beside`: other tables that the query reads, by the names that they have there.
        """
        return stream(self.table, sql, {name: log.table for name, log in beside.items()}).read_all()

    def rows(self, sql: str, beside: Mapping[str, TableLog] = MappingProxyType({})) -> list[dict[str, Any]]:
        """The rows of a query over the table; none where there is no table. Arguments as for `query`."""
        return rows(self.query(sql, beside)) if self.exists else []

    def columns(self, names: Iterable[str]) -> pa.Schema:
        """Some of the table's columns, as queries give them."""
        return self.query(f"select {', '.join(map(identifier, names))} from t limit 0").schema

    @property
    def row_count(self) -> int:
        """How many rows the table holds."""
        return int(self.rows("select count(*) as n from t")[0]["n"]) if self.exists else 0

    @property
    def size(self) -> int:
        """Bytes of the files that the table consists of; 0 where there is none."""
        return sum(file["size_bytes"] for file in self.files()) if self.exists else 0

    def added_files(self) -> pa.Table:
        """What the log says of each file, as it says it: `path`, `size_bytes`, `num_records`, `partition.NAME`..."""
        # not pa.table(...): it imports pandas, which a plan must not wait for
        return pa.RecordBatchReader.from_stream(self.table.get_add_actions(flatten=True)).read_all()

    def files(self, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Of each file what the log says: `size_bytes`, `num_records`, and of the columns `partition.NAME`, `min.NAME`
        and `max.NAME`.

        What it doesn't say is missing or None; so are days that Python doesn't have.
        """
        told = {f"{what}.{name}" for name in columns for what in ("partition", "min", "max")}
        adds = self.added_files()
        found: list[dict[str, Any]] = [{} for _ in range(adds.num_rows)]
        for name in {"size_bytes", "num_records", *told}.intersection(adds.column_names):
            with suppress(OverflowError):  # a date before the year 1, or after 9999
                for file, value in zip(found, adds[name].to_pylist(), strict=True):
                    file[name] = value
        return found

    def deleted_rows(self) -> dict[str, int]:
        """Deleted rows by file, from the deletion vectors; the log's own count is not handed out by deltalake."""
        if "deletionVectors" not in (self.table.protocol().reader_features or ()):
            return {}
        root = self.table.table_uri.rstrip("/") + "/"
        found: dict[str, int] = {}
        for batch in pa.RecordBatchReader.from_stream(self.table.deletion_vectors()):
            for uri, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
                path = uri.as_py().removeprefix(root)
                found[path] = len(kept.values) - (pc.sum(kept.values).as_py() or 0)
        return found

    def has_expired_files(self, hours: int) -> bool:
        """Whether a VACUUM that keeps files for so many hours would find any to remove."""
        return bool(self.table.vacuum(hours, dry_run=True, enforce_retention_duration=False))

    def missing_files(self) -> list[str]:
        """Data files that the log names and that are not there."""
        # not `file_uris`: they encode the path of the table, and not that of the file in it once more
        places = (Path(_plain(self.path)) / unquote(name) for name in self.added_files()["path"].to_pylist())
        return [str(place) for place in places if not place.is_file()]


@dataclass(frozen=True)
class Snapshot(FlowLayout):
    """A layout through which each table's log is opened once: functions that are given it see the tables as they stood.

    Give it to what only looks. Who writes gives the plain layout, of which every look is a new one.
    """

    logs: dict[str, TableLog] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, layout: FlowLayout) -> Self:
        """The layout as a snapshot from now on; one that is a snapshot already stays the one that it is."""
        if isinstance(layout, cls):
            return layout
        return cls(**{one.name: getattr(layout, one.name) for one in fields(FlowLayout)})

    def table_log(self, path: str) -> TableLog:
        """The log of the table at `path`, the same at each call."""
        return self.logs.setdefault(path, TableLog(path))


def log_of(layout: FlowLayout, path: str) -> TableLog:
    """The log of one of a flow's tables: as the snapshot has it if `layout` is one, else as it stands now."""
    return layout.table_log(path) if isinstance(layout, Snapshot) else TableLog(path)


def opened(path: str, version: int | None = None) -> DeltaTable:
    """Open a table. Raises TerminalError `format-unknown` if another version of draindown made it as one of its own."""
    table = DeltaTable(path, version=version)
    formats.refuse_unknown_table(path, table.metadata().configuration)
    return table


def stream(
    table: DeltaTable, sql: str, beside: Mapping[str, DeltaTable] = MappingProxyType({})
) -> pa.RecordBatchReader:
    """The result of a query over opened tables, `t` and those beside it by their names there, batch by batch."""
    builder = QueryBuilder()
    for name, registered in {"t": table, **beside}.items():
        builder = builder.register(name, registered)
    found = pa.RecordBatchReader.from_stream(builder.execute(sql))
    fields = [pa.field(f.name, _without_views(f.type), f.nullable) for f in found.schema]
    return found.cast(pa.schema(fields))


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


def _plain(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind
