"""Delta operations on a target table: create, add columns, read, append, MERGE. The only place that
issues MERGE.

Every write is idempotent. Its `txnAppId` is made of pipeline, flow, generation, kind and purpose;
its `txnVersion` is the batch number. Delta skips a second write of the same pair. Of two concurrent
writers of one pair, only one commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from types import MappingProxyType
from typing import Any

from delta.tables import DeltaTable, DeltaTableBuilder
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import altered
from draindown.lake import delta, formats
from draindown.lake.home import FlowHome
from draindown.lake.table import Table
from draindown.lake.transactions import WriterId
from draindown.ledger.rows import BatchKind
from draindown.spark.session import configured
from draindown.spark.sql import ddl, quoted
from draindown.spark.targets import identity, partitioning, restricted, side_rows
from draindown.spark.targets.mismatch import refuse_mismatch
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.table_schema import bounded, nullable
from draindown.spark.tuning import Size

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_LARGE_FILE = 1_000_000
"""Row count assumed for a file whose log entry has no `numRecords`."""


@dataclass(frozen=True)
class TableWriter:
    """Identifies one batch's writes: flow, generation, kind and batch. `batch` is the transaction
    version of each.
    """

    layout: FlowHome
    flow: FlowSpec | DerivedFlow
    generation: int
    batch: int
    kind: str = "drain"

    @property
    def ledger_kind(self) -> BatchKind:
        """The ledger's kind of the batch: the name of a replay is part of its transaction ids
        alone.
        """
        kind = self.kind.partition(":")[0]
        return "replay" if kind == "replay" else "drain" if kind == "drain" else "release"

    def app(self, purpose: str) -> WriterId:
        """Return the transaction id (`txnAppId`) for writes of `purpose`: `rows`, `tombstones` or
        `quarantine`.
        """
        return self.layout.app_id(self.generation, purpose, self.kind)

    @cached_property
    def target(self) -> Table:
        """The target's log, opened once by this batch and renewed after its writes."""
        return self.layout.tables.target

    def is_done(self) -> bool:
        """Return whether the target already contains this batch."""
        return self._is_in(self.target, "rows")

    def holds(self, path: str, purpose: str) -> bool:
        """Return whether the table at `path` already contains this batch's write of `purpose`."""
        return self._is_in(Table(path), purpose)

    def _is_in(self, log: Table, purpose: str) -> bool:
        version = log.last(self.app(purpose))
        return version is not None and version >= self.batch

    def settings(self, purpose: str, metadata: str | None = None) -> Mapping[str, str]:
        """Return the session settings that make a write of `purpose` idempotent for this batch.

        `metadata` becomes the commit's `userMetadata`.
        """
        known = {_APP: self.app(purpose), _VERSION: str(self.batch)}
        return known | ({_METADATA: metadata} if metadata else {})


@dataclass(frozen=True)
class Writer(TableWriter):
    """Identifies the writes of one batch of a landing flow."""

    flow: FlowSpec


@dataclass(frozen=True)
class Held:
    """The candidate rows of a table: those that can have one of the batch's keys, after file
    skipping.

    `rows` reads one fixed version of the table. `every` lists all files of that version. `files`
    lists the candidate files: those that file skipping by `pruning` does not exclude. Both have the
    entries that `Table.files` returns. `is_apart`: certainly no file holds a candidate row.
    """

    rows: DataFrame
    files: Sequence[Mapping[str, Any]]
    every: Sequence[Mapping[str, Any]]
    pruning: Pruning
    is_apart: bool = False

    def within(self, pruning: Pruning) -> Held:
        """Return the candidate rows that more predicates leave, also where these exclude no file.

        Rows that are left out early are neither joined nor merged.
        """
        rows = reduce(DataFrame.where, pruning.conditions(self.rows.schema), self.rows)
        ranges = {**self.pruning.ranges, **pruning.ranges}
        return replace(self, rows=rows, pruning=replace(self.pruning, ranges=ranges))

    @property
    def number(self) -> int:
        """Rows in the candidate files, from the log's statistics.

        Includes rows that deletion vectors mark as deleted. A file without a row count counts as
        `_LARGE_FILE` rows.
        """
        return sum(
            _LARGE_FILE if file.get("num_records") is None else file["num_records"]
            for file in self.files
        )

    @property
    def size(self) -> Size:
        """Rows and bytes of the candidate files."""
        return Size(self.number, sum(file["size_bytes"] for file in self.files))


def held_columns(spark: SparkSession, writer: TableWriter) -> dict[str, str]:
    """Return the target's columns and their types, in table order. Empty if the table does not
    exist yet.
    """
    path = writer.layout.tables.target.path
    if not Table(path).exists:
        return {}
    return {
        field.name: field.dataType.simpleString()
        for field in DeltaTable.forPath(spark, path).toDF().schema
    }


def added_columns(spark: SparkSession, writer: Writer) -> list[str]:
    """Return the target's string columns outside the contract. Empty unless the flow has
    `drift.new_columns: add`.
    """
    if writer.flow.drift.new_columns != "add":
        return []
    held, named = held_columns(spark, writer), {name.lower() for name in writer.flow.columns}
    texts = (name for name, kind in held.items() if kind == "string" and not name.startswith("_"))
    return [name for name in texts if name.lower() not in named]


def prepare(
    spark: SparkSession,
    writer: TableWriter,
    schema: StructType,
    computed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create the target, or add the columns that it lacks. `computed`: as `partitioning.proven`
    takes it.

    A wider type is refused too. Delta could widen the column in place, but no reader without Spark
    that we know can read such a table (docs/decisions/022).

    Raises TerminalError `table-altered`, `table-mismatch` if column types, column case or
    partitioning differ from the spec.
    """
    path, flow, log = writer.layout.tables.target.path, writer.flow, writer.target
    if not log.exists:
        create(spark, path, schema, flow, computed)
        log.renew()
        return
    altered.refuse_target(writer.layout, flow, log)
    refuse_mismatch(writer.layout, flow, log, DeltaTable.forPath(spark, path).toDF().schema, schema)
    widen(spark, path, schema)
    if flow.target.partition_by:
        partitioning.keep(spark, log, computed)
    log.renew()


def widen(spark: SparkSession, path: str, schema: StructType) -> None:
    """Add the columns to a table that it lacks. No-op if there is no table."""
    if not Table(path).exists:
        return
    held = DeltaTable.forPath(spark, path).toDF().schema
    missing = [f"{quoted(f.name)} {ddl(f.dataType)}" for f in schema if f.name not in held.names]
    if missing:
        spark.sql(f"ALTER TABLE delta.{quoted(path)} ADD COLUMNS ({', '.join(missing)})")


def create(
    spark: SparkSession,
    path: str,
    schema: StructType,
    flow: FlowSpec | DerivedFlow,
    computed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create a target with a flow's properties. `computed`: as for `partitioning.stored`."""
    statistics = bounded(schema, flow)
    builder = _new_table(spark, path, schema)
    if flow.target.partition_by:
        builder = builder.partitionedBy(*flow.target.partition_by)
    builder = builder.property("delta.enableDeletionVectors", "true").property(
        "delta.checkpointInterval", "50"
    )
    if statistics:
        builder = builder.property(delta.BOUNDED, statistics)
    if computed:
        builder = builder.property(partitioning.PROPERTY, partitioning.stored(computed))
    if (named := identity.stored(flow)) is not None:
        builder = builder.property(identity.PROPERTY, named)
    builder.execute()


def _new_table(spark: SparkSession, path: str, schema: StructType) -> DeltaTableBuilder:
    """Return a builder for a new table with draindown's format property: the target or a side
    table.

    What a crash left of an earlier attempt to create it is removed.
    """
    delta.clear_unmade(Table(path))
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(nullable(schema))
    return builder.property(formats.PROPERTY, str(formats.FORMAT))


def make_beside(spark: SparkSession, path: str, schema: StructType) -> None:
    """Create a side table if there is none: a write that creates it would not set the format
    property.
    """
    if not Table(path).exists:
        _new_table(spark, path, schema).execute()


def append(writer: TableWriter, rows: DataFrame, metadata: str) -> None:
    """Append `rows` in one commit whose `userMetadata` is the batch's ledger row. A retry appends
    nothing.

    `rows` has the table's columns.
    """
    with (
        configured(rows.sparkSession, writer.settings("rows", metadata)),
        restricted.named(writer.layout, writer.layout.tables.target.path),
    ):
        rows.write.format("delta").mode("append").save(writer.layout.tables.target.path)


@dataclass(frozen=True)
class Clauses:
    """The clauses of a MERGE: SQL conditions on `t`, the table, and `s`, the source.

    None omits a clause. An empty `delete` condition matches every row. An insert-only MERGE finds
    existing keys with a left anti join while it writes. It needs neither a separate pass over the
    target nor a materialized source.
    """

    delete: str | None = None
    update: str | None = None
    insert: str | None = None


def merge(
    writer: TableWriter,
    source: DataFrame,
    on: str,
    clauses: Clauses,
    pruning: Pruning,
    metadata: str | None,
    side: tuple[str, str] | None = None,
) -> None:
    """Merge `source` into the target, or into `side`, path and purpose of another table. Only this
    issues MERGE.

    `metadata`, the batch's ledger row, becomes the commit's `userMetadata`. `on`: condition on `t`
    and `s`, by which a row of the table matches at most one of `source`. Updated and inserted rows
    get the values of `source`, NULL in columns that it lacks. `pruning` is added to the condition,
    for file skipping.
    """
    path, purpose = side or (writer.layout.tables.target.path, "rows")
    table, condition = DeltaTable.forPath(source.sparkSession, path), F.expr(on)
    schema = table.toDF().schema
    for possible in pruning.conditions(schema, "t"):
        condition = possible & condition
    given = {f.name: F.col(f"s.{quoted(f.name)}") for f in schema if f.name in source.columns}
    values: dict[str, str | Column] = {
        quoted(f.name): given.get(f.name, F.lit(None).cast(f.dataType)) for f in schema
    }
    # Delta would skip a retry whose first attempt wrote other rows beside the target
    settings = {} if side and writer.holds(path, purpose) else writer.settings(purpose, metadata)
    with configured(source.sparkSession, settings), restricted.named(writer.layout, path):
        changes = table.alias("t").merge(source.alias("s"), condition)
        if clauses.delete is not None:
            changes = changes.whenMatchedDelete(F.expr(clauses.delete) if clauses.delete else None)
        if clauses.update is not None:
            changes = changes.whenMatchedUpdate(F.expr(clauses.update), values)
        if clauses.insert is not None:
            changes = changes.whenNotMatchedInsert(F.expr(clauses.insert), values)
        changes.execute()


def withdraw(writer: Writer, rows: DataFrame, pruning: Pruning, metadata: str) -> None:
    """Delete the target's rows that equal `rows`, one per key, in keys and sequence. `metadata`:
    the ledger row.
    """
    # null-safe: a column that was added to `sequence_by` later is NULL in older rows
    on = " AND ".join(
        f"t.{quoted(name)} <=> s.{quoted(name)}" for name in writer.flow.target.essential
    )
    merge(writer, rows, on, Clauses(delete=""), pruning, metadata)


def write_batch(
    writer: TableWriter,
    rows: DataFrame,
    path: str,
    purpose: str,
    *,
    own: str = "",
    number: int | None = None,
) -> None:
    """Write this batch's rows of a side table. Idempotent: a retry replaces the rows of an earlier
    attempt.

    `rows` must have the columns `generation`, `batch` and `kind`, each with the prefix `own`.
    `number`: how many there are, if it is known; few are written without Spark.
    """
    app = (writer.app(purpose), writer.batch)
    if number is not None and side_rows.written(rows, path, app, number):
        return
    batch = {"generation": writer.generation, "batch": writer.batch, "kind": f"'{writer.kind}'"}
    where = " AND ".join(f"{own}{name} = {value}" for name, value in batch.items())
    if writer.holds(path, purpose):
        rows.write.format("delta").mode("overwrite").option("replaceWhere", where).save(path)
        return
    make_beside(rows.sparkSession, path, rows.schema)
    with configured(rows.sparkSession, writer.settings(purpose)):
        rows.write.format("delta").mode("append").save(path)


def held_rows(
    spark: SparkSession,
    log: Table,
    pruning: Pruning,
    *,
    narrow: bool = False,
    beside: bool = False,
) -> Held | None:
    """Return the rows of a table that match `pruning`. None if the table is absent or empty.

    `narrow`: leave out predicates that exclude no file. `beside`: the table is a side table, which
    deltalake writes too; predicates on decimals are left out then (see `Pruning.exact`).

    The frame reads the log's version with `versionAsOf`. After a write to a table, Spark recomputes
    persisted frames that read the table without a version, and a batch still reads its frames after
    its first write.
    """
    if not (files := log.files([*pruning.values, *pruning.ranges]) if log.exists else []):
        return None
    frame = spark.read.format("delta").option("versionAsOf", log.version).load(log.path)
    pruning = pruning.exact(frame.schema) if beside else pruning
    is_apart = pruning.excludes_all(frame.schema, files)
    pruning = pruning.narrowed(frame.schema, files) if narrow else pruning
    concerned = pruning.files(frame.schema, files)
    for possible in pruning.conditions(frame.schema):
        frame = frame.where(possible)
    return Held(frame, concerned, files, pruning, is_apart)


def columns_of(spark: SparkSession, path: str) -> list[str]:
    """Return the names of the table's columns, in table order."""
    return DeltaTable.forPath(spark, path).toDF().columns
