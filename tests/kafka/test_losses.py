"""What can be lost at the brokers is red, by name, and never a green run with fewer or other
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import DraindownError, TransientError
from draindown.recovery import losses, reset
from draindown.runs.request import Again
from draindown.sources import intake
from draindown.sources.kafka.source import Kafka
from draindown.sources.slices import Unit
from draindown.spark.runs.dispatch import run_drain
from draindown.spark.runs.rebuild import rebuild
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow, once
from tests.kafka.test_drain import record

Flow = Callable[..., KafkaFlow]


def red(run: Callable[[], object]) -> DraindownError:
    with pytest.raises(DraindownError) as found:
        run()
    return found.value


def drained(
    cluster: Cluster, topic: str, flow: Flow, records: int = 10, **content: Any
) -> KafkaFlow:
    """A flow that has read some records."""
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(records)])
    f = flow(**content)
    f.run()
    return f


@pytest.mark.long
def test_offsets_that_aged_out_between_runs_are_named(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10)])
    cluster.trim(topic, 0, 15)
    error = red(f.run)
    assert error.code == "offsets-lost"
    assert f"{topic}/0 [10, 15)" in error.found
    assert len(f.rows("1")) == 10


@pytest.mark.long
def test_offsets_that_were_read_may_age_out(cluster: Cluster, topic: str, flow: Flow) -> None:
    f = drained(cluster, topic, flow)
    cluster.trim(topic, 0, 10)
    cluster.send(topic, [record(10)])
    f.run()
    assert f.offsets() == [(0, offset) for offset in range(11)]


@pytest.mark.long
def test_offsets_that_age_out_once_they_are_pinned_are_named(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10)])
    error = red(lambda: f.run(reached=once("begun", lambda: cluster.trim(topic, 0, 15))))
    assert error.code == "offsets-lost"
    assert f"{topic}/0 [10, 15)" in error.found
    assert len(f.rows("1")) == 10
    assert red(f.run).code == "offsets-lost"


def accept(f: KafkaFlow) -> None:
    """Do what an error says."""
    lost = losses.found(f.request())
    losses.accept(f.request(), list(lost), by="tests", note="the brokers kept too little")


@pytest.mark.full
def test_an_accepted_loss_is_gone_by_and_nothing_else(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10, 20)])
    cluster.trim(topic, 0, 15)
    assert set(losses.found(f.request())) == {f"{topic}/0:10-15"}
    assert (
        red(lambda: losses.accept(f.request(), [f"{topic}/0:10-16"], by="t", note="n")).code
        == "not-lost"
    )
    accept(f)
    f.run()
    assert f.offsets() == [(0, offset) for offset in [*range(10), *range(15, 20)]]
    cluster.send(topic, [record(n) for n in range(20, 30)])
    cluster.trim(topic, 0, 25)
    assert red(f.run).code == "offsets-lost"


@pytest.mark.long
def test_a_loss_of_pinned_offsets_is_accepted_too(cluster: Cluster, topic: str, flow: Flow) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10, 20)])
    assert f.dies_at("begun")
    cluster.trim(topic, 0, 15)
    assert red(f.run).code == "offsets-lost"
    accept(f)
    f.run()
    assert f.offsets() == [(0, offset) for offset in [*range(10), *range(15, 20)]]


@pytest.mark.long
def test_a_new_topic_of_an_old_name_is_read_once_that_is_accepted(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10, 20)])
    assert f.dies_at("begun")
    cluster.delete(topic)
    cluster.create(topic)
    cluster.send(topic, [record(n) for n in range(100, 105)])
    assert red(f.run).code == "topic-recreated"
    accept(f)
    f.run()
    assert {row["n"] for row in f.rows("n")} == {*range(10), *range(100, 105)}


@pytest.mark.long
@pytest.mark.parametrize("records", [3, 30])
def test_a_topic_that_was_created_again_is_another_topic(
    cluster: Cluster, topic: str, flow: Flow, records: int
) -> None:
    f = drained(cluster, topic, flow)
    cluster.delete(topic)
    cluster.create(topic)
    cluster.send(topic, [record(100)] * records)
    assert red(f.run).code == "topic-recreated"
    assert {row["n"] for row in f.rows("n")} == set(range(10))


@pytest.mark.full
def test_a_topic_that_is_created_again_while_a_batch_reads_it_is_noticed_before_a_row_is_written(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.send(topic, [record(n) for n in range(10, 20)])
    checks: list[int] = []

    class Switched(Kafka):
        def refuse_changed(self, units: Sequence[Unit]) -> None:
            super().refuse_changed(units)
            checks.append(len(units))
            if len(checks) == 1:
                cluster.delete(topic)
                cluster.create(topic)
                cluster.send(topic, [record(100)] * 30)

    request = f.request()
    source = Switched(request.flow_spec.source, f.layout, Path(request.root), request.run_id)  # type: ignore[arg-type]
    assert red(lambda: f.run(source=source)).code == "topic-recreated"
    assert checks == [1]
    assert {row["n"] for row in f.rows("n")} == set(range(10))


@pytest.mark.long
def test_a_topic_that_is_gone_is_named(cluster: Cluster, topic: str, flow: Flow) -> None:
    f = drained(cluster, topic, flow)
    cluster.delete(topic)
    assert red(f.run).code == "topic-gone"


def test_a_topic_that_never_was_is_named(topic: str, flow: Flow) -> None:
    assert red(flow().run).code == "topic-unknown"


@pytest.mark.long
def test_an_added_partition_is_read_from_its_beginning(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.add_partitions(topic, 3)
    cluster.send(topic, [record(20, 2)] * 2)
    f.run()
    assert f.offsets() == [(0, offset) for offset in range(10)] + [(2, 0), (2, 1)]


@pytest.mark.long
def test_an_added_partition_of_which_records_are_gone_is_a_loss(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    cluster.add_partitions(topic, 2)
    cluster.send(topic, [record(20, 1)] * 5)
    cluster.trim(topic, 1, 2)
    error = red(f.run)
    assert error.code == "offsets-lost"
    assert f"{topic}/1 [0, 2)" in error.found


@pytest.mark.full
def test_a_broker_that_dies_in_a_batch_is_a_reason_to_try_again(
    own_broker: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    own_broker.create("t")
    own_broker.send("t", [record(n) for n in range(50)])
    f = KafkaFlow(tmp_path / "project", spark, own_broker, "t")
    error = red(lambda: f.run(reached=once("begun", own_broker.broker.kill)))
    assert isinstance(error, TransientError) and error.code == "kafka-unreachable"
    assert isinstance(red(f.run), TransientError)
    own_broker.broker.start()
    f.run()
    assert f.offsets() == [(0, offset) for offset in range(50)]


@pytest.mark.long
def test_a_broker_that_stands_still_makes_a_batch_late_and_nothing_else(
    own_broker: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    own_broker.create("t")
    own_broker.send("t", [record(n) for n in range(50)])
    f = KafkaFlow(tmp_path / "project", spark, own_broker, "t", kafka={"request_timeout": 20})

    def freeze() -> None:
        own_broker.broker.freeze()
        own_broker.later(3.0, own_broker.broker.thaw)

    f.run(reached=once("begun", freeze))
    assert f.offsets() == [(0, offset) for offset in range(50)]


@pytest.mark.long
def test_a_reset_reads_what_the_topic_still_holds_from_where_the_flow_began(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n, key=f"k{n}".encode()) for n in range(10)])
    f = flow(kafka={"starting_offsets": "latest", "keep_raw": False}, **KEYED)
    f.run()
    cluster.send(topic, [record(n, key=f"k{n}".encode()) for n in range(10, 20)])
    f.run()
    cluster.trim(topic, 0, 12)
    request = f.request()
    planned = reset.plan(request)
    assert planned.missing == (f"{topic}/0:10-20",)
    assert (
        red(lambda: reset.begin(request, planned, by="t", accept_missing=False)).code
        == "reset-input-gone"
    )
    reset.begin(request, planned, by="t", accept_missing=True)
    f.run()
    assert sorted(row["n"] for row in f.rows("n")) == list(range(10, 20))
    assert [(row["generation"], row["records"], row["duplicate"]) for row in f.ledger()][-1] == (
        2,
        8,
        8,
    )
    cluster.send(topic, [record(20, key=b"k20")])
    f.run()
    assert sorted(row["n"] for row in f.rows("n")) == list(range(10, 21))


@pytest.mark.long
def test_a_rebuild_fills_a_fresh_table_and_goes_on_from_there(
    cluster: Cluster, topic: str, flow: Flow
) -> None:
    f = drained(cluster, topic, flow)
    assert f.spark is not None
    rebuild(f.request(), f.spark, progress=lambda _: None)
    cluster.send(topic, [record(n) for n in range(10, 15)])
    f.run()
    assert f.offsets() == [(0, offset) for offset in range(15)]
    assert {row["generation"] for row in f.ledger()} == {1, 2}


@pytest.mark.long
def test_drained_records_are_replayed_by_time(cluster: Cluster, topic: str, flow: Flow) -> None:
    cluster.create(topic)
    cluster.send(topic, [record(n, key=f"k{n}".encode()) for n in range(10)])
    f = flow(**KEYED)
    f.run()
    assert f.spark is not None
    asked = Again(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2100, 1, 1, tzinfo=UTC))
    run_drain(f.request(replay=asked), f.spark, progress=lambda _: None)
    assert [(row["kind"], row["records"], row["duplicate"]) for row in f.ledger()] == [
        ("drain", 10, 0),
        ("replay", 10, 10),
    ]
    unit = next(one for one in intake.slices(f.layout, 1)).units[0]
    some = Again(units=(f"{unit.name}:{unit.until - 1}-{unit.until}",))
    run_drain(f.request(replay=some), f.spark, progress=lambda _: None)
    last, number = f.ledger()[-1], unit.until - unit.start
    assert (last["kind"], last["records"], last["duplicate"]) == ("replay", number, number)
