"""Faults around Kafka: what brokers lose, repeat, or are away for (F22 to F25, F34 to F36); drivers
that die (F33).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from tests.faults.trial import Trial, conclude
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow, once
from tests.kafka.histories import dealt, hold, play

SEEDS = 20
pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that is up, and what tests say to it."""
    started = Cluster.start(tmp_path_factory.mktemp("broker"))
    yield started
    started.broker.stop()


def record(n: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "value": json.dumps({"n": n}).encode(),
        "key": b"k%d" % n,
        "partition": partition,
        **more,
    }


def begun(
    home: Path, spark: SparkSession, cluster: Cluster, topic: str, **content: Any
) -> KafkaFlow:
    """A flow that has read ten records of each of two partitions."""
    cluster.create(topic, 2)
    cluster.send(topic, [record(n, n % 2) for n in range(20)])
    flow = KafkaFlow(home, spark, cluster, topic, **content)
    flow.run()
    return flow


def holds(trial: Trial, flow: KafkaFlow, numbers: list[int]) -> None:
    """Promise that the table has these numbers, each once, and that the ledger and the audit agree
    with it.
    """
    trial.promise(
        "each record that was left is there once",
        sorted(row["n"] for row in flow.rows("n")) == numbers,
    )
    trial.promise("the ledger counts them", flow.totals()["inserted"] == len(numbers))
    trial.promise("audit clean", audit(flow.spec, "f", root=flow.home).residues == [])
    trial.promise("the next run is idle", flow.run().outcome == "idle")


def trimmed(cluster: Cluster, topic: str, before: int) -> Callable[[], None]:
    return lambda: cluster.trim(topic, 0, before)


@pytest.mark.timeout(900)
def test_unread_offsets_that_retention_deletes_are_red_by_name(
    tmp_path: Path, spark: SparkSession, cluster: Cluster
) -> None:
    trials = []
    for place in ("between runs", "pinned"):
        topic = f"f22-{place.replace(' ', '-')}"
        flow = begun(tmp_path / place, spark, cluster, topic)
        cluster.send(topic, [record(n) for n in range(20, 30)])
        trial = Trial("F22", place, "DeleteRecords of offsets that no batch has read")
        if place == "pinned":
            trial.run(flow, spark, reached=once("begun", trimmed(cluster, topic, 15)))
        else:
            cluster.trim(topic, 0, 15)
            trial.run(flow, spark)
        trial.fired = f"{topic}/0 begins at 15, read up to 10; {trial.runs[0].error}"
        trial.promise(
            "red, by name", (trial.runs[0].code, trial.runs[0].error) == (78, "offsets-lost")
        )
        trial.promise("nothing more is in the table", len(flow.rows("1")) == 20)
        trial.follow(flow, "input discard")
        trial.run(flow, spark)
        holds(trial, flow, [*range(20), *range(25, 30)])
        trials.append(trial)
    conclude(*trials)


@pytest.mark.timeout(900)
def test_a_topic_that_is_created_again_is_red_and_never_taken_for_the_old_one(
    tmp_path: Path, spark: SparkSession, cluster: Cluster
) -> None:
    trials = []
    for place, records in (("smaller", 4), ("larger", 60)):
        topic = f"f23-{place}"
        flow = begun(tmp_path / place, spark, cluster, topic)
        cluster.delete(topic)
        cluster.create(topic, 2)
        cluster.send(topic, [record(n, n % 2) for n in range(100, 100 + records)])
        trial = Trial("F23", place, "the topic deleted and created again")
        trial.run(flow, spark)
        trial.fired = f"{topic} has another id and {records} records; {trial.runs[0].error}"
        trial.promise(
            "red, by name", (trial.runs[0].code, trial.runs[0].error) == (78, "topic-recreated")
        )
        trial.promise("nothing more is in the table", len(flow.rows("1")) == 20)
        trial.follow(flow, "input discard")
        trial.run(flow, spark)
        holds(trial, flow, [*range(20), *range(100, 100 + records)])
        trials.append(trial)
    conclude(*trials)


@pytest.mark.timeout(900)
def test_added_partitions_and_brokers_that_die_or_stand_still_lose_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    own = Cluster.start(tmp_path / "broker")
    flow = begun(tmp_path / "project", spark, own, "f24")
    try:
        added = Trial("F24", "partitions added", "two partitions more")
        own.add_partitions("f24", 4)
        own.send("f24", [record(n, n % 4) for n in range(20, 40)])
        added.fired = "the topic has four partitions"
        added.run(flow, spark)
        holds(added, flow, list(range(40)))

        killed = Trial(
            "F34",
            "broker killed in a batch",
            "SIGKILL of the broker as a batch begins; later a start",
        )
        own.send("f24", [record(n, n % 4) for n in range(40, 60)])
        killed.run(flow, spark, reached=once("begun", own.broker.kill))
        killed.fired = f"the broker was gone: {killed.runs[0].error}"
        killed.promise(
            "try again", (killed.runs[0].code, killed.runs[0].error) == (75, "kafka-unreachable")
        )
        own.broker.start()
        killed.run(flow, spark)
        holds(killed, flow, list(range(60)))

        frozen = Trial("F35", "broker frozen in a batch", "SIGSTOP of the broker for three seconds")
        own.send("f24", [record(n, n % 4) for n in range(60, 80)])

        def freeze() -> None:
            own.broker.freeze()
            frozen.fired = "the broker stood still"
            own.later(2.0, own.broker.thaw)

        frozen.run(flow, spark, reached=once("begun", freeze))
        if frozen.runs[-1].code:  # the requests of a flow that waits three seconds may end before
            frozen.run(flow, spark)
        holds(frozen, flow, list(range(80)))
    finally:
        own.broker.stop()
    conclude(added, killed, frozen)


@pytest.mark.timeout(900)
def test_what_producers_abort_repeat_delete_or_mix_up_changes_no_answer(
    tmp_path: Path, spark: SparkSession, cluster: Cluster
) -> None:
    topic, trial = (
        "f25",
        Trial("F25", "all of it", "aborted transactions, copies, NULL values, disorder"),
    )
    cluster.create(topic, 3)
    flow = KafkaFlow(
        tmp_path,
        spark,
        cluster,
        topic,
        kafka={"transactional": True},
        source={"max_offsets_per_trigger": 25},
        **KEYED,
    )
    changes = [(n % 7, at, None if n % 5 == 4 else n) for n, at in enumerate(range(1000, 1060))]
    some = [
        {
            "key": b"k%d" % key,
            "value": None if n is None else b'{"n": %d}' % n,
            "timestamp": at,
            "partition": key % 3,
        }
        for key, at, n in changes
    ]
    for number in range(4):
        aborted = [record(900 + n, n % 3, timestamp=5000) for n in range(6)]
        cluster.send_transaction(topic, aborted, commit=False, id=topic)
        part = some[number::4]
        again = [one | {"partition": (one["partition"] + 1) % 3} for one in reversed(part)]
        cluster.send_transaction(topic, [*reversed(part), *again], commit=True, id=topic)
        if number % 2:
            trial.run(flow, spark)
    trial.fired = "24 records aborted, 60 delivered twice in other partitions, newest first"
    newest = {key: n for key, _, n in changes}
    wanted = {f"k{key}": n for key, n in newest.items() if n is not None}
    trial.promise(
        "the newest of every key", {row["user"]: row["n"] for row in flow.rows()} == wanted
    )
    trial.promise("aborted records are counted nowhere", flow.totals()["records"] == 120)
    trial.promise("audit clean", audit(flow.spec, "f", root=flow.home).residues == [])
    conclude(trial)


@pytest.mark.timeout(900)
def test_records_that_are_none_huge_or_without_a_key_are_each_in_one_place(
    tmp_path: Path, spark: SparkSession, cluster: Cluster
) -> None:
    topic, trial = "f36", Trial("F36", "among good ones", "garbage bytes, 1 MB, NULL keys")
    cluster.create(topic, 2)
    huge = [{"value": b'{"n": 1, "text": "%s"}' % (b"x" * 1024**2), "partition": 1}] * 2
    garbage = [
        {"value": value, "partition": 0} for value in (b"\xff\xfe", b"", b"\x00" * 50, b"{", None)
    ]
    keyless = [{"value": b'{"n": %d}' % n, "partition": n % 2} for n in range(2, 8)]
    every = [*garbage, *huge, *keyless, *[record(n, n % 2) for n in range(8, 20)]]
    cluster.send(topic, every, message_max_bytes=8 * 1024**2)
    flow = KafkaFlow(tmp_path, spark, cluster, topic, source={"max_record_bytes": "1mb"})
    trial.run(flow, spark)
    trial.fired = (
        "5 records that are none, 2 of more than 1 MB, 6 without a key, among 12 good ones"
    )
    reasons = sorted(row["reason"] for row in flow.quarantine())
    trial.promise(
        "each bad record is in quarantine",
        reasons == ["malformed"] * 4 + ["null_value"] + ["too_large"] * 2,
    )
    trial.promise(
        "raw records are whole", audit(flow.spec, "f", root=flow.home).seen["raw records"] == 25
    )
    holds(trial, flow, list(range(2, 20)))
    conclude(trial)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_whose_drivers_were_killed_is_the_fold_of_its_records(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, seed: int
) -> None:
    gaps = dealt(seed, SEEDS)
    trial = Trial("F33", f"seed {seed}", f"SIGKILL of Python and JVM at {' and '.join(gaps)}")
    history, flow, proofs = play(tmp_path, spark, cluster, f"f33-{seed}", seed, gaps)
    trial.fired = f"exit -9, no JVM left; struck at {', '.join(proofs)}"
    for _ in proofs:
        trial.ran(-9)
    trial.run(flow, spark)
    found = hold(history, flow)
    for words in found:
        trial.promise(words, False)
    trial.promise(
        "table, tombstones, quarantine, raw records and ledger are those of a fold", not found
    )
    trial.promise("audit clean, all of it looked at", not found)
    conclude(trial)
