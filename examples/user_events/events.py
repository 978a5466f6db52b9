"""The events of a shop's users: a record of the topic `user-events` for each number, the same at every call.

    python -m examples.user_events.events BROKERS [COUNT]      writes those of the first COUNT that the topic lacks

Each record follows from its number alone, so the records of a smaller count begin those of a greater one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import confluent_kafka.admin
from confluent_kafka import Producer, TopicPartition

from draindown.base.errors import TransientError

_admin: Any = confluent_kafka.admin  # exports more than it says
TOPIC = "user-events"
PARTITIONS = 4
COUNT = 100_000
_SECONDS = 30.0
_BEGIN = datetime(2026, 9, 1, 6, tzinfo=UTC)
_KINDS = ("view", "view", "view", "cart", "view", "purchase", "refund")
_AGAIN, _AGAIN_AFTER = 23, 40  # every 23rd record is one of 40 or so before, sent again
_BROKEN_EACH = 211  # a prime, as the others: kinds of faults meet all users and events
_BROKEN = ("torn", "bytes", "empty", "null", "keyless", "kind", "amount", "timeless", "early")


@dataclass(frozen=True)
class Record:
    """One record of the topic. `sent_at`: its timestamp, in milliseconds since 1970."""

    partition: int
    key: bytes | None
    value: bytes | None
    sent_at: int
    trace: bytes


def record(number: int) -> Record:
    """Return the record of a number, from 0."""
    if number % _AGAIN == _AGAIN - 1 and number >= _AGAIN_AFTER:
        return _again(number)
    made = _made(number)
    return (
        _broken(made, number // _BROKEN_EACH) if number % _BROKEN_EACH == _BROKEN_EACH - 1 else made
    )


def _made(number: int, *, more: float = 0.0, later: int = 0) -> Record:
    user = number * 7919 % 500
    sent = _BEGIN + timedelta(milliseconds=137 * number + later)
    value: dict[str, object] = {
        "event_id": f"e-{number:07d}",
        "event": _KINDS[number % len(_KINDS)],
        "item": f"sku-{number * 31 % 997:03d}",
        "happened_at": (sent - timedelta(seconds=number % 90)).isoformat(timespec="milliseconds"),
    }
    if value["event"] != "view":
        value["amount"] = round(number * 17 % 20_000 / 100 + more, 2)
    return Record(
        partition=user % PARTITIONS,
        key=f"u-{user:04d}".encode(),
        value=json.dumps(value).encode(),
        sent_at=round(sent.timestamp() * 1000),
        trace=f"{number:08x}".encode(),
    )


def _again(number: int) -> Record:
    """Return an earlier record: every other time as it was, else a second later with another amount."""
    before = number - _AGAIN_AFTER
    return _made(before) if number % 2 else _made(before, more=1.0, later=1000)


def _broken(made: Record, number: int) -> Record:
    fault = _BROKEN[number % len(_BROKEN)]
    value = json.loads(made.value or b"")
    spoilt: dict[str, bytes | None] = {
        "torn": (made.value or b"")[:-9],
        "bytes": b"\xff\xfe\x00" + (made.value or b""),
        "empty": b"",
        "null": None,
        "kind": json.dumps(value | {"event": "teleport"}).encode(),
        "amount": json.dumps(value | {"amount": "many"}).encode(),
        "timeless": json.dumps(
            {name: v for name, v in value.items() if name != "happened_at"}
        ).encode(),
        "early": json.dumps(value | {"happened_at": "1999-12-31T23:59:59Z"}).encode(),
    }
    return replace(made, key=None) if fault == "keyless" else replace(made, value=spoilt[fault])


def send(brokers: str, count: int = COUNT) -> int:
    """Write those of the first `count` records that the topic lacks, and return how many. Makes the topic.

    Nobody else may write to it. Raises TransientError `demo-broker-away`.
    """
    lacking = Counter(_lengths(brokers))
    producer = Producer(
        {"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
    )
    sent = 0
    for one in _first(count):
        if lacking[one.partition] > 0:
            lacking[one.partition] -= 1
            continue
        _produce(producer, one)
        sent += 1
    if producer.flush(_SECONDS):
        raise _away(brokers)
    return sent


def _first(count: int) -> Iterator[Record]:
    return (record(number) for number in range(count))


def _produce(producer: Producer, one: Record) -> None:
    while True:
        try:
            producer.produce(
                TOPIC,
                key=one.key,
                value=one.value,
                partition=one.partition,
                timestamp=one.sent_at,
                headers=[("trace", one.trace)],
            )
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


def _lengths(brokers: str) -> dict[int, int]:
    """Return the number of records that each partition has. Makes the topic if it is missing."""
    admin = _admin.AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    try:
        if TOPIC not in admin.list_topics(timeout=_SECONDS).topics:
            # retention counts from the records' own times, which lie in the past
            admin.create_topics(
                [_admin.NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})]
            )[TOPIC].result(_SECONDS)
            return {}
        places = {
            TopicPartition(TOPIC, number): _admin.OffsetSpec.latest()
            for number in range(PARTITIONS)
        }
        asked = admin.list_offsets(places)
        return {place.partition: future.result(_SECONDS).offset for place, future in asked.items()}
    except Exception as error:
        raise _away(brokers) from error


def _away(brokers: str) -> TransientError:
    return TransientError(
        "demo-broker-away",
        tried=f"write events to topic {TOPIC} at {brokers}",
        found=f"the broker did not answer within {_SECONDS:.0f} s",
        changed="a repetition writes what the topic lacks",
        next="make demo-kafka",
    )


if __name__ == "__main__":
    sys.stdout.write(f"{send(sys.argv[1], *map(int, sys.argv[2:])):,} records written\n")
