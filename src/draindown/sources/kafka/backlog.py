"""The backlog by partition: offsets that are pinned and not read yet, and behind them those that are not pinned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from draindown.sources.kafka.offsets import Span
from draindown.sources.port import Part
from draindown.sources.slices import Unit


def parts(
    unread: Iterable[Span], pinned: Iterable[Unit], oldest: Mapping[tuple[str, int], datetime], record_bytes: float
) -> Iterator[Part]:
    """Yield every partition, by topic and number, with what waits in it.

    `unread`: what is not pinned, one span per partition, empty ones included. `pinned`: slices that no batch has read.
    `oldest`: when the first unread record of a partition was written, as far as it is known.
    """
    held = defaultdict[str, list[Unit]](list)
    for unit in pinned:
        held[unit.name].append(unit)
    for span in sorted(unread):
        waiting = held[span.unit]
        records = span.size + sum(unit.until - unit.start for unit in waiting)
        times = [unit.arrived_at for unit in waiting] + ([oldest[span.place]] if span.place in oldest else [])
        yield Part(
            name=span.unit,
            position=min((unit.start for unit in waiting), default=span.start),
            end=span.until,
            units=records,
            bytes=round(records * record_bytes),
            oldest=min(times).timestamp() if records and times else None,
        )
