"""What a generation that pins anew would not read of what an earlier one pinned, although lake or
topics hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draindown.base.findings import Finding
from draindown.lake.home import FlowHome
from draindown.sources import raw
from draindown.sources.kafka.accepted import accepted
from draindown.sources.kafka.losses import accepting, lost
from draindown.sources.kafka.offsets import Available, Loss, Span, reaching_down, without
from draindown.sources.kafka.positions import as_kept, of_kept, span_of
from draindown.sources.slices import Unit

_OTHER = "a new generation reads no such partition: its topic was created again, is gone, or is not of the source"


def passed_over(
    units: Iterable[Unit],
    losses: Sequence[Loss],
    have: Iterable[Available],
    pins: Iterable[Span],
    layout: FlowHome,
) -> dict[str, Finding]:
    """Return the pinned ranges that a new generation would not read whole, each with what it reads
    instead.

    `losses`: of the generation that pinned them. `have`: what the brokers hold. `pins`: what the
    new generation would pin, one span per partition. The findings' `next` accepts losses, if more
    is read then. Raises TerminalError `log-truncated` while raw records would stand for others,
    which were written anew at their offsets.
    """
    _refuse_standing_in(losses, layout)
    would = {(span.place, span.topic_id): span for span in pins}
    gaps = _bridges(losses, have, layout)
    across, first = (
        {(gap.place, gap.topic_id) for gap in gaps},
        accepting(gaps, layout, _ACROSS) if gaps else "",
    )
    found = {}
    for unit in units:
        span = span_of(unit)
        log = span.place, span.topic_id
        pin = would.get(log)
        if without(span, [pin] if pin else []):
            detail = f"a new generation reads offsets {pin.start} to {pin.until}" if pin else _OTHER
            next = first if log in across else ""
            found[unit.range] = Finding(
                kind="vanished", subject=str(span), detail=detail, next=next
            )
    return found


_ACROSS = "then the raw records below are read too"


def _refuse_standing_in(losses: Iterable[Loss], layout: FlowHome) -> None:
    cut = [
        loss
        for loss in losses
        if loss.kind == "log-truncated" and raw.kept_of(layout, [as_kept(loss.span)])
    ]
    if cut:
        tried = f"read again all that flow {layout.flow} of pipeline {layout.pipeline} has read"
        raise lost(cut, layout, "nothing", tried)


def _bridges(losses: Iterable[Loss], have: Iterable[Available], layout: FlowHome) -> list[Span]:
    """Return the gaps that, once they are accepted, join the topics to raw records below."""
    gaps = [loss.span for loss in losses if loss.kind == "offsets-lost"]
    beside = [*map(of_kept, raw.ranges(layout)), *accepted(layout), *gaps] if gaps else []
    down = {one.place: one.beginning for one in reaching_down(have, beside)}
    return [gap for gap in gaps if down[gap.place] < gap.start]
