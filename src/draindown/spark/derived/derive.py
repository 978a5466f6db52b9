"""Process one batch of a derived flow. The order of the steps makes a crash between any two of them safe.

changes of the sources → touched keys → inputs → their rows at `until` → query → difference from the table → one commit,
with the ledger row as `userMetadata` → ledger table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.lake.table_log import TableLog
from draindown.ledger import inputs as ledger_inputs
from draindown.ledger import table as ledger_table
from draindown.ledger.inputs import Input
from draindown.ledger.rows import BatchRow, conserve, not_adding_up
from draindown.spark.derived import difference, history, images, recompute
from draindown.spark.derived.difference import DELETE, FATE, INSERT, UNCHANGED, UPDATE
from draindown.spark.derived.images import IMAGES, NET
from draindown.spark.derived.kind import Kind, Relation
from draindown.spark.derived.resolve import Resolved, resolve
from draindown.spark.derived.scope import WHOLE, Bucket, Everything, Scope, Touched, pruning_of
from draindown.spark.frames import persisted
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT, quoted
from draindown.spark.targets import delta_target
from draindown.spark.targets.commit import close
from draindown.spark.targets.delta_target import Clauses, Held, TableWriter
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import PARTITIONS, TUNING, Size, Tuning
from draindown.spec.derived import DerivedFlow

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""A derived table may not depend on the zone of a machine. Delta refuses old versions by their age alone; whether their
files are there is known by the readers' documents, and `history` names files that are not.
"""


@dataclass(frozen=True)
class Versions:
    """The versions of one source table that a batch reads, pinned before it reads them.

    Attributes:
        path: the table.
        start: the version that is consumed; None for a fill, which compares all rows.
        until: the last version whose changes touch keys.
        rows: rows that the commits between changed, as their log says; 0 if it is not known.
        bytes: the bucket's share of the bytes that the commits added.
        changes: whether rows were updated or deleted.
        read_at: the version at which rows are read, `until` unless the batch is a replay; None for `until`.
    """

    path: str
    start: int | None
    until: int
    rows: int = 0
    bytes: int = 0
    changes: bool = True
    read_at: int | None = None

    @property
    def at(self) -> int:
        """The version at which rows are read."""
        return self.until if self.read_at is None else self.read_at

    @property
    def is_only_read(self) -> bool:
        """Whether nothing changed."""
        return self.start == self.until

    @property
    def pinned(self) -> tuple[int, int]:
        """The versions (start, until], as the intake pins them: a fill begins before the first one."""
        return -1 if self.start is None else self.start, self.until


@dataclass(frozen=True)
class TableSlice:
    """What one batch reads.

    Attributes:
        number: the slice's number in its intake.
        tables: the versions of each source, in the order of the flow.
        bucket: the share of the keys that the batch recomputes.
    """

    number: int
    tables: Sequence[Versions]
    bucket: Bucket = WHOLE

    @property
    def is_fill(self) -> bool:
        """Whether all rows are compared."""
        return any(one.start is None for one in self.tables)

    @property
    def rows(self) -> int:
        """Rows of all sources that changed."""
        return sum(one.rows for one in self.tables)


@dataclass(frozen=True)
class DeriveBatch:
    """The input, identity and hooks of one batch. Attributes as those of `spark.batch.model.Batch`."""

    writer: TableWriter
    flow: DerivedFlow
    slice: TableSlice
    run_id: str
    changed_at: datetime
    started_at: datetime
    start: str = ""
    reached: StepHook = ignore_step
    tuning: Tuning = TUNING


@dataclass(frozen=True)
class _Work:
    """A batch whose keys are known. `row`: the ledger row with the account of its input. `read`: the same by table."""

    batch: DeriveBatch
    sources: Sequence[DataFrame]
    resolved: Resolved
    scope: Scope
    row: BatchRow
    read: Sequence[Input]

    @property
    def keys(self) -> Sequence[str]:
        """The result's key columns."""
        return self.resolved.kind.keys


def derive(spark: SparkSession, batch: DeriveBatch) -> BatchRow:
    """Apply one batch and return its ledger row. Idempotent: no-op if the target already contains the batch.

    Raises TerminalError `ledger-does-not-add-up`, `invalid-derivation`, `result-not-unique`, `table-mismatch`,
    `history-gone`.
    """
    writer = batch.writer
    if writer.is_done():
        ledger_table.heal(writer.layout)
        return ledger_table.row_of(writer.layout, writer.generation, writer.batch, writer.ledger_kind)
    tables = batch.slice.tables
    read = {one.path: one.at for one in tables}
    with configured(spark, SETTINGS), history.kept(writer.layout, read), ExitStack() as kept:
        sources = [images.at(spark, one.path, one.at) for one in tables]
        resolved = resolve(batch.flow, sources, _tried(batch), _next(batch))
        with configured(spark, batch.tuning.evaluation(batch.slice.rows)):
            work = _touched(spark, batch, sources, resolved, kept)
        batch.reached("read")
        ledger_inputs.record(writer.layout, work.row, work.read)
        delta_target.prepare(spark, writer, StructType(list(resolved.schema)).add(CHANGED_AT, "timestamp"))
        held = delta_target.held_rows(spark, writer.layout.table, work.scope.pruning)
        with configured(spark, _settings(spark, work, held)):
            return _apply(work, held, kept)


def _tried(batch: DeriveBatch) -> str:
    layout = batch.writer.layout
    return f"resolve the {batch.flow.kind} of flow {layout.flow} of pipeline {layout.pipeline} in Spark"


def _next(batch: DeriveBatch) -> str:
    layout = batch.writer.layout
    return f"draindown run {layout.pipeline} --flow {layout.flow}   # once the file is corrected"


def _touched(
    spark: SparkSession, batch: DeriveBatch, sources: Sequence[DataFrame], resolved: Resolved, kept: ExitStack
) -> _Work:
    """Find the keys to recompute, and count the images of the input."""
    piece, kind = batch.slice, resolved.kind
    if piece.is_fill:
        whole = [source.withColumns({NET: F.lit(1), IMAGES: F.lit(1).cast("bigint")}) for source in sources]
        return _Work(batch, sources, resolved, Everything(piece.bucket), *_counted(batch, kind, whole))
    netted = [_netted(spark, *one) for one in zip(piece.tables, sources, resolved.used, strict=True)]
    for one in netted:
        kept.enter_context(persisted(one))
    row, read = _counted(batch, kind, netted)
    keys = recompute.touched(kind, netted, piece.bucket)
    kept.enter_context(persisted(keys))
    number = keys.count()
    found = Touched(keys, number, pruning_of(keys.toDF(*kind.keys), kind.keys))
    return _Work(batch, sources, resolved, found, replace(row, touched=number), read)


def _netted(spark: SparkSession, table: Versions, source: DataFrame, used: Sequence[str]) -> DataFrame:
    """Return the images of what changed in a table, netted by the columns that the query uses."""
    if table.start is None or table.is_only_read:
        none = source.select(*map(quoted, used)).where(F.lit(False))
        return none.withColumns({NET: F.lit(0), IMAGES: F.lit(0).cast("bigint")})
    return images.net(images.between(spark, table.path, table.start, table.until), used, changes=table.changes)


def _counted(batch: DeriveBatch, kind: Kind, netted: Sequence[DataFrame]) -> tuple[BatchRow, list[Input]]:
    """Return the ledger row with the account of the input, and it by table: the images counted in the bucket."""
    inputs, used = list[Input](), 0
    for table, relation, rows in zip(batch.slice.tables, kind.relations, netted, strict=True):
        records, own = (0, 0) if table.is_only_read else _images(relation, rows, batch.slice.bucket)
        inputs.append(Input(table.path, *table.pinned, table.bytes, records))
        used += own
    records = sum(one.records for one in inputs)
    layout = batch.writer.layout
    return BatchRow(
        pipeline=layout.pipeline,
        flow=layout.flow,
        generation=batch.writer.generation,
        batch=batch.writer.batch,
        kind=batch.writer.ledger_kind,
        run_id=batch.run_id,
        cut=batch.slice.number,
        units=len(inputs),
        bytes=sum(one.bytes for one in inputs),
        records=records,
        changed_at=batch.changed_at,
        started_at=batch.started_at,
        start=batch.start,
        form="derive",
        used=used,
        irrelevant=records - used,
    ), inputs


def _images(relation: Relation, netted: DataFrame, bucket: Bucket) -> tuple[int, int]:
    """Return the images of a table that are counted in a bucket, and how many of them the query sees."""
    is_used = F.col(NET).cast("boolean") & relation.belongs()
    counts = netted.where(bucket.has(relation.home())).agg(
        F.coalesce(F.sum(IMAGES), F.lit(0)).alias("records"),
        F.coalesce(F.sum(F.when(is_used, F.col(IMAGES))), F.lit(0)).alias("used"),
    )
    found = counts.first()
    assert found is not None  # an aggregate without groups has one row
    return int(found["records"]), int(found["used"])


def _settings(spark: SparkSession, work: _Work, held: Held | None) -> Mapping[str, str]:
    """Return the session settings by the size of what is read again and of what it is compared with."""
    tuning, again = work.batch.tuning, _read_again(work)
    size = None if held is None else Size(held.number, held.bytes)
    tasks, partitions = spark.sparkContext.defaultParallelism, int(str(spark.conf.get(PARTITIONS)))
    weight = again.bytes + (size.bytes if size else 0)
    found = dict(tuning.evaluation(again.rows, size.rows if size else 0)) | dict(
        tuning.shuffling(weight, tasks, partitions)
    )
    return found | dict(tuning.writing(size, again, work.batch.flow.maintenance.copy_on_write))


def _read_again(work: _Work) -> Size:
    """Return rows and bytes of the sources' files that hold rows of the keys, as far as the log tells."""
    sizes = [
        _concerned(table, pruning, source.schema)
        for table, pruning, source in zip(work.batch.slice.tables, _source_prunings(work), work.sources, strict=True)
    ]
    return Size(sum(one.rows for one in sizes), sum(one.bytes for one in sizes))


def _concerned(table: Versions, pruning: Pruning, schema: StructType) -> Size:
    files = TableLog(table.path, table.at).files([*pruning.values, *pruning.ranges])
    concerned = pruning.files(schema, files)
    return Size(sum(file.get("num_records") or 0 for file in concerned), sum(file["size_bytes"] for file in concerned))


def _source_prunings(work: _Work) -> list[Pruning]:
    return [one.source_pruning(work.scope.pruning) for one in work.resolved.kind.relations]


def _apply(work: _Work, held: Held | None, kept: ExitStack) -> BatchRow:
    """Recompute the keys, compare them with the table, and commit the difference."""
    sources = [_possible(*one) for one in zip(work.sources, _source_prunings(work), strict=True)]
    fated = recompute.difference(work.resolved.kind, sources, work.scope, None if held is None else held.rows)
    kept.enter_context(persisted(fated))
    row = _output(work, difference.count(fated, work.keys))
    acts = fated.where(F.col(FATE).isin(*difference.ACTS)).withColumn(CHANGED_AT, F.lit(work.batch.changed_at))
    _write(work, acts, row, is_empty=held is None)
    return close(work.batch.writer.layout, row, work.batch.reached)


def _possible(rows: DataFrame, pruning: Pruning) -> DataFrame:
    """Return the rows of a source that may belong to touched keys."""
    for possible in pruning.conditions(rows.schema):
        rows = rows.where(possible)
    return rows


def _output(work: _Work, counts: Mapping[str, int]) -> BatchRow:
    """Return the ledger row with the account of the output. Raises TerminalError if it can't be right."""
    layout = work.batch.writer.layout
    if counts["_twice"]:
        raise TerminalError(
            "result-not-unique",
            tried=f"recompute the keys of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"the query returns several rows for {counts['_twice']} of them; keys are {', '.join(work.keys)}",
            changed="nothing of this batch was written",
            next=f"draindown run {layout.pipeline} --flow {layout.flow}   # once keys name one row of the result",
        )
    row = replace(
        work.row,
        inserted=counts.get(INSERT, 0),
        updated=counts.get(UPDATE, 0),
        deleted=counts.get(DELETE, 0),
        unchanged=counts.get(UNCHANGED, 0),
    )
    found = row.inserted + row.updated + row.deleted + row.unchanged
    touched = found if work.batch.slice.is_fill else row.touched
    row = replace(row, touched=touched, absent=touched - found)
    wrong = ["more keys than were touched"] if row.absent < 0 else []
    if row.kind == "source":  # what a replay touches may be gone from the source and from the table
        wrong += work.resolved.kind.wrong(row)
    if wrong:
        raise not_adding_up(row, wrong)
    return conserve(row)


def _write(work: _Work, acts: DataFrame, row: BatchRow, *, is_empty: bool) -> None:
    """Commit the difference, or an empty commit with the ledger row if there is none."""
    writer, metadata = work.batch.writer, row.as_metadata()
    if row.updated or row.deleted or (row.inserted and not is_empty):
        on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in work.keys)
        delta_target.merge(writer, acts, on, _clauses(row), work.scope.pruning, metadata)
        return
    rows = acts if row.inserted else acts.where(F.lit(False))
    delta_target.append(writer, rows.drop(FATE), metadata)


def _clauses(row: BatchRow) -> Clauses:
    """Return the MERGE clauses that the batch needs. There is no sequence to guard: `until` only grows."""
    needed = {DELETE: row.deleted, UPDATE: row.updated, INSERT: row.inserted}
    said = {fate: f"s.{FATE} = '{fate}'" if number else None for fate, number in needed.items()}
    return Clauses(said[DELETE], said[UPDATE], said[INSERT])
