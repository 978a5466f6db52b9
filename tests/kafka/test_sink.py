"""The contract of sinks over a Kafka topic, its messages, and the recipe for consumers."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.sink import KafkaTopic
from draindown.sinks.port import FATE, ORIGIN, SinkColumn
from tests.kafka.cluster import Cluster
from tests.sinks import contract
from tests.sinks.contract import BATCH, COLUMNS, PLACE, Bench

PAGE = Path(__file__).resolve().parents[2] / "docs/kafka-sink.md"


def read(cluster: Cluster, topic: str, *, committed: bool = False) -> list[Any]:
    """Return the messages of a topic, partition by partition: all, or those up to the first open
    transaction.
    """
    level = "read_committed" if committed else "read_uncommitted"
    options = {"group.id": "tests", "enable.partition.eof": True, "isolation.level": level}
    reader = Consumer({"bootstrap.servers": cluster.address, **options})
    parts = cluster.admin.list_topics(topic, timeout=20).topics[topic].partitions
    reader.assign([TopicPartition(topic, number, 0) for number in parts])
    found, left, end = [], len(parts), time.monotonic() + 30
    while left:
        assert time.monotonic() < end
        for message in reader.consume(1000, 0.2):
            if message.error() is None:
                found.append(message)
            else:
                left -= 1
    reader.close()
    return found


def by_recipe(messages: list[Any]) -> dict[bytes, Any]:
    """Apply messages as the page tells consumers to."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    rows: dict[bytes, Any] = {}
    for message in messages:
        names["apply"](message, rows)
    return rows


def sink(cluster: Cluster, topic: str, **more: Any) -> KafkaTopic:
    return KafkaTopic(KafkaSink(topic=topic, bootstrap_servers=cluster.address, **more), PLACE, {})


@pytest.fixture
def bench(cluster: Cluster, topic: str) -> Bench:
    cluster.create(topic, 3)

    def rows() -> Mapping[int, tuple[str | None, str | None]]:
        return {
            int(key): (row["name"], row["note"])
            for key, row in by_recipe(read(cluster, topic)).items()
        }

    return Bench(lambda: sink(cluster, topic), lambda: dict(rows()), records=False)


@pytest.mark.parametrize("rule", contract.EVERY)
def test_contract_of_a_topic(rule: Callable[[Bench], None], bench: Bench) -> None:
    rule(bench)


def test_a_batch_sent_again_has_the_same_messages_and_the_recipe_drops_them(
    cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 1)
    first, second = (
        contract.upserts({1: ("a", None), 2: ("b", None)}),
        [*contract.upserts({1: ("A", None)})],
    )
    for number, rows in (
        (0, first),
        (1, [*second, *contract.deletes(2)]),
        (0, first),
    ):  # a zombie thaws at the end
        sink(cluster, topic).send(replace(BATCH, number=number), COLUMNS, contract.batches(rows))
    found = read(cluster, topic)
    ids = [dict(message.headers())["id"] for message in found]
    assert len(ids) == 6 and len(set(ids)) == 4 and ids[:2] == ids[4:]
    assert by_recipe(found) == {b"1": {"id": 1, "name": "A", "note": None}}
    headers = dict(found[0].headers())
    assert {name: headers[name] for name in ("flow", "generation", "kind", "batch")} == {
        "flow": b"pay.payments",
        "generation": b"1",
        "kind": b"drain",
        "batch": b"0",
    }


class LeaseLost(Exception):
    """Another driver took over."""


def test_a_driver_that_lost_its_lease_sends_no_further_portion(
    cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 1)
    rows = contract.upserts(dict.fromkeys(range(6), ("a", None)))

    def until_lost() -> Iterator[pa.RecordBatch]:
        yield from islice(contract.batches(rows), 1)
        # the driver that took over
        sink(cluster, topic).send(BATCH, COLUMNS, contract.batches(rows))
        sink(cluster, topic).send(
            replace(BATCH, number=1), COLUMNS, contract.batches(contract.deletes(0, 1))
        )
        raise LeaseLost

    with pytest.raises(LeaseLost):
        sink(cluster, topic).send(BATCH, COLUMNS, until_lost())
    found = read(cluster, topic)
    assert 8 <= len(found) <= 10, (
        "of the portion before the loss some may have gone out, of the others none"
    )
    assert sorted(by_recipe(found)) == [b"2", b"3", b"4", b"5"]


def test_a_withdrawn_row_without_keys_is_a_message_that_says_so(
    cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 2)
    columns = (SinkColumn(ORIGIN, "string", key=True), SinkColumn("user", "string"))
    row = {ORIGIN: "t/0:7", "user": "u1", FATE: "upsert"}
    for fate in ("upsert", "delete"):
        part = pa.RecordBatch.from_pylist([row | {FATE: fate}])
        sink(cluster, topic, partition_by=["user"]).send(BATCH, columns, [part])
    put, gone = read(cluster, topic)
    assert put.key() == gone.key() == b"u1" and "withdrawn" not in dict(put.headers())
    assert json.loads(put.value()) == {ORIGIN: "t/0:7", "user": "u1"}
    assert (
        json.loads(gone.value()) == {ORIGIN: "t/0:7"}
        and dict(gone.headers())["withdrawn"] == b"true"
    )


@pytest.mark.parametrize("problem", ["no topic", "too large", "unreachable"])
def test_what_the_brokers_refuse_is_named(cluster: Cluster, topic: str, problem: str) -> None:
    found: KafkaTopic
    noise = random.Random(1).randbytes(50_000).hex()  # of which compression makes little less
    rows = contract.upserts({1: (noise, None)})
    if problem == "unreachable":
        spec = KafkaSink(topic=topic, bootstrap_servers="127.0.0.1:1", request_timeout=1)
        found, kind, code = KafkaTopic(spec, PLACE, {}), TransientError, "sink-unreachable"
    else:
        found, kind, code = sink(cluster, topic), TerminalError, "sink-missing"
    if problem == "too large":
        cluster.create(topic, 1, max_message_bytes=1000)
        code = "sink-refused"
        assert contract.refused(found, rows) == {"message-too-large": 1}
        found = sink(cluster, topic)
    with pytest.raises(DraindownError) as raised:
        found.check(COLUMNS)
        found.send(BATCH, COLUMNS, contract.batches(rows))
    assert isinstance(raised.value, kind) and raised.value.code == code
