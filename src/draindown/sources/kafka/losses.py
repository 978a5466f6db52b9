"""Lost offsets: which they are, and the error that names topic, partition, range and the ways
on.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from draindown.base.errors import TerminalError
from draindown.config.kafka import KafkaSource
from draindown.lake.home import FlowHome
from draindown.sources.kafka.offsets import Available, Loss, LossKind, Span
from draindown.sources.kafka.positions import span_of
from draindown.sources.slices import Unit

_SHOWN = 5
_WORST: tuple[LossKind, ...] = (
    "topic-recreated",
    "topic-gone",
    "partition-gone",
    "log-truncated",
    "offsets-lost",
)


def pinned_losses(
    spans: Iterable[Span], available: Mapping[tuple[str, int], Available]
) -> Iterator[Loss]:
    """Yield what the brokers no longer hold of pinned spans."""
    for span in spans:
        held = available.get(span.place)
        if held is None:
            if any(topic == span.topic for topic, _ in available):
                yield Loss("partition-gone", span, "there is no such partition any more")
            else:
                yield Loss("topic-gone", span, "there is no such topic any more")
        elif held.topic_id != span.topic_id:
            yield recreated(span)
        elif held.beginning > span.start:
            lost_span = replace(span, until=min(span.until, held.beginning))
            detail = f"the brokers hold offsets from {held.beginning} on"
            yield Loss("offsets-lost", lost_span, detail)
        elif held.same_until < span.until:
            lost_span = replace(span, start=max(span.start, held.same_until))
            yield Loss("log-truncated", lost_span, held.truncated)


def by_unit(units: Iterable[Unit], losses: Iterable[Loss]) -> Iterator[tuple[Unit, Loss]]:
    """Yield each loss with the units that it is a part of."""
    held: dict[tuple[tuple[str, int], str], list[tuple[Span, Unit]]] = defaultdict(list)
    for unit in units:
        span = span_of(unit)
        held[span.place, span.topic_id].append((span, unit))
    for some in held.values():
        some.sort(key=lambda one: one[0])
    ends = {
        log: list(accumulate((span.until for span, _ in some), max)) for log, some in held.items()
    }
    for loss in losses:
        log = loss.span.place, loss.span.topic_id
        some, reach = held[log], ends.get(log, [])
        at = bisect_right(some, loss.span.start, key=lambda one: one[0].start)
        while at and reach[at - 1] >= loss.span.until:  # once, as slices don't overlap
            at -= 1
            span, unit = some[at]
            if span.until >= loss.span.until:
                yield unit, loss


def recreated(span: Span) -> Loss:
    """Return the loss of pinned offsets of a topic that is another one now."""
    return Loss("topic-recreated", span, "the topic was created again since they were pinned")


def lost(
    losses: Sequence[Loss],
    layout: FlowHome,
    changed: str = "nothing was pinned or read",
    tried: str = "",
) -> TerminalError:
    """Return the error for offsets that were never read and are gone. Its code is the kind of the
    worst loss.
    """
    shown = [f"{loss.span}: {loss.detail}" for loss in losses[:_SHOWN]]
    more = [f"and {len(losses) - _SHOWN} more"] if len(losses) > _SHOWN else []
    return TerminalError(
        min((loss.kind for loss in losses), key=_WORST.index),
        tried=tried
        or f"read on where flow {layout.flow} of pipeline {layout.pipeline} has read its topics up to",
        found="; ".join(shown + more),
        changed=changed,
        next=_ways_on(losses, layout),
        in_order=any(loss.kind == "log-truncated" for loss in losses),
    )


def _ways_on(losses: Sequence[Loss], layout: FlowHome) -> list[str]:
    flow = f"{layout.pipeline}/{layout.flow}"
    rebuild = f"draindown rebuild {flow} --accept-missing   # a fresh table of what lake and topics hold now"
    if layout.staged:  # a rebuild that was begun reads what it pinned
        rebuild = f"draindown rebuild {flow} --abort --yes   # throws away what it has read; the live table stays"
    if any(loss.kind == "log-truncated" for loss in losses):
        return [*_raw_aside(layout), rebuild]
    accept = accepting([loss.span for loss in losses], layout, "goes on with what is there")
    if not layout.staged and all(loss.kind == "offsets-lost" for loss in losses):
        return [
            accept
        ]  # a fresh table would lack what raw records hold below the gap, and has no more than this one
    return [accept, rebuild]


def accepting(spans: Sequence[Span], layout: FlowHome, then: str) -> str:
    """Return the command that accepts losses, or lists them if they are many. `then`: what follows,
    in words.
    """
    flow = f"{layout.pipeline}/{layout.flow}"
    if len(spans) > _SHOWN:
        return f"draindown input list {flow}   # names the command that accepts them: {then}"
    ranges = " ".join(f"--range {shlex.quote(span.range)}" for span in spans)
    return f'draindown input discard {flow} {ranges} --note "..." --yes   # {then}'


def _raw_aside(layout: FlowHome) -> list[str]:
    """Return the command after which no raw record stands for one that was written anew at its
    offset.
    """
    raw = shlex.quote(layout.tables.raw.path)
    there = not layout.staged and layout.tables.raw.exists
    return (
        [f"mv {raw} {raw}.before   # it has records of offsets that may be written anew"]
        if there
        else []
    )


def refuse(losses: Sequence[Loss], layout: FlowHome) -> None:
    """Raise the error for offsets that are lost, if any is."""
    if losses:
        raise lost(losses, layout)


def refuse_unknown(source: KafkaSource, here: Collection[str], losses: Iterable[Loss]) -> None:
    """Raise TerminalError `topic-unknown` for a topic that the source names, that is not here and
    was never read.
    """
    known = {*here, *(loss.span.topic for loss in losses)}
    for topic in source.kafka.topics:
        if topic not in known:
            raise TerminalError(
                "topic-unknown",
                tried=f"look at topic {topic} at {source.kafka.bootstrap_servers}",
                found="the cluster has no such topic, or this user may not see it",
                next="draindown validate   # check `topics` and `bootstrap_servers`, or create the topic",
            )


def not_lost(asked: Sequence[str], losses: Sequence[Loss], layout: FlowHome) -> TerminalError:
    """Return the error for ranges that are not lost, or not as they were typed."""
    there = ", ".join(loss.span.range for loss in losses) or "none"
    return TerminalError(
        "not-lost",
        tried=f"accept the loss of {', '.join(asked)} of flow {layout.flow}",
        found=f"lost are: {there}",
        next=f"draindown input list {layout.pipeline}/{layout.flow}",
    )
