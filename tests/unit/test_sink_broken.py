"""What breaks a producer is named, however many messages have been handed to it when it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from draindown.base.errors import DraindownError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.client import Client
from draindown.sinks.kafka.markers import Marked, Markers
from draindown.sinks.kafka.sink import KafkaTopic
from draindown.sinks.kafka.transactions import KafkaTransactions
from draindown.sinks.port import FATE, SinkBatch, SinkColumn, SinkPlace, of_portion
from tests.unit.mock_brokers import MockBrokers

PLACE = SinkPlace("lake", "p", "f", "s")
COLUMNS = [SinkColumn("id", "bigint", key=True), SinkColumn("v", "string")]
UNREACHABLE = "sink-unreachable"
TOO_LARGE, DENIED_TOPIC, DENIED_CLUSTER, STALE_EPOCH, DENIED_ID, FENCED = 10, 29, 31, 47, 53, 90


@pytest.fixture(scope="module")
def brokers() -> Iterator[MockBrokers]:
    found = MockBrokers()
    found.create("t")
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _without_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers are read by committed messages, which these brokers don't know; nor do they know a
    topic's settings.
    """
    monkeypatch.setattr(Client, "topic_settings", lambda *_, **__: {"max.message.bytes": "100000"})
    monkeypatch.setattr(Markers, "make", lambda _: None)
    monkeypatch.setattr(Markers, "read", lambda _: Marked())


def raised(
    brokers: MockBrokers, delivery: str, rows: int, request: str, error: int, times: int = 20
) -> DraindownError:
    """Return what a sender raises of a batch of so many rows while the brokers answer requests with
    an error.
    """
    bounds = {"request_timeout": 5}
    if delivery == "exactly_once":
        bounds |= {"delivery": delivery, "transaction_timeout": 10}
    spec = KafkaSink.model_validate({"topic": "t", "bootstrap_servers": brokers.address, **bounds})
    made = (KafkaTransactions if delivery == "exactly_once" else KafkaTopic)(spec, PLACE, {})
    batch = SinkBatch(PLACE, "w", 1, 1, "drain", 1, 1, rows, "digest", 1)
    ids = pa.array(range(rows), pa.int64())
    part = pa.record_batch(
        {"id": ids, "v": pa.array(["x"] * rows), FATE: pa.array(["upsert"] * rows)}
    )
    made.fence(1)
    with brokers.answering(request, error, times), pytest.raises(DraindownError) as found:
        made.send(batch, COLUMNS, [of_portion(part, 0)])
    return found.value


@pytest.mark.parametrize("rows", [10, 120_000])
@pytest.mark.parametrize(
    ("delivery", "request_", "error", "code"),
    [
        ("exactly_once", "Produce", FENCED, "sink-fenced"),
        ("exactly_once", "Produce", STALE_EPOCH, "sink-fenced"),
        ("exactly_once", "Produce", TOO_LARGE, "sink-refused"),
        ("exactly_once", "AddPartitionsToTxn", FENCED, "sink-fenced"),
        ("exactly_once", "AddPartitionsToTxn", DENIED_ID, "sink-denied"),
        ("exactly_once", "AddPartitionsToTxn", DENIED_TOPIC, "sink-denied"),
        ("at_least_once", "Produce", TOO_LARGE, "sink-refused"),
        ("at_least_once", "InitProducerId", DENIED_CLUSTER, "sink-denied"),
    ],
)
def test_what_breaks_a_producer_is_named(
    brokers: MockBrokers, delivery: str, request_: str, error: int, code: str, rows: int
) -> None:
    assert raised(brokers, delivery, rows, request_, error).code == code


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_row_that_is_refused_is_the_one_that_was_sent_and_not_the_one_at_hand(
    brokers: MockBrokers, delivery: str
) -> None:
    found = raised(brokers, delivery, 120_000, "Produce", TOO_LARGE, 1)
    assert found.code == "sink-refused" and found.found.startswith('key {"id":0}')


def test_no_batch_of_messages_is_larger_than_the_topic_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(Client, "_made", lambda _, __, ___, options: made.append(dict(options)))
    spec = KafkaSink.model_validate({"topic": "t", "bootstrap_servers": "127.0.0.1:1"})
    client = Client(spec, PLACE, {})
    for largest in (100_000, 1_048_588):
        client.producer(largest=largest)
    assert [one["batch.size"] for one in made] == [100_000, 262_144]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("said", "before", "after"),
    [
        (
            "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            "sink-tls",
            UNREACHABLE,
        ),
        (
            "SSL handshake failed: error:0A000126:SSL routines::unexpected eof",
            "sink-tls",
            UNREACHABLE,
        ),
        ("SSL handshake failed: certificate verify failed", "sink-tls", "sink-tls"),
    ],
)
def test_a_broken_handshake_means_wrong_settings_only_until_a_broker_has_answered(
    brokers: MockBrokers, said: str, before: str, after: str, at_once: bool
) -> None:
    spec = KafkaSink.model_validate(
        {"topic": "t", "bootstrap_servers": brokers.address, "request_timeout": 5}
    )
    client = Client(spec, PLACE, {})
    handshake, later = KafkaError(KafkaError._SSL, said), KafkaError(KafkaError._TIMED_OUT)

    def code() -> str:
        client._heard[:] = [] if at_once else [handshake]
        return client.named(handshake if at_once else later).code

    assert code() == before
    client.ready(client.producer("draindown-met"))
    assert code() == after
