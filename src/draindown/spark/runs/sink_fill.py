"""Fill a sink: send it every row of the table that it should hold, and have it delete what the
table does not have.

The rows go out in portions, each with an identity of its own, from one version of the table under
the flow's lease. A fill that was interrupted goes on with its next portion while the table is at
that version, and begins again otherwise: batches that ran in between have sent newer rows.

A sink that was as the table until a rebuild took its place gets what differs from the version
before. Any other gets deletes for keys that such versions had, and then all rows, by whole files:
these are read once to send, and once more for their keys where the sink deletes what the table does
not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.base.formatting import count
from draindown.flow import sink_identity, sink_state
from draindown.flow.sink_columns import behind, columns_of, fill_command, holds_of, place_of
from draindown.flow.sink_state import Fill, Sending, SinkState
from draindown.lake.table import Table
from draindown.recovery import sink_bases
from draindown.recovery.opening import Needs, OpenFlow
from draindown.runs.request import Request
from draindown.sinks import refusals, registry
from draindown.sinks.port import FATE, FILL, Sink, SinkBatch
from draindown.spark.runs.fill_rows import FillRows, Portions
from draindown.spark.runs.opening import open_flow
from draindown.spark.session import configured
from draindown.spark.targets.delta_target import TableWriter
from draindown.spark.targets.outlets import keep_misfits, refuse_unresolved, wanted, zoned
from draindown.spark.targets.shares import PORTION, Judged, Share, Wanted, was_of
from draindown.spark.targets.table_files import TableFiles


@dataclass(frozen=True)
class Filled:
    """What a fill did.

    `compared`: the versions from before rebuilds that the table was compared with. `whole`: whether
    every row was sent, or what differs. `gone`: keys that only these versions have, sent as
    deletes. `deleted`: other rows that the sink had and the table does not; None if the sink can't
    delete by absence.
    """

    sink: str
    version: int
    rows: int
    unsendable: int
    deleted: int | None
    compared: tuple[int, ...] = ()
    whole: bool = True
    gone: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a flat, JSON-ready dict."""
        return asdict(self)


@dataclass
class _Work:
    """A fill in progress: its sink, and the rows that the sink may hold.

    `parts`: what is sent, in this order. `every`: all rows, the last of the parts unless only what
    differs is sent.
    """

    request: Request
    name: str
    target: Sink
    wanted: Wanted
    parts: Sequence[Portions]
    every: Portions
    flow: OpenFlow
    epoch: int
    fill: Fill

    def part(self, number: int) -> DataFrame:
        """Return the rows of a portion, counted through all parts."""
        for one in self.parts:
            if number < one.portions:
                return one.portion(number)
            number -= one.portions
        raise IndexError(number)

    def judged(self, rows: DataFrame, kept: ExitStack) -> tuple[Judged, Share]:
        """Return the rows of a portion, and what the sink gets of it: each delete is of a row that
        it may have.
        """
        was = was_of({self.name: self.wanted.spec}, rows.sparkSession)
        judged = Judged(
            rows.withColumns({name: F.col(FATE) == "delete" for name in was}), [self.wanted], kept
        )
        (share,) = judged.shares()
        return judged, share

    def batch(self, number: int, rows: int, digest: str, portions: int = 1) -> SinkBatch:
        """Return the identity of a portion; the number after the last one is that of the end."""
        place, generation = place_of(self.request, self.name), self.flow.generation
        writer = sink_state.fill_writer(self.request.layout, self.name, self.fill.number)
        return SinkBatch(
            place, writer, number, generation, FILL, number, self.epoch, rows, digest, portions
        )

    def guarded(self, judged: Judged, share: Share) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are sent while the lease is held. Raises TransientError
        `lease-lost`.
        """
        for part in judged.rows(share):
            self.flow.check()
            yield part

    def keys(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys of all rows that the sink should hold."""
        names = [column.name for column in self.wanted.columns.values() if column.key]
        for portion in range(self.every.portions):
            with ExitStack() as kept:
                judged, share = self.judged(self.every.portion(portion), kept)
                yield from (part.select(names) for part in self.guarded(judged, share))


def fill(
    request: Request,
    spark: SparkSession,
    name: str,
    *,
    accept_missing: bool = False,
    progress: Callable[[str], None] = print,
) -> Filled:
    """Fill a sink of the request's flow. After a crash the same call goes on.

    With `accept_missing` a version from before a rebuild may be gone: keys that only it had stay in
    a sink that can't delete by absence.

    Raises TransientError `lease-held`, `lease-lost`, `sink-batch-in-flight`; TerminalError
    `nothing-to-fill`, `history-gone`, and the errors of resuming a flow and of the sink.
    """
    sink = request.declared.sinks[name]
    with (
        open_flow(request, spark, Needs.RESUMED) as flow,
        configured(spark, zoned(request)),
        ExitStack() as kept,
    ):
        sink_state.refuse_in_flight(flow.layout)
        holds = holds_of(request, sink)
        epoch = sink_identity.next_epoch(flow.layout, flow.check)
        version, files = _files(request, spark, name, holds.table)
        target = kept.enter_context(closing(registry.sink_of(sink, place_of(request, name))))
        rows = FillRows(request, sink, spark)
        every = rows.every(files)
        types = {field.name: field.dataType.simpleString() for field in every.portion(0).schema}
        columns = columns_of(
            request, sink, {column: kind for column, kind in types.items() if column != FATE}
        )
        refuse_unresolved(request, {name: sink}, every.portion(0))
        asked = _asked(
            request, name, target, Fill(epoch, version, 0, holds.fingerprint), accept_missing
        )
        target.fence(epoch)
        target.check(list(columns.values()))
        parts = list[Portions]()
        if asked.bases:
            keys, sent = (
                [n for n, column in columns.items() if column.key],
                None if asked.whole else list(columns),
            )
            parts += rows.compared(asked.bases, version, keys, kept, sent=sent)
        parts += [every] if asked.whole else []
        begun = _going_on(
            request, name, replace(asked, portions=sum(part.portions for part in parts))
        )
        _begin(request, name, begun)
        skips = SinkState.read(flow.layout, name).skipped(FILL, sink_state.ALL_PORTIONS)
        one = wanted(name, sink, columns, target, skips)
        return _send(_Work(request, name, target, one, parts, every, flow, epoch, begun), progress)


def _asked(request: Request, name: str, target: Sink, new: Fill, accept_missing: bool) -> Fill:
    """Return the fill with what it compares. The base is enough where the sink has all that was
    sent before it.
    """
    state = SinkState.read(request.layout, name)
    known = () if request.declared.sinks[name].is_of_refused else state.bases
    command = fill_command(request, name)
    bases = tuple(
        sink_bases.readable(request.layout, known, accept_missing=accept_missing, fill=command)
    )
    is_of_base = state.is_of_base and state.filled == new.fingerprint and bases == state.bases
    whole = not is_of_base or any(behind(request, request.layout, name, target))
    return replace(new, bases=bases, whole=whole)


def _files(request: Request, spark: SparkSession, name: str, source: str) -> tuple[int, TableFiles]:
    """Return the newest version of the table, which the lease keeps, and its files.

    Raises TerminalError `nothing-to-fill`.
    """
    log = Table(source)
    if not log.exists:
        raise TerminalError(
            "nothing-to-fill",
            tried=f"fill sink {name} of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=f"there is no table at {source}",
            changed="nothing",
            next=f"draindown run {request.spec.pipeline}/{request.flow}",
        )
    return log.version, TableFiles(spark, source, log.version, PORTION)


def _going_on(request: Request, name: str, asked: Fill) -> Fill:
    """Return the fill that goes on, or the new one."""
    found = SinkState.read(request.layout, name).fill
    return found if found is not None and found.goes_on(asked) else asked


def _begin(request: Request, name: str, begun: Fill) -> None:
    """Write a new fill down, once the sink can take it. The sink is stale until its end."""
    state = SinkState.read(request.layout, name)
    if state.fill != begun:
        again = state.why_stale(begun.fingerprint) or sink_state.UNFILLED
        replace(state, fills=state.fills + 1, fill=begun, stale=again).write(request.layout, name)


def _send(work: _Work, progress: Callable[[str], None]) -> Filled:
    """Send the portions that are left, and have the sink delete what none of them has."""
    layout, rows, gone, unsendable = work.request.layout, 0, 0, 0
    kind = f"fill:{work.name}:{work.fill.number}"
    writer = TableWriter(layout, work.request.declared, work.flow.generation, 0, kind)
    for portion in range(work.fill.done, work.fill.portions):
        with ExitStack() as kept:
            judged, share = work.judged(work.part(portion), kept)
            work.flow.check()
            if share.counts["unsendable"]:
                keep_misfits(
                    replace(writer, batch=portion), judged.misfits(share), work.request.run_id
                )
            if share.rows:
                own = work.batch(portion, share.rows, share.digest, share.portions)
                with refusals.of_fill(fill_command(work.request, work.name)):
                    work.target.send(own, share.columns, work.guarded(judged, share))
            rows, gone = rows + share.counts["sent"], gone + share.counts["deleted"]
            unsendable += share.counts["unsendable"]
        work.flow.check()
        state = SinkState.read(layout, work.name)
        replace(state, fill=replace(work.fill, done=portion + 1)).write(layout, work.name)
        progress(
            f"portion {portion + 1} of {work.fill.portions}: {count(rows, 'row')} sent, {gone:,} deleted"
        )
    work.flow.check()
    end = work.batch(work.fill.portions, 0, "")
    deleted = _end(work, end)
    work.flow.check()
    recorded = work.target.records
    _ended(
        work,
        Sending(
            end.writer, end.number, FILL, rows + gone, end.digest, sent=True, recorded=recorded
        ),
    )
    fill = work.fill
    return Filled(work.name, fill.version, rows, unsendable, deleted, fill.bases, fill.whole, gone)


def _end(work: _Work, end: SinkBatch) -> int | None:
    """Have the sink record the end, and delete what the table does not have where it got every
    row.
    """
    columns = list(work.wanted.columns.values())
    if work.fill.whole:
        return work.target.retain(end, columns, work.keys())
    work.target.send(end, columns, ())
    return 0


def _ended(work: _Work, end: Sending) -> None:
    """Write down that the sink is as the table. What it got before the fill does not count any
    more.
    """
    layout = work.request.layout
    state = SinkState.read(layout, work.name)
    left = replace(
        state,
        filled=work.fill.fingerprint,
        stale="",
        fill=None,
        skips=(),
        sendings=(end,),
        bases=(),
    )
    left.write(layout, work.name)
    if state.bases:
        sink_bases.keep(layout)
