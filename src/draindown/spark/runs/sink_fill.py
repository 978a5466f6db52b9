"""Fill a sink: send it every row of the table that it should hold, and have it delete what the table does not have.

The rows go out in portions of whole files, each with an identity of its own, from one version of the table under the
flow's lease. A fill that was interrupted goes on with its next portion while the table is at that version, and begins
again otherwise: batches that ran in between have sent newer rows. Files are read once to send, and once more for their
keys where the sink deletes what the table does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.flow import sink_state
from draindown.flow.sink_columns import columns_of, place_of, print_of
from draindown.flow.sink_state import FILL, Fill, Sending, SinkState
from draindown.lake.table_log import TableLog
from draindown.recovery.opening import Needs, OpenFlow
from draindown.runs.request import Request
from draindown.sinks import registry
from draindown.sinks.port import FATE, Sink, SinkBatch
from draindown.spark.runs.opening import open_flow
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.outlets import keep_misfits, keyed_by_origin, refuse_unresolved, refused_rows, wanted
from draindown.spark.targets.shares import PORTION, Judged, Share, Wanted, was_of
from draindown.spark.targets.table_files import TableFiles
from draindown.spec.sinks import FlowSink


@dataclass(frozen=True)
class Filled:
    """What a fill did.

    `deleted`: rows that the sink had and the table does not; None if the sink can't delete by absence.
    """

    sink: str
    version: int
    rows: int
    unsendable: int
    deleted: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a flat, JSON-ready dict."""
        return asdict(self)


@dataclass
class _Work:
    """A fill in progress: its sink, and the rows that the sink may hold, by portion."""

    request: Request
    name: str
    target: Sink
    wanted: Wanted
    rows: Callable[[int], DataFrame]
    flow: OpenFlow
    epoch: int
    fill: Fill

    def judged(self, portion: int, kept: ExitStack) -> tuple[Judged, Share]:
        """Return the rows of a portion, and what the sink gets of it."""
        judged = Judged(self.rows(portion), [self.wanted], kept)
        (share,) = judged.shares()
        return judged, share

    def batch(self, number: int, rows: int, digest: str, portions: int = 1) -> SinkBatch:
        """Return the identity of a portion; the number after the last one is that of the end."""
        place, generation = place_of(self.request, self.name), self.flow.generation
        writer = sink_state.fill_writer(self.request.layout, self.name, self.fill.number)
        return SinkBatch(place, writer, number, generation, FILL, number, self.epoch, rows, digest, portions)

    def guarded(self, judged: Judged, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are sent while the lease is held. Raises TransientError `lease-lost`."""
        for part in judged.rows(share):
            self.flow.check()
            yield part

    def keys(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys of all rows that the sink should hold."""
        names = [column.name for column in self.wanted.columns.values() if column.key]
        for portion in range(self.fill.portions):
            with ExitStack() as kept:
                judged, share = self.judged(portion, kept)
                yield from (part.select(names) for part in self.guarded(judged, share))


def fill(request: Request, spark: SparkSession, name: str, *, progress: Callable[[str], None] = print) -> Filled:
    """Fill a sink of the request's flow. After a crash the same call goes on.

    Raises TransientError `lease-held`, `lease-lost`, `sink-batch-in-flight`; TerminalError `nothing-to-fill`, and the
    errors of resuming a flow and of the sink.
    """
    sink = request.declared.also_to[name]
    with open_flow(request, spark, Needs.RESUMED) as flow, ExitStack() as kept:
        sink_state.refuse_in_flight(flow.layout)
        source = flow.layout.quarantine if sink.is_of_refused else flow.layout.table
        epoch = sink_state.next_epoch(flow.layout, flow.check)
        files = _files(request, spark, name, source)
        begun = _of(request, name, TableLog(source).version, files.portions, epoch)
        target = kept.enter_context(closing(registry.sink_of(sink, place_of(request, name))))
        never: dict[str, Column] = {key: F.lit(False) for key in was_of({name: sink}, spark)}

        def rows(portion: int) -> DataFrame:
            return _upserts(request, sink, files.portion(portion)).withColumns(never)

        types = {
            field.name: field.dataType.simpleString() for field in _upserts(request, sink, files.portion(0)).schema
        }
        columns = columns_of(request, sink, {column: kind for column, kind in types.items() if column != FATE})
        refuse_unresolved(request, {name: sink}, rows(0))
        target.fence(epoch)
        target.check(list(columns.values()))
        _begin(request, name, begun)
        writer = sink_state.fill_writer(flow.layout, name, begun.number)
        skips = SinkState.read(flow.layout, name).skipped(writer, sink_state.ALL_PORTIONS)
        asked = wanted(name, sink, columns, target, skips)
        return _send(_Work(request, name, target, asked, rows, flow, epoch, begun), progress)


def _files(request: Request, spark: SparkSession, name: str, source: str) -> TableFiles:
    """Return the newest version of the table, which the lease keeps. Raises TerminalError `nothing-to-fill`."""
    log = TableLog(source)
    if not log.exists:
        raise TerminalError(
            "nothing-to-fill",
            tried=f"fill sink {name} of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=f"there is no table at {source}",
            changed="nothing",
            next=f"draindown run {request.spec.pipeline} --flow {request.flow}",
        )
    return TableFiles(spark, source, log.version, PORTION)


def _of(request: Request, name: str, version: int, portions: int, epoch: int) -> Fill:
    """Return the fill that goes on, or a new one, whose number is the epoch: no fill had it before."""
    state, known = SinkState.read(request.layout, name), print_of(request, request.declared.also_to[name])
    found = state.fill
    if found is not None and (found.version, found.portions, found.fingerprint) == (version, portions, known):
        return found
    return Fill(epoch, version, portions, known)


def _begin(request: Request, name: str, begun: Fill) -> None:
    """Write a new fill down, once the sink can take it. The sink is stale until its end."""
    state = SinkState.read(request.layout, name)
    if state.fill != begun:
        again = state.why_stale(begun.fingerprint) or sink_state.UNFILLED
        replace(state, fills=state.fills + 1, fill=begun, stale=again).write(request.layout, name)


def _upserts(request: Request, sink: FlowSink, rows: DataFrame) -> DataFrame:
    """Return rows of the table, or of the quarantine, as upserts."""
    if sink.is_of_refused:
        return refused_rows(rows)
    rows = rows if request.declared.target.row_keys else keyed_by_origin(rows)
    return rows.withColumn(FATE, F.lit("upsert"))


def _send(work: _Work, progress: Callable[[str], None]) -> Filled:
    """Send the portions that are left, and have the sink delete what none of them has."""
    layout, rows, unsendable = work.request.layout, 0, 0
    kind = f"fill:{work.name}:{work.fill.number}"
    writer = TableWriter(layout, work.request.declared, work.flow.generation, 0, kind)
    for portion in range(work.fill.done, work.fill.portions):
        with ExitStack() as kept:
            judged, share = work.judged(portion, kept)
            work.flow.check()
            if share.counts["unsendable"]:
                keep_misfits(replace(writer, batch=portion), judged.misfits(share), work.request.run_id)
            if share.rows:
                own = work.batch(portion, share.rows, share.digest, share.portions)
                work.target.send(own, share.columns, work.guarded(judged, share))
            rows, unsendable = rows + share.rows, unsendable + share.counts["unsendable"]
        work.flow.check()
        state = SinkState.read(layout, work.name)
        replace(state, fill=replace(work.fill, done=portion + 1)).write(layout, work.name)
        progress(f"portion {portion + 1} of {work.fill.portions}: {count(rows, 'row')} sent")
    work.flow.check()
    columns = list(work.wanted.columns.values())
    end = work.batch(work.fill.portions, 0, "")
    deleted = work.target.retain(end, columns, work.keys())
    work.flow.check()
    recorded = work.target.records
    _ended(work, Sending(end.writer, end.number, FILL, rows, end.digest, sent=True, recorded=recorded))
    return Filled(work.name, work.fill.version, rows, unsendable, deleted)


def _ended(work: _Work, end: Sending) -> None:
    """Write down that the sink is as the table. What it got before the fill does not count any more."""
    layout = work.request.layout
    state = SinkState.read(layout, work.name)
    left = replace(state, filled=work.fill.fingerprint, stale="", fill=None, skips=(), sendings=(end,))
    left.write(layout, work.name)
