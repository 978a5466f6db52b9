"""Deliver a batch to a sink: what was sent before is known, so that a retry sends the same rows or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from draindown.base.errors import TerminalError
from draindown.flow.sink_state import Sending, SinkState, begun
from draindown.lake.layout import FlowLayout
from draindown.sinks.port import Sink, SinkBatch, SinkColumn

if TYPE_CHECKING:
    import pyarrow

Rows = Callable[[], Iterable["pyarrow.RecordBatch"]]
"""Returns the rows of a batch; called only if they are sent."""


def deliver(
    layout: FlowLayout, sink: Sink, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Rows, fingerprint: str
) -> None:
    """Send a batch, unless the sink has it. Writes it down before it is sent, and once the sink has it.

    A batch without rows is not sent. `fingerprint`: of the sink's spec.

    Raises TerminalError `sink-differs` if other rows of the batch were sent before, and the errors of the sink.
    """
    name = batch.place.sink
    state = SinkState.read(layout, name)
    if _is_done(layout, state.of(batch.writer), sink, batch):
        _note(layout, name, state, batch, sent=True)
        return
    if not batch.rows:
        if not state.filled:
            begun(state, fingerprint, layout).write(layout, name)
        return
    _note(layout, name, begun(state, fingerprint, layout), batch, sent=False)
    sink.send(batch, columns, rows())
    _note(layout, name, SinkState.read(layout, name), batch, sent=True)


def _note(layout: FlowLayout, name: str, state: SinkState, batch: SinkBatch, *, sent: bool) -> SinkState:
    one = Sending(batch.writer, batch.number, batch.kind, batch.rows, batch.digest, sent)
    if state.of(batch.writer) != one:
        state = state.sending(one)
        state.write(layout, name)
    return state


def _is_done(layout: FlowLayout, known: Sending | None, sink: Sink, batch: SinkBatch) -> bool:
    """Return whether the sink has the batch. Raises TerminalError `sink-differs` if it has other rows of it."""
    if known is None or known.number < batch.number:
        return False
    same = (known.number, known.rows, known.digest) == (batch.number, batch.rows, batch.digest)
    if known.sent or known.number > batch.number:
        if not same:
            raise _differs(
                layout, batch, f"{known.rows:,} rows of batch {known.number} were sent before, {known.digest}"
            )
        return True
    there = sink.has(batch)
    if there is not None and there.number >= batch.number:
        if (there.number, there.digest) != (batch.number, batch.digest):
            raise _differs(layout, batch, f"the sink has {there.rows:,} rows of batch {there.number}, {there.digest}")
        return True
    if there is None and not same:  # it may have got a part, and nobody can say which
        raise _differs(layout, batch, f"{known.rows:,} rows of it may have been sent before, {known.digest}")
    return False


def _differs(layout: FlowLayout, batch: SinkBatch, found: str) -> TerminalError:
    where = f"{layout.pipeline} --flow {layout.flow} --sink {batch.place.sink}"
    return TerminalError(
        "sink-differs",
        tried=f"send batch {batch.batch} of kind {batch.kind} of flow {layout.flow} to sink {batch.place.sink}, "
        f"{batch.rows:,} rows, {batch.digest}",
        found=f"{found}: the input, a transform or the engine is another than then",
        changed="nothing of this attempt is in the sink, and nothing of the batch in the table",
        next=[
            f"put back what was changed, then: draindown run {layout.pipeline} --flow {layout.flow}",
            f"draindown sink skip {where} --reason TEXT --yes   # gives up what was sent of it; then fill the sink",
        ],
    )
