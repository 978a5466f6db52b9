"""The backlog by partition: offsets that are pinned and not read yet, and behind them those that
are not pinned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from draindown.base.formatting import count
from draindown.sources.kafka.offsets import Available, Span, Unread, without
from draindown.sources.port import Part
from draindown.sources.slices import Unit


def waiting(unread: Iterable[Span], pinned: Iterable[Unit]) -> list[Span]:
    """Return what no batch has read, one span per partition, empty ones included, by topic and
    number.

    `unread`: what is not pinned, one span per partition. `pinned`: units of slices that no batch
    has read.
    """
    held = defaultdict[str, list[int]](list)
    for unit in pinned:
        held[unit.name].append(unit.start)
    return [replace(span, start=min([span.start, *held[span.unit]])) for span in sorted(unread)]


def at_brokers(
    spans: Iterable[Span], kept: Sequence[Span], have: Mapping[tuple[str, int], Available]
) -> list[Span]:
    """Return of each span what follows the offsets that are kept elsewhere and those that brokers
    no longer hold.
    """
    found = []
    for span in spans:
        left = (part for part in without(span, kept) if span.place in have)
        clipped = (
            replace(part, start=max(part.start, have[part.place].beginning)) for part in left
        )
        found += [part for part in clipped if part.size > 0][:1]
    return found


def parts(
    spans: Sequence[Span],
    units: Mapping[str, int],
    oldest: Mapping[str, datetime],
    record_bytes: float,
) -> Iterator[Part]:
    """Yield every partition with what waits in it.

    `spans`: as `waiting` returns them. `units`: the number of records that wait, by partition: what
    was given up as lost within a span does not wait. `oldest`: when the first of them was written,
    as far as it is known.
    """
    for span in spans:
        at = oldest.get(span.unit)
        yield Part(
            name=span.unit,
            position=span.start,
            end=span.until,
            units=units.get(span.unit, 0),
            bytes=round(units.get(span.unit, 0) * record_bytes),
            oldest=at.timestamp() if at is not None and span.size else None,
        )


def records(unread: Iterable[Span], pinned: Iterable[Unit]) -> Counter[str]:
    """Return the number of records that wait, by partition."""
    found = Counter({span.unit: span.size for span in unread})
    for unit in pinned:
        found[unit.name] += unit.until - unit.start
    return found


def reasons(found: Unread, slices: int, held: int, *, begun: bool) -> list[str]:
    """Return why there is something to do, for people. `held`: records of slices that no batch has
    read.
    """
    told = []
    if found.size:
        parts = sum(1 for span in found.spans if span.size)
        told.append(f"{count(found.size, 'new record')} in {count(parts, 'partition')}")
    elif not begun and found.spans:
        told.append("where the topics begin is to be pinned")
    if held:
        told.append(
            f"{count(held, 'record')} pinned for {count(slices, 'batch', 'batches')} yet to be processed"
        )
    return told
