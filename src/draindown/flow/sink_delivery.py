"""Deliver a batch to a sink: what was sent before is known, so that a retry sends the same rows or
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draindown.base.errors import TerminalError
from draindown.base.progress import StepHook, ignore_step
from draindown.flow.sink_state import RESTORED, Holds, Sending, SinkState, begun
from draindown.lake.home import FlowHome
from draindown.sinks.port import Sink, SinkBatch, SinkColumn
from draindown.sinks.refusals import CODE

if TYPE_CHECKING:
    import pyarrow

Rows = Callable[[], Iterable["pyarrow.RecordBatch"]]
"""Returns the rows of a batch; called only if they are sent."""


def deliver(
    layout: FlowHome,
    sink: Sink,
    batch: SinkBatch,
    columns: Sequence[SinkColumn],
    rows: Rows,
    holds: Holds,
    reached: StepHook = ignore_step,
) -> None:
    """Send a batch, unless the sink has it. Writes it down before it is sent, and once the sink has
    it.

    A batch without rows is not sent. `holds`: what the sink holds by its spec now. `reached` is
    called with `counted-NAME` before anything is written, `noted-NAME` before the first row goes
    out, `portion-NAME` before each portion, `taken-NAME` once the sink has all of it, and
    `sent-NAME` at the end. What it raises, such as a lost lease, ends the delivery there: a driver
    that was frozen while another one went on overwrites nothing of that.

    Raises TerminalError `sink-differs` if other rows of the batch were sent before, `sink-records`
    if it was begun while the sink recorded no batches, and the errors of the sink.
    """
    name = batch.place.sink
    state = SinkState.read(layout, name)
    # then nothing of it counts that was sent before
    given_up = state.is_given_up(batch.writer, batch.number)
    is_done = not given_up and _is_done(layout, state.of(batch.writer), sink, batch)
    reached(f"counted-{name}")
    if is_done:
        _note(layout, name, state, sink, batch, sent=True)
    elif not batch.rows:
        if (after := begun(state, holds, layout)) != state:
            after.write(layout, name)
    else:
        state = begun(_stale_if_ahead(state, sink, batch), holds, layout)
        state = _note(layout, name, state, sink, batch, sent=False)
        reached(f"noted-{name}")
        _send(layout, sink, batch, columns, _guarded(rows, name, reached), state)
        reached(f"taken-{name}")
        _note(layout, name, SinkState.read(layout, name), sink, batch, sent=True)
    reached(f"sent-{name}")


def _stale_if_ahead(state: SinkState, sink: Sink, batch: SinkBatch) -> SinkState:
    """Return the state, stale if the sink has a batch of this number or a later one that the flow
    knows nothing of.

    The sink is asked about the first batch of a writer, and about one that is tried again. Batches
    that were sent are compared when the flow is opened.
    """
    noted = state.of(batch.writer)
    if noted is not None and noted.sent:
        return state
    recorded = sink.has(batch)
    if recorded is None or recorded.number < batch.number:
        return state
    if (recorded.number, recorded.digest) == (batch.number, batch.digest):
        return state
    return state.because(RESTORED)


def _guarded(rows: Rows, name: str, reached: StepHook) -> Iterator[pyarrow.RecordBatch]:
    for part in rows():
        reached(f"portion-{name}")
        yield part


def _send(
    layout: FlowHome,
    sink: Sink,
    batch: SinkBatch,
    columns: Sequence[SinkColumn],
    rows: Iterator[pyarrow.RecordBatch],
    state: SinkState,
) -> None:
    """Send it. A batch that the system refuses is written down as refused, so that it can be given
    up as a whole.
    """
    name, one = batch.place.sink, state.of(batch.writer)
    try:
        sink.send(batch, columns, rows)
    except TerminalError as error:
        if error.code == CODE and one is not None:
            state.sending(replace(one, refused=True)).write(layout, name)
        raise


def _note(
    layout: FlowHome, name: str, state: SinkState, sink: Sink, batch: SinkBatch, *, sent: bool
) -> SinkState:
    said = (batch.writer, batch.number, batch.kind, batch.rows, batch.digest, sent)
    before, one = state.of(batch.writer), Sending(*said, epoch=batch.epoch, recorded=sink.records)
    if before is not None and before.sent and before.number == batch.number:
        one = before  # the sink that got it may have recorded it, or not
    if before != one:
        state = state.sending(one)
        state.write(layout, name)
    return state


def _is_done(layout: FlowHome, known: Sending | None, sink: Sink, batch: SinkBatch) -> bool:
    """Return whether the sink has the batch. Raises TerminalError `sink-differs` if it has other
    rows of it.

    Digests alone are compared: rows that a person gave up are in a batch's digest, and not in its
    number of rows.
    """
    if known is None or known.number < batch.number:
        return False
    same = (known.number, known.digest) == (batch.number, batch.digest)
    if known.sent or known.number > batch.number:
        if not same:
            raise _differs(
                layout,
                batch,
                f"{known.rows:,} rows of batch {known.number} were sent before, {known.digest}",
            )
        return True
    if sink.records and not known.recorded:  # its record would say that it has nothing of the batch
        raise _unrecorded(layout, batch)
    there = sink.has(replace(batch, epoch=known.epoch))
    if there is not None and there.number == batch.number and not _is_older(there, known):
        same_portions = there.whole or there.portions == batch.portions
        if (there.number, there.digest) != (batch.number, batch.digest) or not same_portions:
            raise _differs(
                layout,
                batch,
                f"the sink has {there.rows:,} rows of batch {there.number}, {there.digest}",
            )
        return there.whole
    if not sink.records and not same:  # it may have got a part, and nobody can say which
        raise _differs(
            layout, batch, f"{known.rows:,} rows of it may have been sent before, {known.digest}"
        )
    return False


def _is_older(there: SinkBatch, known: Sending) -> bool:
    """Return whether a record is not of the batch that is `known` to be on its way: the lake was
    restored since.

    A driver writes down rows and epoch before it sends. It goes on with what an earlier driver sent
    only where the rows are the same.
    """
    return there.digest != known.digest and there.epoch < known.epoch


def _differs(layout: FlowHome, batch: SinkBatch, found: str) -> TerminalError:
    where = f"{layout.pipeline}/{layout.flow} {batch.place.sink}"
    return TerminalError(
        "sink-differs",
        tried=f"send batch {batch.batch} of kind {batch.kind} of flow {layout.flow} to sink {batch.place.sink}, "
        f"{batch.rows:,} rows, {batch.digest}",
        found=f"{found}: the input, a transform or the engine is another than then",
        changed="nothing of this attempt is in the sink, and nothing of the batch in the table",
        next=[
            f"put back what was changed, then: draindown run {layout.pipeline}/{layout.flow}",
            f"draindown sink skip {where} --note TEXT --yes   # gives up what was sent of it; then resync the sink",
        ],
    )


def _unrecorded(layout: FlowHome, batch: SinkBatch) -> TerminalError:
    where, sink = f"{layout.pipeline}/{layout.flow}", batch.place.sink
    return TerminalError(
        "sink-records",
        tried=f"send batch {batch.batch} of kind {batch.kind} of flow {layout.flow} to sink {sink}",
        found="it was on its way before `delivery` was changed, and the sink recorded no batches then: nobody can tell "
        "which rows of it are there",
        changed="nothing",
        next=[
            f"put `delivery` of sink {sink} back, then: draindown run {where}   # ends the batch; then change it",
            f"draindown sink skip {where} {sink} --note TEXT --yes   # gives up what is there; resync it then",
        ],
    )
