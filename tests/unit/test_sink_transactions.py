"""A topic that gets each batch exactly once: drivers that die or stand still anywhere, over brokers
in memory.

The brokers keep what Kafka promises: a transactional id has one producer at a time, and readers of
committed messages get nothing behind the first transaction of a partition that is open.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka import sink as of_topics
from draindown.sinks.kafka.client import Client
from draindown.sinks.kafka.transactions import KafkaTransactions
from draindown.sinks.port import FATE, SinkBatch, SinkColumn, SinkPlace, of_portion, portion_of

TOPIC, MARKERS = "events", "draindown-sinks"
PLACE = SinkPlace("lake", "p", "f", "s")
COLUMNS = (SinkColumn("id", "bigint", key=True), SinkColumn("n", "int"))
SETTINGS = {"cleanup.policy": "compact"}


class Killed(BaseException):
    """The driver dies here."""


@dataclass
class Entry:
    """A message of a partition. `state`: of its transaction."""

    key: bytes | None
    value: bytes | None
    transaction: list[str]

    @property
    def state(self) -> str:
        return self.transaction[0]


@dataclass
class Brokers:
    """Partitions by topic, one each, and the newest producer of each transactional id.

    `step` is called before and after each call of a producer.
    """

    logs: dict[str, list[Entry]] = field(default_factory=lambda: {TOPIC: []})
    settings: dict[str, dict[str, str]] = field(default_factory=lambda: {TOPIC: {}})
    owners: dict[str, FakeProducer] = field(default_factory=dict)
    step: Callable[[str], None] = lambda name: None
    looks: int = 0
    waits: Callable[[], None] = lambda: None
    may_create: bool = True

    def committed(self, topic: str) -> list[Entry]:
        log = self.logs[topic]
        end = next((at for at, one in enumerate(log) if one.state == "open"), len(log))
        return [one for one in log[:end] if one.state == "committed"]


class FakeProducer:
    """A producer of transactions. One whose driver is dead does nothing."""

    def __init__(self, brokers: Brokers, name: str) -> None:
        self._brokers, self._name, self._open, self._dead = brokers, name, ["none"], False

    def init_transactions(self, timeout: float) -> None:
        with self._call("init"):
            before = self._brokers.owners.get(self._name)
            if before is not None and before._open[0] == "open":
                before._open[0] = "aborted"
            self._brokers.owners[self._name] = self

    def begin_transaction(self) -> None:
        with self._call("begin"):
            self._owns()
            self._open = ["open"]

    def produce(self, topic: str, value: bytes, key: bytes, **more: Any) -> None:
        with self._call("produce"):
            self._owns()
            assert self._open[0] == "open" and more.get("partition", 0) == 0
            self._brokers.logs[topic].append(Entry(key, value, self._open))

    def commit_transaction(self, timeout: float) -> None:
        with self._call("commit"):
            self._owns()
            assert self._open[0] == "open"
            self._open[0] = "committed"

    def abort_transaction(self, timeout: float) -> None:
        if not self._dead:
            self._owns()
            self._open[0] = "aborted"

    def flush(self, timeout: float) -> int:
        return 0

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self) -> None: ...

    def _owns(self) -> None:
        if self._brokers.owners[self._name] is not self:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    def _call(self, name: str) -> Any:
        return _Call(self, name)


class _Call:
    """A call, in which the driver may die before it reaches the brokers or after."""

    def __init__(self, producer: FakeProducer, name: str) -> None:
        self._producer, self._name = producer, name

    def __enter__(self) -> None:
        self._step("before")

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            self._step("after")

    def _step(self, when: str) -> None:
        try:
            self._producer._brokers.step(f"{when} {self._name}")
        except Killed:
            self._producer._dead = True
            raise


@dataclass
class FakeMessage:
    entry: Entry | None
    at: int

    def error(self) -> KafkaError | None:
        return None if self.entry else KafkaError(KafkaError._PARTITION_EOF)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.entry.key if self.entry else None

    def value(self) -> bytes | None:
        return self.entry.value if self.entry else None


class FakeReader:
    """A reader of one partition, by one message at a time."""

    def __init__(self, brokers: Brokers, committed: bool) -> None:
        self._brokers, self._committed, self._topic, self._at = brokers, committed, "", 0

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, len(self._brokers.logs[place.topic])

    def assign(self, places: Any) -> None:
        self._topic, self._at = places[0].topic, places[0].offset

    def consume(self, most: int, wait: float) -> list[FakeMessage]:
        assert self._committed
        log = self._brokers.logs[self._topic]
        while self._at < len(log) and log[self._at].state == "aborted":
            self._at += 1
        if self._at < len(log) and log[self._at].state == "committed":
            self._at += 1
            return [FakeMessage(log[self._at - 1], self._at - 1)]
        self._brokers.looks += 1
        self._brokers.waits()
        return [FakeMessage(None, self._at)]

    def close(self) -> None: ...


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()

    class FakeClient(Client):
        def _made(self, part: str, name: str, options: Mapping[str, Any]) -> Any:
            if name == "Producer":
                return FakeProducer(found, options["transactional.id"])
            return FakeReader(found, options["isolation.level"] == "read_committed")

        def topic_settings(self, topic: str = "", *, read: bool = False) -> Mapping[str, str]:
            name = topic or TOPIC
            if name not in found.settings:
                raise TerminalError("sink-missing", tried="look", found=f"no topic {name}")
            return found.settings[name]

        def make_topic(
            self, topic: str, settings: Mapping[str, str], *, try_only: bool = False
        ) -> None:
            if not found.may_create:
                raise TerminalError("sink-denied", tried="make", found="not authorized")
            if not try_only:
                found.logs[topic], found.settings[topic] = [], dict(settings)

    monkeypatch.setattr(of_topics, "Client", FakeClient)
    return found


def sink(
    place: SinkPlace = PLACE, clock: Callable[[], float] = lambda: 0.0, **more: Any
) -> KafkaTransactions:
    given = {
        "topic": TOPIC,
        "bootstrap_servers": "k:1",
        "delivery": "exactly_once",
        "request_timeout": 1,
        **more,
    }
    return KafkaTransactions(KafkaSink(**given), place, {}, clock)


def batch(number: int, epoch: int, **more: Any) -> SinkBatch:
    return replace(
        SinkBatch(PLACE, "w", number, 1, "drain", number, epoch, 1, f"{number:x}"), **more
    )


def rows(*parts: Iterable[int], number: int = 0) -> Iterator[pa.RecordBatch]:
    """Record batches, each a portion: the ids, with the number of the batch."""
    for at, ids in enumerate(parts):
        made = [{"id": one, "n": number, FATE: "upsert"} for one in ids]
        if made:
            yield of_portion(pa.RecordBatch.from_pylist(made), at)


def got(brokers: Brokers, topic: str = TOPIC) -> list[tuple[int, int]]:
    """Return number of the batch and id of each committed message, in order."""
    found = (json.loads(one.value or b"") for one in brokers.committed(topic))
    return [(one["n"], one["id"]) for one in found]


def code(action: Callable[[], Any]) -> str:
    with pytest.raises(DraindownError) as raised:
        action()
    return str(raised.value.code)


def sent(brokers: Brokers, number: int, epoch: int, *parts: Iterable[int], **more: Any) -> None:
    found = sink(**more)
    found.fence(epoch)
    found.send(batch(number, epoch, portions=len(parts)), COLUMNS, rows(*parts, number=number))
    found.close()


@pytest.mark.parametrize("histories", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_histories_of_kills_and_frozen_drivers_send_each_row_once_and_in_order(
    brokers: Brokers, histories: int
) -> None:
    kills = thawed = parts_alone = 0
    for seed in range(histories):
        chance = random.Random(seed)
        brokers.logs, brokers.settings, brokers.owners = {TOPIC: []}, {TOPIC: {}}, {}
        epoch, wanted = 0, []
        for number in range(chance.randint(1, 3)):
            portions = [
                [at * 10 + one for one in range(chance.randint(0, 2))]
                for at in range(chance.randint(1, 3))
            ]
            seconds = iter(range(0, 10_000_000, chance.choice((0, 0, 30)) or 1))
            slow = chance.random() < 0.5

            def attempt(
                epoch: int, number: int = number, portions: list[list[int]] = portions
            ) -> None:
                clock = (lambda: float(next(seconds))) if slow else (lambda: 0.0)  # noqa: B023
                sent(brokers, number, epoch, *portions, clock=clock)

            for _ in range(chance.randint(0, 3)):
                epoch += 1
                left, freezes = [chance.randint(0, 12)], chance.random() < 0.3

                def fault(name: str, left: list[int] = left, freezes: bool = freezes) -> None:
                    nonlocal epoch
                    left[0] -= 1
                    if left[0] == 0 and not freezes:
                        raise Killed
                    if left[0] == 0:
                        epoch += 1
                        brokers.step = lambda name: None
                        attempt(epoch)

                brokers.step = fault
                try:
                    attempt(epoch)
                except Killed:
                    kills += 1
                except TransientError as error:
                    assert error.code == "sink-fenced"
                    thawed += 1
            brokers.step = lambda name: None
            epoch += 1
            before = len(brokers.logs[MARKERS]) if MARKERS in brokers.logs else 0
            attempt(epoch)
            parts_alone += slow and len(brokers.logs[MARKERS]) - before > 3
            wanted += [(number, one) for part in portions for one in part]
            assert got(brokers) == wanted, seed
    assert min(kills, thawed, parts_alone) > histories / 100


def test_a_frozen_transaction_of_another_sink_does_not_hide_the_newest_marker(
    brokers: Brokers,
) -> None:
    """Its marker lies in the same partition, and committed ones behind it can't be read before it
    ends.
    """
    sent(brokers, 0, 1, [1])
    other = FakeProducer(brokers, "another")
    other.init_transactions(1)
    other.begin_transaction()
    other.produce(MARKERS, value=b"{}", key=b'["lake", "p", "f", "another", "w"]')
    sent_behind = Entry(*_marker(brokers, number=1, digest="1"), ["committed"])
    brokers.logs[MARKERS].append(sent_behind)

    def until_its_time_is_over() -> None:
        if brokers.looks == 3:
            other._open[0] = "aborted"

    brokers.looks, brokers.waits = 0, until_its_time_is_over
    sent(brokers, 1, 2, [2])
    assert got(brokers) == [(0, 1)] and brokers.looks == 3, "batch 1 is there, so it is not sent"


def _marker(brokers: Brokers, **changed: Any) -> tuple[bytes, bytes]:
    newest = brokers.committed(MARKERS)[-1]
    return newest.key or b"", json.dumps(json.loads(newest.value or b"") | changed).encode()


def test_markers_that_stay_behind_an_open_transaction_are_waited_for_and_then_tried_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(brokers, 0, 1, [1])
    other = FakeProducer(brokers, "another")
    other.init_transactions(1)
    other.begin_transaction()
    other.produce(MARKERS, value=b"{}", key=b"[]")
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr("draindown.sinks.kafka.markers.time.monotonic", lambda: next(clock))
    assert code(lambda: sent(brokers, 1, 2, [2])) == "sink-unreachable"
    assert got(brokers) == [(0, 1)]


def test_a_driver_whose_epoch_is_lower_sends_nothing_even_if_it_begins_last(
    brokers: Brokers,
) -> None:
    sent(brokers, 0, 7, [1])
    assert code(lambda: sent(brokers, 1, 6, [2])) == "sink-fenced"
    assert got(brokers) == [(0, 1)]


def test_what_was_sent_in_part_is_known_and_other_rows_under_its_number_begin_anew(
    brokers: Brokers,
) -> None:
    clock = iter(range(0, 1_000, 30))
    brokers.step = _dies_at("before produce", 5)
    with pytest.raises(Killed):
        sent(brokers, 0, 1, [1], [2], [3], clock=lambda: float(next(clock)))
    brokers.step = lambda name: None
    assert got(brokers) == [(0, 1)]
    found = sink()
    there = found.has(batch(0, 2))
    assert there is not None and (there.whole, there.portions, there.digest) == (False, 3, "0")
    found.fence(2)
    found.send(batch(0, 2, digest="other"), COLUMNS, rows([9]))
    assert got(brokers) == [(0, 1), (0, 9)]
    there = found.has(batch(0, 2))
    assert there is not None and there.whole


def _dies_at(step: str, times: int) -> Callable[[str], None]:
    left = [times]

    def fault(name: str) -> None:
        left[0] -= name == step
        if not left[0]:
            raise Killed

    return fault


def test_each_writer_has_a_marker_and_so_has_the_end_of_a_fill(brokers: Brokers) -> None:
    found = sink()
    found.fence(1)
    for writer, number in (("w", 3), ("replay:1", 0), ("fill:1", 0)):
        found.send(batch(number, 1, writer=writer), COLUMNS, rows([1]))
    end = batch(1, 1, writer="fill:1", digest="", rows=0)
    assert found.retain(end, COLUMNS, []) is None
    found.close()
    looks = sink()
    numbers = {
        writer: looks.has(batch(0, 1, writer=writer))
        for writer in ("w", "replay:1", "fill:1", "other")
    }
    assert {writer: one and one.number for writer, one in numbers.items()} == {
        "w": 3,
        "replay:1": 0,
        "fill:1": 1,
        "other": None,
    }
    sink(SinkPlace("lake", "p", "f", "another")).fence(1)
    assert sink(SinkPlace("lake", "p", "f", "another")).has(batch(0, 1)) is None


def test_a_batch_on_its_way_whose_markers_are_gone_is_not_guessed_at(brokers: Brokers) -> None:
    sent(brokers, 0, 1, [1])
    del brokers.logs[MARKERS], brokers.settings[MARKERS]
    for epoch in (2, 3):
        found = sink()
        found.fence(epoch)
        assert code(lambda found=found: found.has(batch(0, 1))) == "sink-records", (
            "however often it is tried"
        )  # type: ignore[misc]
    assert found.has(batch(1, 2)) is None, "what is begun since is known"


@pytest.mark.parametrize(
    "cause", [KafkaException(KafkaError(KafkaError._FENCED, fatal=True)), None]
)
def test_a_fatal_error_that_the_client_raises_while_it_calls_back_is_named(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, cause: Exception | None
) -> None:
    def flush(self: FakeProducer, timeout: float) -> int:
        monkeypatch.setattr(FakeProducer, "begin_transaction", begin)
        raise SystemError(
            "<method> returned a result with an exception set, or NULL without one"
        ) from cause

    def begin(self: FakeProducer) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))

    monkeypatch.setattr(FakeProducer, "flush", flush)
    assert code(lambda: sent(brokers, 0, 1, [1])) == "sink-fenced"
    assert got(brokers) == []


@pytest.mark.parametrize(
    ("settings", "may_create", "expected"),
    [
        ({MARKERS: SETTINGS}, True, ""),
        ({MARKERS: SETTINGS}, False, ""),
        ({}, True, ""),
        ({}, False, "sink-records"),
        ({MARKERS: {"cleanup.policy": "compact,delete"}}, True, "sink-records"),
        ({MARKERS: SETTINGS, TOPIC: {"message.format.version": "3.0-IV1"}}, True, "sink-unfit"),
    ],
)
def test_what_a_plan_finds_before_anything_is_sent(
    brokers: Brokers, settings: dict[str, dict[str, str]], may_create: bool, expected: str
) -> None:
    brokers.settings |= settings
    brokers.may_create = may_create
    before = dict(brokers.settings)
    if expected:
        assert code(lambda: sink().check(COLUMNS)) == expected
    else:
        sink().check(COLUMNS)
    assert brokers.owners == {} and brokers.settings == before, (
        "a plan excludes no driver at work, and makes no topic"
    )


def test_whoever_may_not_make_the_topic_of_markers_is_told_how(brokers: Brokers) -> None:
    brokers.may_create = False
    for action in (lambda: sink().check(COLUMNS), lambda: sink().fence(1)):
        with pytest.raises(TerminalError) as raised:
            action()
        assert raised.value.code == "sink-records" and "this user can't make it" in str(
            raised.value
        )
        how, again = raised.value.next
        assert how.startswith(f"kafka-topics.sh --create --topic {MARKERS} --partitions 1 ")
        assert "cleanup.policy=compact" in how and again.startswith("draindown plan p/f")


def test_the_number_of_a_portion_stays_with_its_rows() -> None:
    part = pa.RecordBatch.from_pylist([{"a": 1}])
    assert (portion_of(part), portion_of(of_portion(part, 7))) == (0, 7)
