"""Replay of quarantined rows: batches of kind `quarantine` in the ledger, outside the stream, under
the same lease.

Refused records are parsed with the current contract. Withdrawn rows skip the contract: a separate
batch writes them back to the target unchanged, unless the target has a newer change of their key.

A row that is refused again stays open in the quarantine. The rows to release are recorded before
the MERGE, so that a crash after the MERGE can't leave applied rows open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.config.history import History
from draindown.config.partial import SEQUENCES
from draindown.flow import discards, drain_part, generations, quarantine, schema_drift
from draindown.flow.release_intent import Pending, note, release_applied
from draindown.lake.table import Table
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import WITHDRAW, BatchRow
from draindown.recovery.opening import Needs, OpenFlow
from draindown.recovery.rebuild import refuse_begun
from draindown.runs import report
from draindown.runs.report import StepReport
from draindown.runs.request import Request
from draindown.sources.registry import source_of
from draindown.spark.batch.model import Batch
from draindown.spark.batch.process import process, restore
from draindown.spark.contract import analysis, json_rows, kept_rows, transforms
from draindown.spark.contract.envelope import decoded
from draindown.spark.frames import BYTES, NUMBER, TEXT, relation
from draindown.spark.runs.opening import open_flow
from draindown.spark.sources.input import GivenRecords
from draindown.spark.sources.place import ARRIVED, CUT, ENVELOPE, FIRST_SEEN, micros
from draindown.spark.sources.port import Read
from draindown.spark.sql import CHANGED_AT
from draindown.spark.targets.commit import stamp_after
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.outlets import outlets_of

MOST = 100_000
"""Maximum rows of one batch, because they pass through the driver's memory."""
_DELIVER = "deliver these records again in a new file, and leave their ids out of the replay"


def replay(request: Request, spark: SparkSession) -> StepReport:
    """Parse the rows in `request.quarantine_ids` with the current contract and apply the accepted
    ones. Idempotent.

    Raises TransientError `lease-held`, `lease-lost`; TerminalError `rows-not-whole`,
    `rows-not-restorable`, `rows-not-read`, `rebuild-unfinished`, and the errors of a drain.
    """
    started, layout, done = now(), request.layout, list[BatchRow]()
    wanted = request.quarantine_ids or ()
    portions = [wanted[at : at + MOST] for at in range(0, len(wanted), MOST)]
    with open_flow(request, spark, Needs.RESUMED) as flow:
        analysis.refuse_unresolved(request, spark)
        for some in portions[1:]:  # before any row of the first is applied
            _refuse_unread(request, flow.generation, _chosen(request, some))
        for some in portions:
            done += _replayed(request, spark, flow, _chosen(request, some), started)
    part, _ = drain_part.part(request, flow.generation, done, replay="quarantined rows, as chosen")
    told = schema_drift.findings(layout, request.flow_spec, request.run_id)
    return report.of(request, started, "done" if done else "idle", drain=part, findings=told)


def _replayed(
    request: Request,
    spark: SparkSession,
    flow: OpenFlow,
    rows: Sequence[dict[str, Any]],
    started: datetime,
) -> list[BatchRow]:
    """Apply a portion of the rows, and return the ledger rows of its batches."""
    layout, generation, reached = request.layout, flow.generation, flow.guard()
    _refuse_unread(request, generation, rows)
    refused = [row for row in rows if row["kind"] != WITHDRAW]
    taken_out = [row for row in rows if row["kind"] == WITHDRAW]
    restored = _restored(request, spark, taken_out) if taken_out else None
    done = list[BatchRow]()
    for some in _of_one_log(refused):
        batch = replace(_batch(request, generation, some, started), reached=reached)
        done.append(
            process(spark, replace(batch, input=GivenRecords(_reads(spark, request, some))))
        )
        release_applied(layout, by=request.owner, reached=reached)
    if restored is not None:
        batch = replace(_batch(request, generation, taken_out, started), reached=reached)
        done.append(
            restore(
                spark,
                replace(batch, releases=[row["quarantine_id"] for row in taken_out]),
                restored,
            )
        )
        release_applied(layout, by=request.owner, reached=reached)
    return done


def _chosen(request: Request, wanted: Sequence[str]) -> list[dict[str, Any]]:
    rows = quarantine.whole(request.layout, wanted)
    layout = request.layout
    if any(row["kind"] == WITHDRAW for row in rows):
        refuse_begun(
            layout, f"put withdrawn rows back into flow {layout.flow} of pipeline {layout.pipeline}"
        )
    partial = [row for row in rows if row["value"] is None]
    if partial:
        raise TerminalError(
            "rows-not-whole",
            tried=f"replay {len(rows)} quarantined rows of flow {request.flow}",
            found=f"of {len(partial)} of them quarantine doesn't have the whole record (too long, or not to be written "
            f"down as text), the first at {quarantine.place_of(partial[0])}",
            next=_DELIVER,
        )
    _refuse_unnamed(request, [row for row in rows if row["kind"] != WITHDRAW])
    return rows


def _refuse_unnamed(request: Request, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows whose cells nothing names: the intake that had the header of their file was lost.

    Taken in the order of the contract, values would stand in other columns. Raises TerminalError
    `rows-not-whole`.
    """
    if not request.flow_spec.source.has_header:
        return
    headers = _headers(request, rows)
    unnamed = [row for row in rows if row["origin"]["input"] not in headers]
    if unnamed:
        raise TerminalError(
            "rows-not-whole",
            tried=f"replay {count(len(rows), 'quarantined row')} of flow {request.flow}",
            found=f"of {len(unnamed)} of them the header is lost with the intake that had their file, the first at "
            f"{quarantine.place_of(unnamed[0])}: which cell is which column, nothing says",
            next=_DELIVER,
        )


def _headers(request: Request, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str | None]:
    named = source_of(request).named
    return named.headers({row["origin"]["input"] for row in rows}) if named else {}


def _refuse_unread(request: Request, generation: int, chosen: Sequence[Mapping[str, Any]]) -> None:
    """Refuse rows whose own batch is not committed yet, if the target has no keys: both would
    append them.

    Raises TerminalError `rows-not-read`.
    """
    rows = [row for row in chosen if row["kind"] != WITHDRAW]
    if request.flow_spec.target.kind.idempotent:
        return
    unread = discards.not_read(
        request.layout, generation, {row["quarantine_id"]: _origin(row) for row in rows}
    )
    if unread:
        raise TerminalError(
            "rows-not-read",
            tried=f"replay {count(len(rows), 'quarantined row')} of flow {request.flow}",
            found=f"the batch that reads them is not done: {generations.shown(sorted({unit for unit, _ in unread}))}; "
            "it would append them a second time",
            next=f"draindown run {request.spec.pipeline}/{request.flow}   # it finishes the batch; then replay",
        )


def _of_one_log(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return rows in batches in which each place occurs once: a batch knows its records by their
    places.

    Several rows have one place if a topic was created again: one row of each topic of the name.
    """
    batches: list[list[dict[str, Any]]] = []
    seen: Counter[tuple[str, int]] = Counter()
    for row in rows:
        at = seen[_origin(row)]
        if at == len(batches):
            batches.append([])
        batches[at].append(row)
        seen[_origin(row)] += 1
    return batches


def _batch(
    request: Request, generation: int, rows: Sequence[Mapping[str, Any]], started: datetime
) -> Batch:
    writer = Writer(request.layout, request.flow_spec, generation, 0, kind="release")
    last = request.layout.tables.target.last(writer.app("rows"))
    writer = Writer(
        request.layout,
        request.flow_spec,
        generation,
        1 + (-1 if last is None else last),
        kind="release",
    )
    dotted = request.flow_spec.transform
    ids = [(_origin(row), row["quarantine_id"]) for row in rows]

    def keep_open(refused: Sequence[tuple[str, int]]) -> None:
        still = set(refused)
        released = tuple(known_id for place, known_id in ids if place not in still)
        note(request.layout, Pending(writer.app("rows"), writer.batch, request.run_id, released))

    return Batch(
        writer=writer,
        run_id=request.run_id,
        start=request.start,
        first_seen=max(row["first_seen"] for row in rows),
        changed_at=stamp_after(ledger_table.newest_stamp(request.layout), started),
        started_at=started,
        transform=transforms.load(request.root, dotted) if dotted else None,
        keep_open=keep_open,
        outlets=outlets_of(request),
    )


def _restored(
    request: Request, spark: SparkSession, rows: Sequence[Mapping[str, Any]]
) -> DataFrame:
    """Return the withdrawn rows with the target's columns, except `_changed_at`.

    Raises TerminalError `rows-not-restorable` if the table is absent or its columns changed.
    """
    path = request.layout.tables.target.path
    if not Table(path).exists:
        raise _not_restorable(request, len(rows), f"there is no table at {path}")
    schema = spark.read.format("delta").load(path).schema
    # a column of a type that JSON can't represent was added after the withdrawal, so it is NULL in
    # these rows
    without = {CHANGED_AT, *json_rows.unwritable(schema)}
    # kept are the events of a row, not its start and end
    if request.flow_spec.target.history is not None:
        without |= {*History.made}
    without.add(SEQUENCES)  # a row that was withdrawn before its table was merged has none
    held = StructType([field for field in schema if field.name not in without])
    data = [(row["value"].decode(),) for row in rows]
    whole = relation(spark, {"raw": TEXT}, data).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        stamped = StructType([*held, StructField(CHANGED_AT, TimestampType())])
        lost = whole.where(~json_rows.reads_as_written(F.col("raw"), stamped)).count()
    finally:
        whole.unpersist()
    if lost:
        raise _not_restorable(
            request, lost, f"the columns of {path} are not those they were taken from"
        )
    return whole.select(json_rows.decode(F.col("raw"), held).alias("row")).select("row.*")


def _not_restorable(request: Request, number: int, why: str) -> TerminalError:
    return TerminalError(
        "rows-not-restorable",
        tried=f"put {count(number, 'withdrawn row')} back into flow {request.flow} as they were",
        found=why,
        next=[
            f"draindown run {request.spec.pipeline}/{request.flow}   # where the table is to be filled anew",
            "deliver them again with a later sequence",
        ],
    )


def _origin(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["origin"]["input"], row["origin"]["position"]


def _reads(spark: SparkSession, request: Request, rows: Sequence[Mapping[str, Any]]) -> list[Read]:
    """Return the rows as records that were read, one frame per header or shape, with the places of
    `GivenRecords`.
    """
    headers = _headers(request, rows)

    def form_of(row: Mapping[str, Any]) -> tuple[str, str]:
        return headers.get(row["origin"]["input"]) or "", kept_rows.row_type(row["envelope"]) or ""

    reads = []
    for (header, shape), group in groupby(sorted(rows, key=form_of), key=form_of):
        some = list(group)
        data = [
            (
                row["value"],
                unit,
                0,
                position,
                row["envelope"],
                micros(row["arrived_at"]),
                micros(row["first_seen"]),
            )
            for row in some
            for unit, position in (_origin(row),)
        ]
        kinds = {"value": BYTES, "_unit": TEXT, "_block": NUMBER, "_id": NUMBER}
        frame = relation(spark, kinds | {"_kept": TEXT, ARRIVED: NUMBER, FIRST_SEEN: NUMBER}, data)
        frame = frame.withColumn("value", F.col("value").cast("string"))
        if shape:
            frame = frame.withColumn(CUT, kept_rows.cut("_kept"))
        elif any(
            row["envelope"] for row in some
        ):  # rules took the record's own time when it was first read
            frame = frame.withColumn(ENVELOPE, decoded("_kept")).drop(FIRST_SEEN)
        reads.append(Read(frame.drop("_kept"), header or None, shape or None))
    return reads
