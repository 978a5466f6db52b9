"""What the topics of the pipeline shop_events must hold, computed from what a plain client reads of its source."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from confluent_kafka import Message

from examples.user_events import oracle
from examples.user_events.oracle import Place

DEAD, WINDOWS = "user-events-dead", "user-events-5m"
_WINDOW = timedelta(minutes=5)
_EXAMPLES = 5
_NEAR = Decimal("0.000001")


@dataclass(frozen=True)
class Comparison:
    """What differs, for people; nothing if both topics are right. `windows`, `dead`: how many there must be."""

    windows: int
    dead: int
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_text(self) -> str:
        """Return the result as text: one line, then examples."""
        verdict = "exact" if self.ok else f"WRONG, {len(self.differences):,} differences"
        text = f"oracle: topics {verdict}: {self.windows:,} windows expected, {self.dead:,} dead letters expected"
        return "\n".join((text, *(f"  {one}" for one in self.differences[:_EXAMPLES])))


def compare(brokers: str) -> Comparison:
    """Compare both topics with the records of the topic of events. Messages whose id was seen are dropped."""
    rows, refused = oracle.correct(brokers)
    windows = _windows(rows)
    found = (*_of_windows(brokers, windows), *_of_dead(brokers, refused))
    return Comparison(len(windows), len(refused), found)


def _windows(
    events: Mapping[str, Mapping[str, Any]],
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the events by start of their window, as text, and kind."""
    found = defaultdict(list)
    for row in events.values():
        at = row["happened_at"]
        start = at - timedelta(
            minutes=at.minute % 5, seconds=at.second, microseconds=at.microsecond
        )
        found[start.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), row["event"]].append(row)
    return dict(found)


def _of_windows(
    brokers: str, windows: Mapping[tuple[str, str], list[Mapping[str, Any]]]
) -> Iterator[str]:
    newest: dict[bytes | None, Any] = {}
    for message in _fresh(brokers, WINDOWS):
        newest[message.key()] = message.value()
    rows = [json.loads(value) for value in newest.values() if value is not None]
    found = {(row["window_start"], row["event"]): row for row in rows}
    yield from (f"{WINDOWS}: {key} is not there" for key in windows.keys() - found.keys())
    yield from (
        f"{WINDOWS}: {key} is there, and should not" for key in found.keys() - windows.keys()
    )
    for key in windows.keys() & found.keys():
        if not _is_right(found[key], windows[key]):
            yield f"{WINDOWS}: {found[key]} of {len(windows[key])} events"


def _is_right(found: Mapping[str, Any], events: list[Mapping[str, Any]]) -> bool:
    amounts = [row["amount"] for row in events if row["amount"] is not None]
    counts = (found["events"], found["users"]) == (
        len(events),
        len({row["user_id"] for row in events}),
    )
    if not amounts:
        return counts and found["amount"] is None and found["mean"] is None
    total, mean = Decimal(found["amount"]), Decimal(str(found["mean"]))
    return counts and total == sum(amounts) and abs(mean - sum(amounts) / len(amounts)) < _NEAR


def _of_dead(brokers: str, refused: Mapping[Place, str]) -> Iterator[str]:
    found: dict[Place, str] = {}
    for message in _fresh(brokers, DEAD):
        row = json.loads(message.value() or b"")
        place, reason = (row["input"], row["position"]), row["reason"]
        if place in found:
            yield f"{DEAD}: {place} is there twice"
        found[place] = f"{reason}/{row['field']}" if reason in ("type", "not_null") else reason
    yield from (
        f"{DEAD} lacks {place}: {reason}" for place, reason in refused.items() - found.items()
    )
    yield from (
        f"{DEAD} has {place}: {reason}, and should not"
        for place, reason in found.items() - refused.items()
    )


def _fresh(brokers: str, topic: str) -> Iterator[Message]:
    seen = set[object]()
    for message in oracle.messages(brokers, topic):
        id_ = dict(message.headers() or [])["id"]
        if id_ not in seen:
            seen.add(id_)
            yield message
