"""Process one batch of a derived flow. The order of the steps makes a crash between any two of them safe.

changes of the source → touched keys → inputs → their rows at `until` → query → difference from the table → one commit,
with the ledger row as `userMetadata` → ledger table
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from draindown.spark.derived.difference import BEFORE, DELETE, FATE, INSERT, UNCHANGED, UPDATE, Counts
from draindown.spark.derived.images import IMAGES, NET, SIGN
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.late import Sieve, keep
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
class TableSlice:
    """The changes that one batch reads, pinned before it reads them.

    Attributes:
        number: the slice's number in its intake.
        path: the source table.
        start: the version that is consumed; None for a fill, which compares all rows of the source with the table.
        until: the version at which rows are read.
        bucket: the share of the keys that the batch recomputes.
        rows: rows that the commits changed, as their log says; 0 if it is not known.
        bytes: the bucket's share of the bytes that the commits added.
        changes: whether rows of the source were updated or deleted.
        decided: numbers of decisions about late rows: those up to the first counted in earlier batches, those up to the
            second count in this one.
    """

    number: int
    path: str
    start: int | None
    until: int
    bucket: Bucket = WHOLE
    rows: int = 0
    bytes: int = 0
    changes: bool = True
    decided: tuple[int, int] = (0, 0)

    @property
    def versions(self) -> tuple[int, int]:
        """The versions (start, until], as the intake pins them: a fill begins before the first one."""
        return -1 if self.start is None else self.start, self.until


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
    """A batch whose keys are known.

    `row`: the ledger row with the account of its input. `came`: rows that came to the bucket's keys, less those that
    went, a row counted for each of its keys. `late`: images of rows that came too late, of the bucket; None if the flow
    accepts all. `target`: the predicates by which files of the table are found.
    """

    batch: DeriveBatch
    source: DataFrame
    resolved: Resolved
    scope: Scope
    row: BatchRow
    came: int
    late: DataFrame | None
    target: Pruning = field(default_factory=Pruning)

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
        return ledger_table.row_of(writer.layout, writer.generation, writer.batch, "source")
    path, until = batch.slice.path, batch.slice.until
    with configured(spark, SETTINGS), history.kept(writer.layout, path, until), ExitStack() as kept:
        sieve = Sieve(spark, writer.layout, batch.flow, batch.slice.decided)
        rows = images.at(spark, path, until, sieve.own)
        source = sieve.counting(rows)
        resolved = resolve(batch.flow, source, _tried(batch), _next(batch))
        with configured(spark, batch.tuning.evaluation(batch.slice.rows)):
            work = _touched(sieve, batch, rows, source, resolved, kept)
        batch.reached("read")
        start, until = batch.slice.versions
        read = Input(path, start, until, work.row.bytes, work.row.records)
        ledger_inputs.record(writer.layout, work.row, [read])
        _keep_late(work)
        delta_target.prepare(spark, writer, StructType(list(resolved.schema)).add(CHANGED_AT, "timestamp"))
        work = replace(work, target=_found_by(work.scope.pruning, TableLog(writer.layout.table), resolved.schema))
        held = delta_target.held_rows(spark, writer.layout.table, work.target)
        with configured(spark, _settings(spark, work, held)):
            return _apply(work, held, kept)


def _tried(batch: DeriveBatch) -> str:
    layout = batch.writer.layout
    return f"resolve the {batch.flow.kind} of flow {layout.flow} of pipeline {layout.pipeline} in Spark"


def _next(batch: DeriveBatch) -> str:
    layout = batch.writer.layout
    return f"draindown run {layout.pipeline} --flow {layout.flow}   # once the file is corrected"


def _touched(
    sieve: Sieve, batch: DeriveBatch, rows: DataFrame, source: DataFrame, resolved: Resolved, kept: ExitStack
) -> _Work:
    """Find the keys to recompute, and count the images of the input. `rows`: those of `source`, and late ones."""
    piece, kind, fill = batch.slice, resolved.kind, batch.slice.start is None
    changed = rows.withColumn(SIGN, F.lit(1)) if fill else _changed(sieve, piece, rows)
    late = sieve.late(changed, fill=fill)
    if late is not None:
        late = late.where(piece.bucket.has(kind.home()))
        kept.enter_context(persisted(late))
    if fill:
        whole = source.withColumns({NET: F.lit(1), IMAGES: F.lit(1).cast("bigint")})
        return _Work(batch, source, resolved, Everything(piece.bucket), *_counted(batch, kind, whole, late), late)
    netted = images.net(sieve.images(changed, rows), resolved.used, changes=piece.changes)
    kept.enter_context(persisted(netted))
    row, came = _counted(batch, kind, netted, late)
    keys = recompute.touched(kind, netted, piece.bucket)
    kept.enter_context(persisted(keys))
    number = keys.count()
    found = Touched(keys, number, pruning_of(keys.toDF(*kind.keys), kind.keys))
    return _Work(batch, source, resolved, found, replace(row, touched=number), came, late)


def _changed(sieve: Sieve, piece: TableSlice, rows: DataFrame) -> DataFrame:
    """Return the images of the slice. It may have no versions: a decision about late rows makes a slice, too."""
    assert piece.start is not None
    if piece.start == piece.until:
        return rows.where(F.lit(False)).withColumn(SIGN, F.lit(1))
    return images.between(sieve.spark, piece.path, piece.start, piece.until, sieve.own)


def _keep_late(work: _Work) -> None:
    batch, window = work.batch, work.batch.flow.window
    if work.late is not None and work.row.late and window is not None:
        keep(batch.writer, work.late, work.resolved.kind, window, batch.slice.number, batch.run_id)
        batch.reached("late")


def _counted(batch: DeriveBatch, kind: Kind, netted: DataFrame, late: DataFrame | None) -> tuple[BatchRow, int]:
    """Return the ledger row with the account of the input, the images of the batch's bucket, and `_Work.came`.

    `late`: the images of late rows in it.
    """
    is_used, bucket = F.col(NET).cast("boolean") & kind.belongs(), batch.slice.bucket
    sums = {
        "records": F.when(bucket.has(kind.home()), F.col(IMAGES)),
        "used": F.when(bucket.has(kind.home()) & is_used, F.col(IMAGES)),
        "came": F.col(NET) * kind.places(bucket),
    }
    found = netted.agg(*(F.coalesce(F.sum(one), F.lit(0)).alias(name) for name, one in sums.items())).first()
    assert found is not None  # an aggregate without groups has one row
    layout, records, used = batch.writer.layout, int(found["records"]), int(found["used"])
    number = 0 if late is None else late.count()
    row = BatchRow(
        pipeline=layout.pipeline,
        flow=layout.flow,
        generation=batch.writer.generation,
        batch=batch.writer.batch,
        run_id=batch.run_id,
        cut=batch.slice.number,
        units=1,
        bytes=batch.slice.bytes,
        records=records + number,
        late=number,
        changed_at=batch.changed_at,
        started_at=batch.started_at,
        start=batch.start,
        form="derive",
        used=used,
        irrelevant=records - used,
    )
    return row, int(found["came"])


def _settings(spark: SparkSession, work: _Work, held: Held | None) -> Mapping[str, str]:
    """Return the session settings by the size of what is read again and of what it is compared with."""
    tuning, again = work.batch.tuning, _read_again(work)
    size = None if held is None else Size(held.number, held.bytes)
    tasks, partitions = spark.sparkContext.defaultParallelism, int(str(spark.conf.get(PARTITIONS)))
    weight = again.bytes + (size.bytes if size else 0)
    found = dict(tuning.evaluation(again.rows, size.rows if size else 0)) | dict(
        tuning.shuffling(weight, tasks, partitions)
    )
    found |= dict(tuning.adapting(weight))
    return found | dict(tuning.writing(size, again, work.batch.flow.maintenance.copy_on_write))


def _read_again(work: _Work) -> Size:
    """Return rows and bytes of the source's files that hold rows of the keys, as far as the log tells."""
    piece, pruning = work.batch.slice, _source_pruning(work)
    files = TableLog(piece.path, piece.until).files([*pruning.values, *pruning.ranges])
    concerned = pruning.files(work.source.schema, files)
    return Size(sum(file.get("num_records") or 0 for file in concerned), sum(file["size_bytes"] for file in concerned))


def _source_pruning(work: _Work) -> Pruning:
    piece = work.batch.slice
    possible = work.resolved.kind.source_pruning(work.scope.pruning)
    return _found_by(possible, TableLog(piece.path, piece.until), work.source.schema)


def _found_by(pruning: Pruning, log: TableLog, schema: StructType) -> Pruning:
    """Return the predicates without those that exclude no file of the table."""
    return pruning.narrowed(schema, log.files([*pruning.values, *pruning.ranges]))


def _apply(work: _Work, held: Held | None, kept: ExitStack) -> BatchRow:
    """Recompute the keys, compare them with the table, and commit the difference."""
    rows = work.source
    for possible in _source_pruning(work).conditions(rows.schema):
        rows = rows.where(possible)
    fated = recompute.difference(work.resolved.kind, rows, work.scope, None if held is None else held.rows)
    kept.enter_context(persisted(fated))
    row = _output(work, difference.count(fated, work.keys, work.resolved.kind.counted))
    acts = fated.where(F.col(FATE).isin(*difference.ACTS)).withColumn(CHANGED_AT, F.lit(work.batch.changed_at))
    _write(work, acts.drop(BEFORE), row, is_empty=held is None)
    return close(work.batch.writer.layout, row, work.batch.reached)


def _output(work: _Work, counts: Counts) -> BatchRow:
    """Return the ledger row with the account of the output. Raises TerminalError if it can't be right."""
    layout, keys = work.batch.writer.layout, counts.keys
    if counts.twice:
        raise TerminalError(
            "result-not-unique",
            tried=f"recompute the keys of flow {layout.flow} of pipeline {layout.pipeline}",
            found=f"the query returns several rows for {counts.twice} of them; keys are {', '.join(work.keys)}",
            changed="nothing of this batch was written",
            next=f"draindown run {layout.pipeline} --flow {layout.flow}   # once keys name one row of the result",
        )
    row = replace(
        work.row,
        inserted=keys.get(INSERT, 0),
        updated=keys.get(UPDATE, 0),
        deleted=keys.get(DELETE, 0),
        unchanged=keys.get(UNCHANGED, 0),
    )
    found = row.inserted + row.updated + row.deleted + row.unchanged
    touched = row.touched if work.batch.slice.start is not None else found
    row = replace(row, touched=touched, absent=touched - found)
    wrong = [*work.resolved.kind.wrong(row), *(["more keys than were touched"] if row.absent < 0 else [])]
    if wrong:
        raise not_adding_up(row, wrong)
    _refuse_miscounted(work, counts)
    return conserve(row)


def _refuse_miscounted(work: _Work, counts: Counts) -> None:
    """Hold what the recomputed keys count against the source rows that came and went.

    A fill has all rows of its keys, whatever the table had. Any other batch adds what came since.
    Raises TerminalError `rows-miscounted`.
    """
    layout, piece, counted = work.batch.writer.layout, work.batch.slice, work.resolved.kind.counted
    before = 0 if piece.start is None else counts.before
    if counted is None or counts.now == before + work.came:
        return
    raise TerminalError(
        "rows-miscounted",
        tried=f"recompute {work.resolved.kind.counted} of the keys that changes touch, for flow {layout.flow}",
        found=f"they count {counts.now} rows of {piece.path} at version {piece.until}. "
        f"Before they counted {before}, and {work.came} came, less those that went",
        changed="nothing of this batch is in the table",
        next=[
            f"draindown prove {layout.pipeline} --flow {layout.flow}   # names the rows of the table that are wrong",
            f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table with its source",
        ],
        in_order=True,
    )


def _write(work: _Work, acts: DataFrame, row: BatchRow, *, is_empty: bool) -> None:
    """Commit the difference, or an empty commit with the ledger row if there is none."""
    writer, metadata = work.batch.writer, row.as_metadata()
    if row.updated or row.deleted or (row.inserted and not is_empty):
        on = " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in work.keys)
        delta_target.merge(writer, acts, on, _clauses(row), work.target, metadata)
        return
    rows = acts if row.inserted else acts.where(F.lit(False))
    delta_target.append(writer, rows.drop(FATE), metadata)


def _clauses(row: BatchRow) -> Clauses:
    """Return the MERGE clauses that the batch needs. There is no sequence to guard: `until` only grows."""
    needed = {DELETE: row.deleted, UPDATE: row.updated, INSERT: row.inserted}
    said = {fate: f"s.{FATE} = '{fate}'" if number else None for fate, number in needed.items()}
    return Clauses(said[DELETE], said[UPDATE], said[INSERT])
