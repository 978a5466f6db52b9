"""Delta operations on a target table: create, add columns, read, append, MERGE, swap. The only place that issues MERGE.

Every write carries a transaction id of pipeline, flow, generation and purpose with the batch as its version: Delta
drops a second write of the same pair, and lets only one of two concurrent writers of it commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delta.tables import DeltaTable, DeltaTableBuilder
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from draindown.base.errors import TerminalError
from draindown.lake import delta, formats
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import TableLog
from draindown.lake.transactions import WriterId, app_id
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow, not_adding_up
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets.pruning import Pruning
from draindown.spec.models import FlowSpec

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_LARGE_FILE = 1_000_000
"""Rows of a file of which the log doesn't say how many it has."""


@dataclass(frozen=True)
class Writer:
    """One generation of a flow as a writer of tables. `batch` is the transaction version of all its writes."""

    layout: FlowLayout
    flow: FlowSpec
    generation: int
    batch: int
    kind: str = "source"

    def app(self, purpose: str) -> WriterId:
        """The transaction id of this flow's writes of one purpose (`rows`, `tombstones`, `quarantine`)."""
        return app_id(self.layout, self.generation, purpose, self.kind)

    def is_done(self) -> bool:
        """Whether the target holds this batch already."""
        return self.holds(self.layout.table, "rows")

    def holds(self, path: str, purpose: str) -> bool:
        """Whether the table at `path` has this batch's write of `purpose`."""
        version = TableLog(path).last(self.app(purpose))
        return version is not None and version >= self.batch

    def settings(self, purpose: str, metadata: str | None = None) -> Mapping[str, str]:
        """Session settings under which one write of `purpose` belongs to this batch."""
        known = {_APP: self.app(purpose), _VERSION: str(self.batch)}
        return known | ({_METADATA: metadata} if metadata else {})


@dataclass(frozen=True)
class Held:
    """The rows of a table among which a batch looks for its keys.

    `files`: those in which such a row can be, of all files (`every`) of the version read; both as
    `TableLog.files` returns them.
    """

    rows: DataFrame
    files: Sequence[Mapping[str, Any]]
    every: Sequence[Mapping[str, Any]]

    @property
    def number(self) -> int:
        """How many rows those files have, as far as the log says; deleted ones count."""
        return sum(_LARGE_FILE if file.get("num_records") is None else file["num_records"] for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of those files."""
        return sum(file["size_bytes"] for file in self.files)


def held_columns(spark: SparkSession, writer: Writer) -> dict[str, str]:
    """The columns of the target and their types, in its order; none where there is no table yet."""
    path = writer.layout.table
    if not TableLog(path).exists:
        return {}
    return {field.name: field.dataType.simpleString() for field in DeltaTable.forPath(spark, path).toDF().schema}


def added_columns(spark: SparkSession, writer: Writer) -> list[str]:
    """Text columns of the target that the contract doesn't name, where the flow makes columns of new fields."""
    if writer.flow.drift.new != "add":
        return []
    held, named = held_columns(spark, writer), {name.lower() for name in writer.flow.columns}
    texts = (name for name, kind in held.items() if kind == "string" and not name.startswith("_"))
    return [name for name in texts if name.lower() not in named]


def prepare(spark: SparkSession, writer: Writer, schema: StructType) -> None:
    """Make the target, or add the columns it lacks. Raises TerminalError `table-mismatch` if types or layout differ.

    A type that grows is refused too: Delta would widen it in place, but no reader without Spark that we know reads such
    a table (docs/decisions/022).
    """
    path, flow = writer.layout.table, writer.flow
    if not TableLog(path).exists:
        delta.clear_unmade(path)
        _create(spark, path, schema, flow)
        return
    held = {field.name: field.dataType for field in DeltaTable.forPath(spark, path).toDF().schema}
    _refuse_mismatch(writer, held, schema)
    missing = [f"{quoted(f.name)} {_sql(f.dataType)}" for f in schema if f.name not in held]
    if missing:
        spark.sql(f"ALTER TABLE delta.{quoted(path)} ADD COLUMNS ({', '.join(missing)})")


def _sql(kind: DataType) -> str:
    """The type as SQL takes it, whatever its fields are called."""
    match kind:
        case ArrayType():
            return f"array<{_sql(kind.elementType)}>"
        case MapType():
            return f"map<{_sql(kind.keyType)}, {_sql(kind.valueType)}>"
        case StructType():
            return f"struct<{', '.join(f'{quoted(field.name)}: {_sql(field.dataType)}' for field in kind)}>"
        case _:
            return kind.simpleString()


def _refuse_mismatch(writer: Writer, held: Mapping[str, DataType], schema: StructType) -> None:
    path, flow = writer.layout.table, writer.flow
    differing = [
        f"column {f.name} is {held[f.name].simpleString()} in the table and {f.dataType.simpleString()} in the spec"
        for f in schema
        if held.get(f.name, f.dataType) != f.dataType
    ]
    spelled = {name.lower(): name for name in held}
    differing += [
        f"column {f.name} is spelled {spelled[f.name.lower()]} in the table"
        for f in schema
        if f.name not in held and f.name.lower() in spelled
    ]
    partitions = TableLog(path).partition_columns
    if partitions != flow.target.partition_by:
        differing.append(f"the table is partitioned by {partitions}, the spec by {flow.target.partition_by}")
    if differing:
        raise TerminalError(
            "table-mismatch",
            tried=f"write to {path}",
            found="; ".join(differing),
            next=[
                f"put the spec back, then: draindown run {writer.layout.pipeline}",
                f"draindown rebuild {writer.layout.pipeline} --flow {writer.layout.flow}   "
                "# reads all input again into a table as the spec says it",
            ],
        )


def _create(spark: SparkSession, path: str, schema: StructType, flow: FlowSpec) -> None:
    statistics = _bounded(schema, flow)
    builder = _new_table(spark, path, schema)
    if flow.target.partition_by:
        builder = builder.partitionedBy(*flow.target.partition_by)
    builder = builder.property("delta.enableDeletionVectors", "true").property("delta.checkpointInterval", "50")
    if statistics:
        builder = builder.property(delta.BOUNDED, statistics)
    builder.execute()


def _new_table(spark: SparkSession, path: str, schema: StructType) -> DeltaTableBuilder:
    """A table that is yet to be made, with its format: the target, or one that is draindown's own."""
    builder = DeltaTable.createIfNotExists(spark).location(path).addColumns(StructType(_nullable(schema)))
    return builder.property(formats.PROPERTY, str(formats.FORMAT))


def _bounded(schema: StructType, flow: FlowSpec) -> str:
    """The columns whose bounds Delta shall keep, as its property names them; empty where it can't name one of them."""
    names = [*flow.target.essential, CHANGED_AT]
    # Delta refuses to make a table that asks for bounds of a partition column, or of a type without an order
    odd = {field.name for field in schema if field.dataType.typeName() in ("boolean", "binary")}
    statistics = [name for name in names if name not in flow.target.partition_by and name not in odd]
    return ",".join(dict.fromkeys(statistics)) if all(_is_bare(c) for c in statistics) else ""


def _is_bare(name: str) -> bool:
    """Whether SQL takes the name without quotes, which that property can't hold."""
    return name.isascii() and name.isidentifier()


def _nullable(schema: StructType) -> list[StructField]:
    return [StructField(field.name, field.dataType, True) for field in schema]


def append(writer: Writer, rows: DataFrame, metadata: str) -> None:
    """Append `rows` (the table's columns) with the batch's ledger row; a replay appends nothing."""
    with configured(rows.sparkSession, writer.settings("rows", metadata)):
        rows.write.format("delta").mode("append").save(writer.layout.table)


@dataclass(frozen=True)
class Clauses:
    """Which rows a MERGE deletes, updates and inserts: SQL conditions on `t`, the table, and `s`, the source.

    None leaves the clause out; an empty condition of `delete` holds for every row. A MERGE with an insert clause alone
    looks for existing keys as it writes, instead of in a pass of its own, and keeps no copy of the source.
    """

    delete: str | None = None
    update: str | None = None
    insert: str | None = None


def merge(writer: Writer, source: DataFrame, on: str, clauses: Clauses, pruning: Pruning, metadata: str) -> None:
    """Merge `source` into the target with the batch's ledger row in the commit. The only function that issues MERGE.

    `source` has at most one row that matches a row of the table by `on`, a condition on `t` and `s`. A row that is
    updated or inserted gets the values of `source`, and NULL in columns of the table that `source` lacks.
    """
    spark = source.sparkSession
    table = DeltaTable.forPath(spark, writer.layout.table)
    schema = table.toDF().schema
    condition = F.expr(on)
    for possible in pruning.conditions(schema, "t"):
        condition = possible & condition
    values: dict[str, str | Column] = {
        quoted(f.name): F.col(f"s.{quoted(f.name)}") if f.name in source.columns else F.lit(None).cast(f.dataType)
        for f in schema
    }
    with configured(spark, writer.settings("rows", metadata)):
        changes = table.alias("t").merge(source.alias("s"), condition)
        if clauses.delete is not None:
            changes = changes.whenMatchedDelete(F.expr(clauses.delete) if clauses.delete else None)
        if clauses.update is not None:
            changes = changes.whenMatchedUpdate(F.expr(clauses.update), values)
        if clauses.insert is not None:
            changes = changes.whenNotMatchedInsert(F.expr(clauses.insert), values)
        changes.execute()


def withdraw(writer: Writer, rows: DataFrame, pruning: Pruning, metadata: str) -> None:
    """Delete the rows with these keys and sequences. `rows`: one per key; the commit carries the ledger row."""
    # a column that came to the sequence later is NULL in older rows
    on = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in writer.flow.target.essential)
    merge(writer, rows, on, Clauses(delete=""), pruning, metadata)


def swap(spark: SparkSession, writer: Writer, metadata: str) -> None:
    """Put the staged table's rows, columns and partitions in the place of the live one's, in one commit.

    Older versions stay readable. `writer` is that of the staged table's last batch; done once, it changes nothing.
    """
    path, flow = writer.layout.live.table, writer.flow
    rows = spark.read.format("delta").load(writer.layout.table)
    if not TableLog(path).exists:
        _create(spark, path, rows.schema, flow)
    statistics = _bounded(rows.schema, flow)
    if TableLog(path).properties.get(delta.BOUNDED, "") != statistics:  # it may name columns that are about to go
        spark.sql(f"ALTER TABLE delta.{quoted(path)} UNSET TBLPROPERTIES IF EXISTS ('{delta.BOUNDED}')")
    how = {"overwriteSchema": "true", "partitionOverwriteMode": "static", "optimizeWrite": "true"}
    with configured(spark, writer.settings("rows", metadata)):
        written = rows.write.format("delta").mode("overwrite").options(**how)
        written.partitionBy(*flow.target.partition_by).save(path)
    keep_bounds(spark, path, flow)


def keep_bounds(spark: SparkSession, path: str, flow: FlowSpec) -> None:
    """Have Delta keep bounds of the table's keys, sequence and stamp, whatever it kept before."""
    statistics = _bounded(spark.read.format("delta").load(path).schema, flow)
    if statistics and TableLog(path).properties.get(delta.BOUNDED) != statistics:
        spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('{delta.BOUNDED}' = '{statistics}')")


def write_batch(writer: Writer, rows: DataFrame, path: str, purpose: str, *, own: str = "") -> None:
    """Write a side table's rows of this batch, once: a replay puts them in place of what an earlier attempt left.

    `rows` need `generation`, `batch` and `kind`, each with the prefix `own`.
    """
    batch = {"generation": writer.generation, "batch": writer.batch, "kind": f"'{writer.kind}'"}
    where = " AND ".join(f"{own}{name} = {value}" for name, value in batch.items())
    if writer.holds(path, purpose):
        rows.write.format("delta").mode("overwrite").option("replaceWhere", where).save(path)
        return
    if not TableLog(path).exists:  # before the write, which gives a table that it makes no property but Delta's own
        _new_table(rows.sparkSession, path, rows.schema).execute()
    with configured(rows.sparkSession, writer.settings(purpose)):
        rows.write.format("delta").mode("append").save(path)


def written(row: BatchRow, path: str, expected: int, fate: str) -> None:
    """Compare the number of rows in a side table's newest commit with what the batch counted.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    wrote = ledger_table.last_commit(path).rows_written
    if wrote != expected:
        raise not_adding_up(row, [f"{fate}: {expected} in the batch, {wrote} written to {path}"])


def held_rows(spark: SparkSession, path: str, pruning: Pruning) -> Held | None:
    """The rows of a table that `pruning` lets through; None if it has none at all.

    They are those of the version that stands now, read by its number: after a write to a table Spark computes again
    whatever is persisted and reads that table without one, and a batch writes before it reads for the last time.
    """
    log = TableLog(path)
    files = log.files([*pruning.values, *pruning.ranges]) if log.exists else []
    if not files:
        return None
    frame = spark.read.format("delta").option("versionAsOf", log.version).load(path)
    concerned = pruning.files(frame.schema, files)
    for possible in pruning.conditions(frame.schema):
        frame = frame.where(possible)
    return Held(frame, concerned, files)


def columns_of(spark: SparkSession, path: str) -> list[str]:
    """The columns of the table at `path`, in its order."""
    return DeltaTable.forPath(spark, path).toDF().columns
