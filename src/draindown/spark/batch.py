"""One batch, from files to ledger row. The order of its steps is what makes a crash between any two of them harmless.

read raw → parse → count (one pass over the persisted batch) → drift (refused here, or told) → quarantine → newest per
key → compare with the target → tombstones → MERGE, which carries the ledger row → ledger table
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, StringType, TimestampType

from draindown import drift, ledger, ledger_table
from draindown.drift import Known
from draindown.errors import TerminalError
from draindown.layout import FlowLayout
from draindown.ledger import BatchRow, Origin
from draindown.spark import (
    drifting,
    fates,
    gauge,
    records,
    refused,
    requarantine,
    target,
    transforms,
    unreadable,
    withheld,
)
from draindown.spark.evaluation import quoted
from draindown.spark.parsing import KEPT, WHY, parse
from draindown.spark.pruning import Pruning, measures, pruning, text_safe
from draindown.spark.reading import PLACE, SETTINGS, InputFile, local_path, offsets
from draindown.spark.records import Records
from draindown.spark.session import INTERPRETED, configured, heap_bytes
from draindown.spark.target import CHANGED_AT, Held, Writer
from draindown.spark.transforms import Transform
from draindown.steps import Reached, untold

_LITTLE = 50_000
"""Lines below which a batch is interpreted rather than compiled."""
_LITTLE_HELD = 150_000
"""Rows of target and tombstones to compare it with, from which on comparison and MERGE are compiled all the same."""
_COPIED = 100
"""Rows of little files that are written anew for one that a batch brings, at most."""
_COPY_ON_WRITE = {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}
_PARTITIONS = "spark.sql.shuffle.partitions"
_ONE_FILE = {_PARTITIONS: "1"}
"""Of the comparison on, whose rows the MERGE takes in the same partitions."""
_SHUFFLED = 64 * 1024**2
"""Bytes of batch and target for which a shuffle of theirs gets a partition, as adaptive execution would have it."""
_SENT = 500_000
"""Records of a batch whose keys are held in memory once more, to be sent to a table that is much larger."""
_MUCH_MORE = 4
"""Times the batch's records. So many rows of the target are not sorted to be compared: the keys are sent to them."""
_HASHED_SHARE = 64
"""Of the heap, for a batch that the MERGE may hash: what lies in a hash table takes more, and never spills."""
_HASH_BOUND = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
_PARTITION_SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


@dataclass(frozen=True)
class Batch:
    """What one batch is made of: files, or for a replay `lines`.

    `first_seen`: when its files were taken in; `changed_at`: stamp of the rows it changes; `was_read`: called when
    everything is read and nothing written, raises if the files are no longer what they were; `keep_open`: told the
    `_id` of every line that a replay refuses again, before anything is written; `releases`: ids of withheld rows that
    this batch may bring back; `compared`: told the rows of the target among which the batch looks for its keys, None if
    there are none, and by what they were chosen; `reached`: told begun, read, quarantined, remembered, merged,
    recorded.
    """

    writer: Writer
    run_id: str
    first_seen: datetime
    changed_at: datetime
    started_at: datetime
    cut: int = 0
    files: Sequence[InputFile] = ()
    lines: Sequence[tuple[DataFrame, str | None]] = ()
    transform: Transform | None = None
    reached: Reached = untold
    was_read: Callable[[], None] = lambda: None
    keep_open: Callable[[Sequence[int]], None] = lambda _: None
    releases: Sequence[str] = ()
    compared: Callable[[Held | None, Pruning], None] = lambda *_: None

    @property
    def origin(self) -> Origin:
        """Where the rows come from, as the ledger says it."""
        kind = self.writer.origin.partition(":")[0]
        return "replay" if kind == "replay" else "source" if kind == "source" else "quarantine"


@dataclass(frozen=True)
class Counted:
    """What the one pass over a parsed batch found.

    `groups`: rows of PLACE, blank, reason, field, n, smallest id, and how many have marks and unknown fields.
    """

    groups: Sequence[Row]
    pruning: Pruning
    max_sequence: str | None

    def rows(self, wanted: Callable[[Row], bool]) -> int:
        """How many lines are in the groups that `wanted` picks."""
        return sum(group["n"] for group in self.groups if wanted(group))

    def sum(self, name: str) -> int:
        """The sum of a number that every group has."""
        return sum(group[name] for group in self.groups)

    @property
    def reasons(self) -> dict[str, int]:
        """Refused rows by reason, and by field where one is to blame (`type:dep_delay`)."""
        found: Counter[str] = Counter()
        for group in self.groups:
            if group["reason"] is not None:
                found[":".join(filter(None, (group["reason"], group["field"])))] += group["n"]
        return dict(sorted(found.items()))

    @property
    def blocks(self) -> list[tuple[str, int, int, int]]:
        """(file, block, lines, smallest id) of every block read."""
        lines: Counter[tuple[str, int]] = Counter()
        smallest: dict[tuple[str, int], int] = {}
        for group in self.groups:
            block = (group["_file"], group["_block"])
            lines[block] += group["n"]
            smallest[block] = min(smallest.get(block, group["smallest"]), group["smallest"])
        return [(*block, lines[block], smallest[block]) for block in lines]


def process(spark: SparkSession, batch: Batch) -> BatchRow:
    """Apply one batch and return its ledger row; a batch that the target holds already changes nothing.

    Idempotent. Raises TerminalError `ledger-does-not-add-up`, `lines-differ`, `drift-refused`, `file-unreadable`, and
    what reading and merging raise.
    """
    if batch.writer.is_done():
        return _done_before(batch)
    with configured(spark, _settings(batch)), ExitStack() as kept:
        with configured(spark, _evaluation(batch)):
            with unreadable.named(spark, batch.writer.flow, batch.writer.layout, batch.files):
                parsed, frame = _parsed(spark, batch, _known(spark, batch.writer))
            kept.enter_context(_persisted(frame))
            with unreadable.named(spark, batch.writer.flow, batch.writer.layout, batch.files):
                counted = _count(parsed, frame, batch)
            _lines_agree(batch, counted)
            batch.was_read()
            batch.reached("read")
            found = drifting.look(batch, frame, counted)
            row = _begin(batch, counted)
            _quarantine(batch, frame, counted, row)
            drift.remember(batch.writer.layout, found.sightings)
            good = found.spread(frame.where(F.col(WHY).isNull() & ~F.col("_blank")))
            target.prepare(spark, batch.writer, _stamped(good, batch).drop("_delete").schema)
        if batch.writer.flow.is_keyed:
            return _upsert(batch, good, counted, row, found.columns)
        return _append(batch, good, counted, row)


def _known(spark: SparkSession, writer: Writer) -> Known:
    columns = target.held_columns(spark, writer) if writer.flow.drift.new == "add" else {}
    return drift.known(writer.layout, writer.flow, columns)


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
        added = target.added_columns(spark, batch.writer)
        return _upsert(batch, rows.withColumn("_delete", F.lit(False)), Counted((), Pruning(), None), row, added)


def _done_before(batch: Batch) -> BatchRow:
    ledger_table.heal(batch.writer.layout)
    return ledger_table.row_of(batch.writer.layout, batch.writer.generation, batch.writer.batch, batch.origin)


def _settings(batch: Batch) -> dict[str, str]:
    return SETTINGS | {"spark.sql.session.timeZone": batch.writer.flow.source.timezone}


def _evaluation(batch: Batch, held: int = 0) -> Mapping[str, str]:
    """How the batch's plans are run: `held` rows of target and tombstones are as much to work on as its own lines."""
    little = sum(file.counted for file in batch.files) < _LITTLE and held < _LITTLE_HELD
    return INTERPRETED if little else {}


def _parsed(spark: SparkSession, batch: Batch, known: Known) -> tuple[DataFrame, DataFrame]:
    flow = batch.writer.flow
    parts = records.read(spark, flow, batch.files, known) if batch.files else _given(batch, known)
    parsed = parse(spark, flow, parts, batch.first_seen)
    frame = parsed
    if batch.transform is not None:
        frame = transforms.apply(parsed, batch.transform, flow.transform or "")
    _has_columns(batch, frame)
    return parsed, _refuse_missing(frame, batch)


def _given(batch: Batch, known: Known) -> list[Records]:
    return [records.from_lines(lines, batch.writer.flow, header, known) for lines, header in batch.lines]


def _has_columns(batch: Batch, frame: DataFrame) -> None:
    goal = batch.writer.flow.target
    needed = [*goal.keys, *goal.sequence_by, *goal.partition_by]
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise TerminalError(
            "column-missing",
            tried=f"find the target's columns in what {batch.writer.flow.transform or 'the contract'} gives",
            found=f"no {', '.join(missing)} among {', '.join(c for c in frame.columns if c not in KEPT)}",
            next=f"draindown run {batch.writer.layout.pipeline}   # once it gives them",
        )


def _refuse_missing(frame: DataFrame, batch: Batch) -> DataFrame:
    """Refuse rows whose key or sequence came out of the transform as NULL, as no UTF-8, or empty where it names a
    partition.

    Delta keeps an empty partition value as NULL: an empty key would never be found again, any other column says NULL.
    The statistics and literals that prune the target hold UTF-8 only: another key would not be found again either.
    """
    goal = batch.writer.flow.target
    texts = {field.name for field in frame.schema if isinstance(field.dataType, StringType)}
    text = [name for name in goal.partition_by if name in texts]
    why = F.col(WHY)
    for name in dict.fromkeys([*goal.keys, *goal.sequence_by]):
        value = F.col(quoted(name))
        absent = value.isNull() | (value == "") if name in text else value.isNull()
        bad = F.when(absent, _reason("missing", name))
        bad = bad.when(~F.is_valid_utf8(value), _reason("type", name)) if name in texts else bad
        why = F.coalesce(why, F.when(~F.col("_blank"), bad))
    if batch.writer.flow.is_keyed:  # the text of good rows is not kept in memory
        frame = frame.withColumn(WHY, why).withColumn("_raw", F.when(F.col(WHY).isNotNull(), F.col("_raw")))
    emptied = {name: F.nullif(F.col(quoted(name)), F.lit("")) for name in text if name not in goal.keys}
    return frame.withColumns(emptied) if emptied else frame


def _reason(reason: str, field: str) -> Column:
    return F.struct(
        F.lit(reason).alias("reason"), F.lit(field).alias("field"), F.lit(None).cast("string").alias("detail")
    )


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[None]:
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        frame.unpersist()


def _count(parsed: DataFrame, frame: DataFrame, batch: Batch) -> Counted:
    goal = batch.writer.flow.target
    exact = [
        name
        for name in text_safe(frame.schema, goal.partition_by)
        if transforms.depends_only_on(frame, name, set(goal.keys), parsed)
    ]
    good = F.col(WHY).isNull() & ~F.col("_blank")
    extra = measures(frame, exact, goal.keys, good)
    if goal.sequence_by:
        extra.append(F.max(F.when(good, _sequence(frame, goal.sequence_by[0]))).alias("_s"))
    drifted = [F.count("_drift").alias("marked"), F.count(F.when(good, F.col("_rescued"))).alias("unknown")]
    groups = (
        frame.groupBy("_file", "_block", "_blank", F.col(f"{WHY}.reason"), F.col(f"{WHY}.field"))
        .agg(F.count("*").alias("n"), F.min("_id").alias("smallest"), *drifted, *extra)
        .collect()
    )
    newest = [group["_s"] for group in groups if goal.sequence_by and group["_s"] is not None]
    last = max(newest, key=lambda found: found["value"])["text"] if newest else None
    return Counted(groups, pruning(groups, frame.schema, exact, goal.keys), last)


def _sequence(frame: DataFrame, name: str) -> Column:
    """Value and text of a row's sequence: as texts, 9 is more than 10."""
    column, kind = F.col(quoted(name)), frame.schema[name].dataType
    text = column.cast("string")
    # Python's times end with the year 9999, and follow this machine's clocks, which go back once a year
    value = (
        F.unix_micros(column) if isinstance(kind, TimestampType) else column if isinstance(kind, NumericType) else text
    )
    return F.struct(value.alias("value"), text.alias("text"))


def _lines_agree(batch: Batch, counted: Counted) -> None:
    """What Spark read of each file is what the intake counted in its bytes."""
    seen: Counter[str] = Counter()
    for uri, _, lines, _ in counted.blocks:
        seen[local_path(uri)] += lines
    wrong = {
        file.path: f"{file.path}: {file.counted} lines when it was taken in, {seen[file.path]} now"
        for file in batch.files
        if not file.multiline and file.counted != seen[file.path]
    }
    if wrong:
        raise TerminalError(
            "lines-differ",
            tried=f"read cut {batch.cut} of flow {batch.writer.layout.flow}",
            found="; ".join(list(wrong.values())[:5]),
            changed="nothing of this batch is in the table",
            next=[f"draindown audit {batch.writer.layout.pipeline}", unreadable.discarding(batch.writer.layout, wrong)],
        )


def _begin(batch: Batch, counted: Counted) -> BatchRow:
    lines, blank = counted.rows(lambda _: True), counted.rows(lambda group: group["_blank"])
    return BatchRow(
        pipeline=batch.writer.layout.pipeline,
        flow=batch.writer.layout.flow,
        generation=batch.writer.generation,
        batch=batch.writer.batch,
        origin=batch.origin,
        run_id=batch.run_id,
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
    if batch.origin == "quarantine":  # refused again: its row in the quarantine stays open
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
        refused.quarantine(batch.writer, bad, offsets(counted.blocks), batch.run_id, batch.first_seen)
        written(row, batch.writer.layout.quarantine, row.quarantined, "quarantined")
    batch.reached("quarantined")


def written(row: BatchRow, path: str, expected: int, fate: str) -> None:
    """Hold what a side table's newest commit says it wrote against what the batch counted."""
    wrote = int((ledger_table.last_commit(path).get("operationMetrics") or {}).get("numOutputRows", 0))
    if wrote != expected:
        raise ledger.not_adding_up(row, [f"{fate}: {expected} in the batch, {wrote} written to {path}"])


def _stamped(good: DataFrame, batch: Batch) -> DataFrame:
    names = [name for name in good.columns if name not in KEPT]
    return good.select(
        *[F.col(quoted(name)) for name in names], "_rescued", F.lit(batch.changed_at).alias(CHANGED_AT), "_delete"
    )


def _append(batch: Batch, good: DataFrame, counted: Counted, row: BatchRow) -> BatchRow:
    expected = counted.rows(lambda group: group["reason"] is None and not group["_blank"])
    row = replace(row, inserted=expected)
    with configured(good.sparkSession, _evaluation(batch)):
        target.append(batch.writer, _stamped(good, batch).drop("_delete"), row.as_metadata())
    return close(batch.writer.layout, row, batch.reached)


def _upsert(batch: Batch, good: DataFrame, counted: Counted, row: BatchRow, added: Sequence[str]) -> BatchRow:
    spark, table = good.sparkSession, batch.writer.layout.table
    held = target.held_rows(spark, table, counted.pruning)
    batch.compared(held, counted.pruning)
    order = fates.order(target.columns_of(spark, table), added)
    stones = target.held_tombstones(spark, batch.writer, counted.pruning)
    number = sum(one.number for one in (held, stones) if one is not None)
    how = {**_evaluation(batch, number), **_shuffling(spark, held, row), **_writing(batch, held, row)}
    with configured(spark, how), ExitStack() as kept:
        fated, counts = _fated(batch, good, held, stones, row, order, kept)
        row = _by_fate(row, counts)
        fated = fated.withColumn(CHANGED_AT, F.lit(batch.changed_at))
        _remember(batch, fated, row)
        with configured(spark, _joining(spark, held, row)):
            _merge(batch, fated, counted.pruning, row, held)
        return close(batch.writer.layout, row, batch.reached)


def _is_small_beside(held: Held | None, row: BatchRow) -> bool:
    """Whether the batch is so much smaller than the target that its keys are looked up where they lie."""
    if held is None or row.records > _SENT:
        return False
    return held.number >= max(_LITTLE_HELD, _MUCH_MORE * row.records)


def _joining(spark: SparkSession, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """How the MERGE joins, once the batch is persisted: a light one is hashed, so that the target is not sorted.

    Spark broadcasts no side whose unmatched rows a join keeps, and heeds the bound only if it is no lower than the
    advisory size. Of two sides under it the lighter one is hashed.
    """
    if not _is_small_beside(held, row) or gauge.persisted(spark).bytes > heap_bytes(spark) // _HASHED_SHARE:
        return {}
    return {_HASH_BOUND: str(spark.conf.get(_PARTITION_SIZE))}


def _shuffling(spark: SparkSession, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """Into how many partitions comparison and MERGE shuffle: more than the session says only if tasks can take them."""
    if _is_small_beside(held, row):  # no row of the target is shuffled but those that change
        return {}
    weight = gauge.persisted(spark).bytes + (held.bytes if held else 0)
    wanted = min(ceil(weight / _SHUFFLED), spark.sparkContext.defaultParallelism)
    return {_PARTITIONS: str(wanted)} if wanted > int(str(spark.conf.get(_PARTITIONS))) else {}


def _writing(batch: Batch, held: Held | None, row: BatchRow) -> Mapping[str, str]:
    """How the MERGE writes: marks and small files beside little ones cost every reader more than a copy costs now."""
    most = batch.writer.flow.maintenance.copy_on_write
    if held is not None and (held.bytes > most or held.number > _COPIED * row.records):
        return {}
    little = row.records < _LITTLE and 0 < row.bytes <= most
    return _COPY_ON_WRITE | (_ONE_FILE if little else {})


def _fated(
    batch: Batch,
    good: DataFrame,
    held: Held | None,
    stones: Held | None,
    row: BatchRow,
    order: Sequence[str],
    kept: ExitStack,
) -> tuple[DataFrame, Mapping[str, int]]:
    """One row per key with its fate, persisted until `kept` ends, and how many there are of each."""
    goal, spark = batch.writer.flow.target, good.sparkSession
    winners = fates.newest(_stamped(good, batch).drop(CHANGED_AT), goal.keys, goal.sequence_by, order)
    kept_out = withheld.keys(spark, batch.writer, winners.schema, batch.releases)
    rows = None if held is None else held.rows
    if rows is not None and _is_small_beside(held, row):
        rows = fates.among(rows, good, goal.keys)
    deleted = None if stones is None else stones.rows
    fated = fates.compare(winners, rows, deleted, goal.keys, goal.sequence_by, kept_out)
    kept.enter_context(_persisted(fated))
    counts = fates.count(fated)
    if rows is not None and fates.has_ties(counts):
        fated = fates.settle_ties(fated, rows, goal.keys, order)
        kept.enter_context(_persisted(fated))
        counts = fates.count(fated)
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
        target.remember(batch.writer, fated, batch.changed_at)
        written(row, batch.writer.layout.tombstones, deletes, "deletes")
    batch.reached("remembered")


def _merge(batch: Batch, fated: DataFrame, pruned: Pruning, row: BatchRow, held: Held | None) -> None:
    if row.inserted or row.updated or row.deleted:
        # beside a large table a pass of its own is the better one: it hashes the batch instead of sorting the table
        inserts_only = not (row.updated or row.deleted or _is_small_beside(held, row))
        target.merge(batch.writer, fated, pruned, row.as_metadata(), inserts_only=inserts_only)
    else:
        nothing = fated.where(F.lit(False)).drop("_delete", fates.FATE, *fates.LOSERS)
        target.append(batch.writer, nothing, row.as_metadata())


def close(layout: FlowLayout, row: BatchRow, reached: Reached) -> BatchRow:
    """Make the ledger row of the commit just made, after holding every fate against what the commit did.

    Raises TerminalError `ledger-does-not-add-up`.
    """
    reached("merged")
    commit = ledger_table.last_commit(layout.table)
    found = ledger.closed(commit)
    if found is None or found.place != row.place:
        raise ledger.not_adding_up(row, [f"version {commit['version']} of the table is not this batch's commit"])
    ledger_table.record(layout, [found])
    reached("recorded")
    return found


def stamp_after(last: datetime | None, now: datetime) -> datetime:
    """A stamp for the next batch's rows: now, but always later than every earlier stamp, whatever the clock does."""
    return now if last is None or now > last else last + timedelta(microseconds=1)
