"""Logs that lost records and grew again, and leaders that only moved, with a broker that was really
cut.
"""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.config.kafka import KafkaSource
from draindown.lake.home import FlowHome
from draindown.sources.batch_size import Bound
from draindown.sources.kafka import positions
from draindown.sources.kafka.client import Client
from draindown.sources.kafka.offsets import Span
from draindown.sources.kafka.source import Kafka
from draindown.spark.runs.rebuild import rebuild
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KafkaFlow
from tests.kafka.test_drain import record
from tests.kafka.test_losses import red

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
TOPICS = ("plain", "keyed", "paid", "empty", "wide")


def spec(cluster: Cluster, *topics: str, **more: Any) -> KafkaSource:
    kafka = {"bootstrap_servers": cluster.address, "topics": list(topics), "request_timeout": 20}
    return KafkaSource.model_validate({"kafka": kafka | more, "format": "json"})


def source(cluster: Cluster, home: Path) -> Kafka:
    layout = FlowHome(str(home / "lake"), "p", "f", "f", own_intakes=True)
    return Kafka(spec(cluster, *TOPICS, transactional=True), layout, home, "r")


def pin(cluster: Cluster, home: Path) -> dict[tuple[str, int], tuple[int, int | None]]:
    """Pin all that is unread. Return position and epoch of each partition that has a position above
    0.
    """
    made = source(cluster, home)
    made.pin(1, NOW).take(Bound(1024**3, None, "all"))
    newest = positions.newest(made._layout, 1)
    return {one.place: (one.until, one.epoch) for one in newest if one.until}


def batches(cluster: Cluster, topic: str, count: int, **more: Any) -> None:
    """Write batches of 10 records each."""
    for _ in range(count):
        cluster.send(topic, [{"value": b"{}", **more}] * 10)


@pytest.mark.long
def test_leaders_that_moved_are_no_loss_and_what_they_cut_is(
    own_broker: Cluster, tmp_path: Path
) -> None:
    for topic in TOPICS:
        settings = {"cleanup_policy": "compact", "segment_ms": 100} if topic == "keyed" else {}
        own_broker.create(topic, 50 if topic == "wide" else 1, **settings)
    batches(own_broker, "plain", 10)
    batches(own_broker, "keyed", 5, key=b"k")
    own_broker.send_transaction("paid", [{"value": b"{}"}] * 10, commit=True)
    own_broker.send_transaction("paid", [{"value": b"{}"}] * 10, commit=False)
    before = pin(own_broker, tmp_path)
    assert {place: at for place, (at, _) in before.items()} == {
        ("plain", 0): 100,
        ("keyed", 0): 50,
        ("paid", 0): 22,
    }

    # at the ends of the logs, one of them behind the marker of an aborted transaction
    for _ in range(2):
        own_broker.restart(*TOPICS)
        made = source(own_broker, tmp_path)
        made.refuse_lost(made._layout, 1, 1)
    batches(own_broker, "plain", 1)
    batches(own_broker, "keyed", 1, key=b"k")
    with_open = own_broker.producer(transactional_id="open")
    with_open.init_transactions(20)
    with_open.begin_transaction()
    with_open.produce("paid", b"{}")
    assert with_open.flush(20) == 0
    after = pin(own_broker, tmp_path)
    assert {place: at for place, (at, _) in after.items()} == {
        ("plain", 0): 110,
        ("keyed", 0): 60,
        ("paid", 0): 22,
    }
    assert all((after[place][1] or 0) > (epoch or 0) for place, (_, epoch) in before.items()), (
        "the leaders moved"
    )
    with_open.abort_transaction(20)

    own_broker.broker.kill()
    own_broker.truncate("plain", 0, 70)
    own_broker.start_again(*TOPICS)
    batches(own_broker, "plain", 10)
    batches(own_broker, "keyed", 1, key=b"k")
    for _ in range(3):
        with pytest.raises(TerminalError) as found:
            pin(own_broker, tmp_path)
        assert found.value.code == "log-truncated"
        assert (
            "plain/0 [70, 110): the log was truncated to 70 and written anew up to 170"
            in found.value.found
        )
        assert "keyed" not in found.value.found and "paid" not in found.value.found
    with pytest.raises(TerminalError) as found:
        source(own_broker, tmp_path).losses(1, 1)
    assert found.value.code == "log-truncated" and "plain/0 [70, 110)" in found.value.found


@pytest.mark.full
def test_a_leader_names_the_cut_below_each_position(own_broker: Cluster) -> None:
    own_broker.create("plain")
    batches(own_broker, "plain", 10)
    own_broker.broker.kill()
    own_broker.truncate("plain", 0, 70)
    own_broker.start_again("plain")
    batches(own_broker, "plain", 2)
    own_broker.trim("plain", 0, 20)
    client = Client(spec(own_broker, "plain"))
    (held,) = client.look().partitions
    assert (held.beginning, held.end) == (20, 90) and held.epoch

    def cut(position: int, epoch: int) -> int | None:
        return client.truncations([Span("plain", 0, held.topic_id, 0, position, epoch)]).get(
            held.place
        )

    assert [cut(position, 0) for position in (20, 69, 70)] == [None] * 3
    assert [cut(position, 0) for position in (71, 90, 100)] == [70] * 3
    assert [cut(position, held.epoch) for position in (71, 90)] == [None] * 2
    own_broker.trim("plain", 0, 70)
    assert [cut(70, 0), cut(80, 0)] == [None, 70], (
        "the leader remembers no record of the older epoch"
    )


@pytest.mark.long
def test_a_flow_does_not_read_on_behind_records_that_were_written_anew(
    own_broker: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    own_broker.create("t")
    for first in range(0, 30, 10):
        own_broker.send("t", [record(n) for n in range(first, first + 10)])
    f = KafkaFlow(tmp_path / "project", spark, own_broker, "t")
    f.run()
    own_broker.broker.kill()
    own_broker.truncate("t", 0, 20)
    own_broker.start_again("t")
    own_broker.send("t", [record(n) for n in range(100, 140)])
    for _ in range(2):
        error = red(f.run)
        assert error.code == "log-truncated" and "t/0 [20, 30)" in error.found
    assert sorted(row["n"] for row in f.rows("n")) == list(range(30))

    (aside,) = [one for one in error.next if one.startswith("mv ")]
    subprocess.run(shlex.split(aside, comments=True), check=True)
    rebuild(f.request(), spark, accept_missing=True, progress=lambda _: None)
    own_broker.send("t", [record(140)])
    f.run()
    assert sorted(row["n"] for row in f.rows("n")) == [*range(20), *range(100, 141)]
    assert f.offsets() == [(0, offset) for offset in range(61)]


@pytest.mark.long
def test_two_hundred_partitions_of_new_leaders_are_compared_in_two_seconds(
    own_broker: Cluster,
) -> None:
    own_broker.create("wide", 200)
    own_broker.send("wide", [{"value": b"{}", "partition": n} for n in range(200)])
    own_broker.restart("wide")
    client = Client(spec(own_broker, "wide"))
    held = client.look().partitions
    started = datetime.now(UTC)
    assert client.truncations([Span(*one.place, one.topic_id, 0, 1, 0) for one in held]) == {}
    assert len(held) == 200 and (datetime.now(UTC) - started).total_seconds() < 1.5
