"""The correct result for the topic's records, computed from what a plain client reads.

It shares nothing with the engine but the paths of tables: Python parses, judges and folds. Stated independently:

- a record is refused for the first of these that holds: no value (`null_value`), not a JSON object (`malformed`), a
  column, in contract order, null (`not_null/column`) or not of its type (`type/column`), a rule that is not true
- of one event the latest sent wins; of equally late ones that are the same, one
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import DeltaTable, QueryBuilder

from draindown.lake.home import FlowHome
from examples.user_events.events import PARTITIONS, TOPIC

_EVENTS = ("view", "cart", "purchase", "refund")
_EXAMPLES = 5
_SECONDS = 30.0
_COLUMNS = ("user_id", "event_id", "event", "item", "amount", "happened_at", "sent_at", "trace")

Place = tuple[str, int]
"""(`topic/partition`, offset)"""


class Unfit(Exception):
    """A record that must be in quarantine. Its argument is the reason."""


@dataclass(frozen=True)
class Comparison:
    """What differs, for people; nothing if table and quarantine are right."""

    rows: int
    refused: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def as_text(self) -> str:
        """Return the result as text: one line, then examples."""
        verdict = "exact" if self.ok else f"WRONG, {len(self.differences):,} differences"
        text = f"oracle: {verdict}: {self.rows:,} rows expected, {self.refused:,} quarantined records expected"
        return "\n".join((text, *(f"  {one}" for one in self.differences[:_EXAMPLES])))


def compare(lake: str, brokers: str) -> Comparison:
    """Compare the lake of the pipeline user_events with the records of its topic."""
    expected, refused = correct(brokers)
    layout = FlowHome(lake, "user_events", "user_events", "user_events")
    differences = (*_of_table(layout, expected), *_of_quarantine(layout, refused))
    return Comparison(
        len(expected), len(refused), dict(sorted(Counter(refused.values()).items())), differences
    )


def correct(brokers: str) -> tuple[dict[str, dict[str, Any]], dict[Place, str]]:
    """Return the rows that the topic's records mean, by event, and why each of the other records is refused."""
    expected: dict[str, dict[str, Any]] = {}
    refused: dict[Place, str] = {}
    for message in messages(brokers):
        try:
            row = _row(message)
        except Unfit as reason:
            refused[f"{message.topic()}/{message.partition()}", message.offset() or 0] = str(reason)
            continue
        known = expected.get(row["event_id"])
        if known is None or known["sent_at"] < row["sent_at"]:
            expected[row["event_id"]] = row
    return expected, refused


def _row(message: Any) -> dict[str, Any]:
    value = message.value()
    if value is None:
        raise Unfit("null_value")
    try:
        given = json.loads(value.decode(), parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        raise Unfit("malformed") from None
    if not isinstance(given, dict):
        raise Unfit("malformed")
    key, sent = message.key(), message.timestamp()[1]
    row: dict[str, Any] = {"user_id": None if key is None else key.decode()}
    row |= {name: given.get(name) for name in ("event_id", "event", "item")}
    row["amount"] = _typed("amount", given.get("amount"))
    row["happened_at"] = _typed("happened_at", given.get("happened_at"))
    row["sent_at"] = datetime.fromtimestamp(sent / 1000, UTC)
    row["trace"] = dict(message.headers() or [])["trace"].decode()
    for name in ("user_id", "event_id", "event", "amount", "happened_at"):
        if isinstance(row[name], Unfit):
            raise row[name]
        if row[name] is None and name != "amount":
            raise Unfit(f"not_null/{name}")
    _refuse_by_rules(row)
    return row


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "amount":
        return value if isinstance(value, Decimal) else Unfit("type/amount")
    return datetime.fromisoformat(re.sub("Z$", "+00:00", value))


def _refuse_by_rules(row: Mapping[str, Any]) -> None:
    if row["event"] not in _EVENTS:
        raise Unfit("rule:known_event")
    if not 0 <= (row["amount"] or 0) <= 100_000:
        raise Unfit("rule:plausible_amount")
    if (
        not row["sent_at"] - timedelta(days=7)
        <= row["happened_at"]
        <= row["sent_at"] + timedelta(hours=1)
    ):
        raise Unfit("rule:plausible_time")


def messages(brokers: str, topic: str = TOPIC) -> Iterator[Message]:
    """Yield every record of a topic that has as many partitions as that of the events, partition by partition."""
    reader = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        for number in range(PARTITIONS):
            first, end = reader.get_watermark_offsets(
                TopicPartition(topic, number), timeout=_SECONDS
            )
            reader.assign([TopicPartition(topic, number, first)])
            while first < end:
                found = reader.consume(min(end - first, 10_000), _SECONDS)
                if not found:
                    raise TimeoutError(
                        f"{topic}/{number} from offset {first}: nothing came within {_SECONDS:.0f} s"
                    )
                yield from found
                first = (found[-1].offset() or 0) + 1
    finally:
        reader.close()


def _of_table(layout: FlowHome, expected: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    seen = Counter[str]()
    for row in _rows(layout.tables.target.path, _COLUMNS):
        seen[row["event_id"]] += 1
        if row != (right := expected.get(row["event_id"])):
            yield f"table: {row} instead of {right}"
    for event in expected:
        if seen[event] != 1:
            yield f"table: {event} is there {seen[event]} times"


def _of_quarantine(layout: FlowHome, refused: Mapping[Place, str]) -> Iterator[str]:
    found = Counter[tuple[Place, str]]()
    for row in _rows(layout.tables.quarantine.path, ("origin", "reason", "field")):
        reason = (
            f"{row['reason']}/{row['field']}"
            if row["reason"] in ("type", "not_null")
            else row["reason"]
        )
        found[(row["origin"]["input"], row["origin"]["position"]), reason] += 1
    wanted = Counter(refused.items())
    yield from (f"quarantine lacks {place}: {reason}" for place, reason in (wanted - found))
    yield from (
        f"quarantine has {place}: {reason}, and should not" for place, reason in (found - wanted)
    )


def _rows(path: str, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Delta table. QueryBuilder is the reader of deltalake that honours deletion vectors."""
    asked = (
        QueryBuilder()
        .register("t", DeltaTable(path))
        .execute(f"select {', '.join(columns)} from t")
    )
    for batch in pa.RecordBatchReader.from_stream(asked):
        yield from batch.to_pylist()
