"""One batch, from files to ledger row. The order of its steps is what makes a crash between any two of them harmless.

read raw → parse → count (one pass over the persisted batch) → drift (refused here, or told) → quarantine → newest per
key → compare with the target → tombstones → MERGE, which carries the ledger row → ledger table
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.flow import schema_drift as flow_schema_drift
from draindown.flow.schema_drift import Known
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.spark.batch import quarantine as quarantine_writer
from draindown.spark.batch import requarantine, schema_drift
from draindown.spark.batch.commit import close, written
from draindown.spark.batch.counting import count_batch, refuse_other_lines
from draindown.spark.batch.model import Batch, Counted
from draindown.spark.batch.required_columns import refuse_missing_columns, refuse_missing_values
from draindown.spark.batch.tuning import evaluation, joining, shuffling
from draindown.spark.contract import records, transforms, unreadable
from draindown.spark.contract.parsing import KEPT, WHY, parse
from draindown.spark.contract.records import Records
from draindown.spark.session import configured
from draindown.spark.sources.readers import PLACE, SETTINGS, offsets
from draindown.spark.sources.spool import emptied
from draindown.spark.sql import quoted
from draindown.spark.targets import delta_target, resolution, withheld
from draindown.spark.targets.delta_target import CHANGED_AT, Held, Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.tuning import Size


def process(spark: SparkSession, batch: Batch) -> BatchRow:
    """Apply one batch and return its ledger row; a batch that the target holds already changes nothing.

    Idempotent. Raises TerminalError `ledger-does-not-add-up`, `lines-differ`, `drift-refused`, `file-unreadable`, and
    what reading and merging raise.
    """
    with emptied(batch.writer.layout):
        return _done_before(batch) if batch.writer.is_done() else _process(spark, batch)


def _process(spark: SparkSession, batch: Batch) -> BatchRow:
    with configured(spark, _settings(batch)), ExitStack() as kept:
        with configured(spark, evaluation(batch)):
            with unreadable.named(spark, batch.writer.flow, batch.writer.layout, batch.files):
                parsed, frame = _parsed(spark, batch, _known(spark, batch.writer))
            kept.enter_context(_persisted(frame))
            with unreadable.named(spark, batch.writer.flow, batch.writer.layout, batch.files):
                counted = count_batch(parsed, frame, batch)
            refuse_other_lines(batch, counted)
            batch.was_read()
            batch.reached("read")
            found = schema_drift.look(batch, frame, counted)
            row = _begin(batch, counted)
            _quarantine(batch, frame, counted, row)
            flow_schema_drift.remember(batch.writer.layout, found.sightings)
            good = found.spread(frame.where(F.col(WHY).isNull() & ~F.col("_blank")))
            delta_target.prepare(spark, batch.writer, _stamped(good, batch).drop("_delete").schema)
        if batch.writer.flow.is_keyed:
            return _upsert(batch, good, counted, row, found.columns)
        return _append(batch, good, counted, row)


def _known(spark: SparkSession, writer: Writer) -> Known:
    columns = delta_target.held_columns(spark, writer) if writer.flow.drift.new == "add" else {}
    return flow_schema_drift.known(writer.layout, writer.flow, columns)


def restore(spark: SparkSession, batch: Batch, rows: DataFrame) -> BatchRow:
    """Apply rows that stood in the target before, as they were: `rows` has its columns, and passes no contract again.

    Idempotent, and guarded by sequence and tombstones like any batch. Raises as `process` does.
    """
    if batch.writer.is_done():
        return _done_before(batch)
    with configured(spark, _settings(batch)), _persisted(rows):
        row = _begin(batch, Counted((), Pruning(), None))
        number = rows.count()
        row = replace(row, lines=number, records=number)
        batch.keep_open(())
        batch.reached("quarantined")
        added = delta_target.added_columns(spark, batch.writer)
        return _upsert(batch, rows.withColumn("_delete", F.lit(False)), Counted((), Pruning(), None), row, added)


def _done_before(batch: Batch) -> BatchRow:
    ledger_table.heal(batch.writer.layout)
    return ledger_table.row_of(batch.writer.layout, batch.writer.generation, batch.writer.batch, batch.kind)


def _settings(batch: Batch) -> dict[str, str]:
    return SETTINGS | {"spark.sql.session.timeZone": batch.writer.flow.source.timezone}


def _parsed(spark: SparkSession, batch: Batch, known: Known) -> tuple[DataFrame, DataFrame]:
    flow = batch.writer.flow
    parts = (
        records.read(spark, flow, batch.files, batch.writer.layout.spool, known)
        if batch.files
        else _given(batch, known)
    )
    parsed = parse(spark, flow, parts, batch.first_seen)
    frame = parsed
    if batch.transform is not None:
        frame = transforms.apply(parsed, batch.transform, flow.transform or "")
    refuse_missing_columns(batch, frame)
    return parsed, refuse_missing_values(frame, batch)


def _given(batch: Batch, known: Known) -> list[Records]:
    return [records.from_lines(lines, batch.writer.flow, header, known) for lines, header in batch.lines]


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[None]:
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()


def _begin(batch: Batch, counted: Counted) -> BatchRow:
    # the intake counts a CSV header as a line of its file; the ledger, which is about what came in, leaves it out
    headers = counted.sum("headers")
    lines, blank = counted.rows(lambda _: True) - headers, counted.rows(lambda group: group["_blank"]) - headers
    return BatchRow(
        pipeline=batch.writer.layout.pipeline,
        flow=batch.writer.layout.flow,
        generation=batch.writer.generation,
        batch=batch.writer.batch,
        kind=batch.kind,
        run_id=batch.run_id,
        start=batch.start,
        cut=batch.cut,
        files=len(batch.files),
        bytes=sum(file.size for file in batch.files),
        lines=lines,
        blank=blank,
        records=lines - blank,
        reasons=counted.reasons,
        quarantined=sum(counted.reasons.values()),
        max_sequence=counted.max_sequence,
        changed_at=batch.changed_at,
        started_at=batch.started_at,
    )


def _quarantine(batch: Batch, frame: DataFrame, counted: Counted, row: BatchRow) -> None:
    if batch.kind == "quarantine":  # refused again: its row in the quarantine stays open
        batch.keep_open([line["_id"] for line in frame.where(F.col(WHY).isNotNull()).select("_id").collect()])
    elif requarantine.concerns(batch.writer):
        bad = frame.where(F.col(WHY).isNotNull()).select("_raw", WHY, *PLACE)
        files = [file.path for file in batch.files]
        fresh = requarantine.quarantine(
            batch.writer, bad, offsets(counted.blocks), files, batch.run_id, batch.first_seen
        )
        if fresh is not None:
            written(row, batch.writer.layout.quarantine, fresh, "quarantined for the first time")
    elif row.quarantined or batch.writer.holds(batch.writer.layout.quarantine, "quarantine"):
        bad = frame.where(F.col(WHY).isNotNull()).select("_raw", WHY, *PLACE)
        quarantine_writer.quarantine(batch.writer, bad, offsets(counted.blocks), batch.run_id, batch.first_seen)
        written(row, batch.writer.layout.quarantine, row.quarantined, "quarantined")
    batch.reached("quarantined")


def _stamped(good: DataFrame, batch: Batch) -> DataFrame:
    names = [name for name in good.columns if name not in KEPT]
    return good.select(
        *[F.col(quoted(name)) for name in names], "_rescued", F.lit(batch.changed_at).alias(CHANGED_AT), "_delete"
    )


def _append(batch: Batch, good: DataFrame, counted: Counted, row: BatchRow) -> BatchRow:
    expected = counted.rows(lambda group: group["reason"] is None and not group["_blank"])
    row = replace(row, inserted=expected)
    with configured(good.sparkSession, evaluation(batch)):
        delta_target.append(batch.writer, _stamped(good, batch).drop("_delete"), row.as_metadata())
    return close(batch.writer.layout, row, batch.reached)


def _upsert(batch: Batch, good: DataFrame, counted: Counted, row: BatchRow, added: Sequence[str]) -> BatchRow:
    spark, table = good.sparkSession, batch.writer.layout.table
    held = delta_target.held_rows(spark, table, counted.pruning)
    batch.compared(held, counted.pruning)
    order = resolution.order(delta_target.columns_of(spark, table), added)
    stones = delta_target.held_tombstones(spark, batch.writer, counted.pruning)
    number = sum(one.number for one in (held, stones) if one is not None)
    beside = None if held is None else Size(held.number, held.bytes)
    small = batch.tuning.is_small_beside(beside, row.records)
    # no row of a target that is much larger is shuffled but those that change
    shuffled = {} if small else shuffling(batch, spark, beside)
    most = batch.writer.flow.maintenance.copy_on_write
    writing = batch.tuning.writing(beside, Size(row.records, row.bytes), most)
    with configured(spark, {**evaluation(batch, number), **shuffled, **writing}), ExitStack() as kept:
        fated, counts = _fated(batch, good, held, stones, small, order, kept)
        row = _by_fate(row, counts)
        fated = fated.withColumn(CHANGED_AT, F.lit(batch.changed_at))
        _remember(batch, fated, row)
        with configured(spark, joining(batch, spark) if small else {}):
            _merge(batch, fated, counted.pruning, row, small)
        return close(batch.writer.layout, row, batch.reached)


def _fated(
    batch: Batch,
    good: DataFrame,
    held: Held | None,
    stones: Held | None,
    small: bool,
    order: Sequence[str],
    kept: ExitStack,
) -> tuple[DataFrame, Mapping[str, int]]:
    """One row per key with its fate, persisted until `kept` ends, and how many there are of each."""
    goal, spark = batch.writer.flow.target, good.sparkSession
    winners = resolution.newest(_stamped(good, batch).drop(CHANGED_AT), goal.keys, goal.sequence_by, order)
    kept_out = withheld.keys(spark, batch.writer, winners.schema, batch.releases)
    rows = None if held is None else held.rows
    if rows is not None and small:
        rows = resolution.among(rows, good, goal.keys)
    deleted = None if stones is None else stones.rows
    fated = resolution.compare(winners, rows, deleted, goal.keys, goal.sequence_by, kept_out)
    kept.enter_context(_persisted(fated))
    counts = resolution.count(fated)
    if rows is not None and resolution.has_ties(counts):
        fated = resolution.settle_ties(fated, rows, goal.keys, order)
        kept.enter_context(_persisted(fated))
        counts = resolution.count(fated)
    return fated, counts


def _by_fate(row: BatchRow, counts: Mapping[str, int]) -> BatchRow:
    return replace(
        row,
        superseded=counts.get("superseded", 0) + counts["_superseded"],
        duplicate=counts.get("duplicate", 0) + counts["_duplicates"],
        inserted=counts.get("insert", 0),
        updated=counts.get("update", 0),
        deleted=counts.get("delete", 0),
        remembered=counts.get("remember", 0),
    )


def _remember(batch: Batch, fated: DataFrame, row: BatchRow) -> None:
    deletes = row.deleted + row.remembered
    if deletes or batch.writer.holds(batch.writer.layout.tombstones, "tombstones"):
        delta_target.remember(batch.writer, fated, batch.changed_at)
        written(row, batch.writer.layout.tombstones, deletes, "deletes")
    batch.reached("remembered")


def _merge(batch: Batch, fated: DataFrame, pruned: Pruning, row: BatchRow, small: bool) -> None:
    if row.inserted or row.updated or row.deleted:
        # beside a large table a pass of its own is the better one: it hashes the batch instead of sorting the table
        inserts_only = not (row.updated or row.deleted or small)
        delta_target.merge(batch.writer, fated, pruned, row.as_metadata(), inserts_only=inserts_only)
    else:
        nothing = fated.where(F.lit(False)).drop("_delete", resolution.FATE, *resolution.LOSERS)
        delta_target.append(batch.writer, nothing, row.as_metadata())
