"""Up to where a generation has pinned each partition, as the newest slice of its intake says.

Each slice bears the positions of all partitions, those without new offsets included. So a look
reads one row, however long the history, and knows every partition that the source ever had.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from draindown.lake.home import FlowHome
from draindown.sources import intake, raw
from draindown.sources.kafka.offsets import Span
from draindown.sources.slices import FIRST, Unit

OWN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int64()),
        (intake.LOG, pa.string()),
        ("compacted", pa.bool_()),
        ("positions", pa.string()),
    ]
)
"""The columns of a Kafka intake besides those of every intake.

`compacted`: whether offsets without a record had a reason when the slice was pinned: the topic was
compacted, or the source said that it is transactional. `positions`: in the first row of a slice,
the offsets [start, until) that the slice pins of every partition, as JSON, and the leader epoch of
each if it is known.
"""

_RANGE = re.compile(r"(.+):(\d+)-(\d+)")


def span_of(unit: Unit) -> Span:
    """Return the offsets that a unit pins."""
    row = unit.row
    return Span(row["topic"], int(row["partition"]), row["topic_id"], unit.start, unit.until)


def as_kept(span: Span) -> raw.Kept:
    """Return a span as a range that raw records may have."""
    return raw.Kept(span.unit, span.topic_id, span.start, span.until)


def of_kept(kept: raw.Kept) -> Span:
    """Return a range of raw records as a span."""
    topic, _, partition = kept.unit.rpartition("/")
    return Span(topic, int(partition), kept.log, kept.start, kept.until)


def newest(state: FlowHome, generation: int) -> list[Span]:
    """Return what the newest slice pins of every partition; none before the first slice."""
    number = intake.newest(state, generation)
    return _at(state, generation, number) if number else []


def first(state: FlowHome, generation: int) -> list[Span]:
    """Return what the first slice of a generation pins of every partition: where the generation
    began.
    """
    return _at(state, generation, FIRST) if intake.newest(state, generation) else []


def reaching(layout: FlowHome, generation: int, name: str) -> list[str]:
    """Return the pinned ranges that `topic/partition:start-until` reaches into; the name itself of
    anything else.
    """
    asked = _RANGE.fullmatch(name)
    if asked is None:
        return [name]
    start, until = int(asked[2]), int(asked[3])
    pinned = (
        unit for one in intake.slices(layout, generation) for unit in one.only([asked[1]]).units
    )
    return [unit.range for unit in pinned if max(start, unit.start) < min(until, unit.until)] or [
        name
    ]


def of_units(units: Sequence[Unit]) -> list[Span]:
    """Return what the newest slice of units, in order, pins of every partition; none if their rows
    don't say it.
    """
    return next(
        (_spans(text) for unit in reversed(units) if (text := unit.row.get("positions"))), []
    )


def rows(
    spans: Sequence[Span],
    *,
    record_bytes: float,
    oldest: Mapping[tuple[str, int], datetime],
    now: datetime,
    compacted: Iterable[str],
) -> list[dict[str, Any]]:
    """Return the rows of a slice. A slice without offsets has one row, which pins nothing but the
    positions.
    """
    gaps = frozenset(compacted)
    found = [
        {
            "input": span.unit,
            "start": span.start,
            "until": span.until,
            "bytes": round(span.size * record_bytes),
            "unpacked": round(span.size * record_bytes),
            "records": None,
            "arrived_at": min(now, oldest.get(span.place, now)),
            "topic": span.topic,
            "partition": span.partition,
            "topic_id": span.topic_id,
            "compacted": span.topic in gaps,
            "positions": None,
        }
        for span in [span for span in spans if span.size] or spans[:1]
    ]
    found[0]["positions"] = _text(spans)
    return found


def _at(state: FlowHome, generation: int, number: int) -> list[Span]:
    sql = f"select positions from t where slice = {int(number)} and positions is not null"
    (row,) = state.tables.intake(generation).rows(sql)
    return _spans(row["positions"])


def _text(spans: Sequence[Span]) -> str:
    topics: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for span in spans:
        offsets = [span.start, span.until, *([] if span.epoch is None else [span.epoch])]
        topics[f"{span.topic}:{span.topic_id}"][str(span.partition)] = offsets
    return json.dumps(topics, separators=(",", ":"))


def _spans(text: str) -> list[Span]:
    found = []
    for name, partitions in json.loads(text).items():
        topic, _, id = name.rpartition(":")
        found += [Span(topic, int(number), id, *offsets) for number, offsets in partitions.items()]
    return found
