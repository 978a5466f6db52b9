"""The client against a real broker: what it sees, how long it waits, what it calls each failure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.config.kafka import KafkaSource
from draindown.sources.kafka.client import Client
from draindown.sources.kafka.offsets import Span
from tests.kafka.cluster import USER, WORD, Cluster


def source(cluster: Cluster, *topics: str, **more: Any) -> KafkaSource:
    kafka = {"bootstrap_servers": cluster.address, "request_timeout": 20, **more}
    if topics:
        kafka["topics"] = list(topics)
    return KafkaSource.model_validate({"kafka": kafka, "format": "json"})


def refused(source: KafkaSource, environ: dict[str, str] | None = None) -> DraindownError:
    impatient = source.kafka.model_copy(update={"request_timeout": 3})
    started = time.monotonic()
    with pytest.raises(DraindownError) as found:
        Client(source.model_copy(update={"kafka": impatient}), environ or {}).look()
    assert time.monotonic() - started < 3 + 3, "waiting is bounded"
    return found.value


@pytest.mark.full
def test_partitions_beginnings_and_ends_are_seen_in_one_look(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 3)
    cluster.send(topic, [{"value": b"x", "partition": 1} for _ in range(7)])
    cluster.trim(topic, 1, 4)
    seen = Client(source(cluster, topic)).look()
    assert [(one.place, one.beginning, one.end) for one in seen.partitions] == [
        ((topic, 0), 0, 0),
        ((topic, 1), 4, 7),
        ((topic, 2), 0, 0),
    ]
    assert len({one.topic_id for one in seen.partitions}) == 1
    assert seen.policies[topic].deleted and not seen.policies[topic].compacted


def test_the_end_is_the_last_stable_offset(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.send(topic, [{"value": b"x"}] * 2)
    producer = cluster.producer(transactional_id=topic)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(20) == 0
    assert [one.end for one in Client(source(cluster, topic)).look().partitions] == [2]
    producer.commit_transaction(20)
    cluster.until(lambda: Client(source(cluster, topic)).look().partitions[0].end == 4)


def test_a_recreated_topic_has_another_id(cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    before = Client(source(cluster, topic)).topic_ids([topic])
    cluster.delete(topic)
    assert Client(source(cluster, topic)).topic_ids([topic]) == {}
    cluster.create(topic)
    after = Client(source(cluster, topic)).topic_ids([topic])
    assert set(before) == set(after) == {topic} and before != after


def test_a_pattern_is_matched_against_whole_names(cluster: Cluster, topic: str) -> None:
    for name in (f"{topic}-a", f"{topic}-b", f"x{topic}-a"):
        cluster.create(name)
    seen = Client(source(cluster, topic_pattern=f"{topic}-[ab]")).look()
    assert {one.topic for one in seen.partitions} == {f"{topic}-a", f"{topic}-b"}
    assert Client(source(cluster, topic_pattern=f"{topic}-c")).look().partitions == ()


def test_a_time_is_found_per_partition(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 2)
    cluster.send(
        topic,
        [
            {"value": b"x", "partition": 0, "timestamp": 1_790_000_000_000 + n * 1000}
            for n in range(5)
        ],
    )
    at = datetime.fromtimestamp(1_790_000_002, UTC)
    assert Client(source(cluster, topic)).at_time([(topic, 0), (topic, 1)], at) == {
        (topic, 0): 2,
        (topic, 1): None,
    }


def test_a_sample_says_when_the_oldest_was_written_and_what_a_record_weighs(
    cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, 2)
    cluster.send(
        topic,
        [{"key": b"k", "value": b"v" * 9, "partition": 1, "timestamp": 1_790_000_000_000}] * 3,
    )
    client = Client(source(cluster, topic))
    (id,) = set(client.topic_ids([topic]).values())
    found = client.sample([Span(topic, 0, id, 0, 0), Span(topic, 1, id, 1, 3)])
    assert found.oldest == {(topic, 1): datetime.fromtimestamp(1_790_000_000, UTC)}
    assert found.record_bytes == 10


def test_a_topic_that_is_not_there_is_left_out_at_once(cluster: Cluster) -> None:
    started = time.monotonic()
    assert Client(source(cluster, "nowhere")).look().partitions == ()
    assert time.monotonic() - started < 3


def test_a_broker_that_is_away_is_a_reason_to_try_again(cluster: Cluster) -> None:
    error = refused(source(cluster, "t", bootstrap_servers="127.0.0.1:1"))
    assert isinstance(error, TransientError) and error.code == "kafka-unreachable"


def test_sasl_lets_in_whoever_has_the_secret(cluster: Cluster, topic: str) -> None:
    assert cluster.secured is not None
    cluster.create(topic)
    sasl = source(
        cluster,
        topic,
        bootstrap_servers=f"127.0.0.1:{cluster.secured.sasl}",
        security_protocol="sasl_plaintext",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password="${secret:WORD}",
    )
    assert Client(sasl, {"DRAINDOWN_SECRET_WORD": WORD}).look().partitions
    error = refused(sasl, {"DRAINDOWN_SECRET_WORD": "wrong"})
    assert isinstance(error, TerminalError) and error.code == "kafka-auth"
    assert "wrong" not in str(error)
    assert refused(sasl, {}).code == "secret-missing"


@pytest.mark.full
def test_tls_is_spoken_with_the_brokers_certificate(cluster: Cluster, topic: str) -> None:
    assert cluster.secured is not None
    cluster.create(topic)
    address = f"127.0.0.1:{cluster.secured.tls}"
    tls = source(
        cluster,
        topic,
        bootstrap_servers=address,
        security_protocol="ssl",
        ssl_ca_location=str(cluster.secured.ca),
    )
    assert Client(tls).look().partitions
    untrusted = source(cluster, topic, bootstrap_servers=address, security_protocol="ssl")
    assert refused(untrusted).code == "kafka-tls"
    plain_port = source(
        cluster, topic, security_protocol="ssl", ssl_ca_location=str(cluster.secured.ca)
    )
    assert refused(plain_port).code == "kafka-tls"


@pytest.mark.long
def test_two_hundred_partitions_are_looked_at_in_two_seconds(cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 200)
    client = Client(source(cluster, topic, request_timeout=20))
    cluster.until(lambda: len(client.look().partitions) == 200)
    started = time.monotonic()
    assert len(Client(source(cluster, topic)).look().partitions) == 200
    assert time.monotonic() - started < 2
