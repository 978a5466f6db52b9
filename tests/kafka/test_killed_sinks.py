"""Drivers that die or stand still between the steps of batches with four sinks: table, sinks and
ledger agree.

The topic that gets batches at least once is read by the recipes of docs/kafka-sink.md, the other
one without.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from draindown.lease import locks
from scripts.postgres_server import PostgresServer
from tests.faults.lakes import Driver
from tests.kafka import sinks
from tests.kafka.cluster import Cluster
from tests.kafka.sinks import BATCHES, GAPS

SEEDS = 3


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with sinks.postgres() as found:
        yield found


def dealt(seed: int, seeds: int = SEEDS) -> list[tuple[str, int]]:
    """The gaps of a seed, in order of their batches. All seeds together have every gap."""
    mine = GAPS[seed::seeds]
    return sorted(((step, at % BATCHES) for at, step in enumerate(mine)), key=lambda one: one[1])


def test_every_gap_has_its_turn() -> None:
    assert {step for seed in range(SEEDS) for step, _ in dealt(seed)} == set(GAPS)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_table_sinks_and_ledger_agree_after_kills(
    tmp_path: Path, cluster: Cluster, topic: str, postgres: PostgresServer, seed: int
) -> None:
    chance = random.Random(seed)
    flow = sinks.flow_of(tmp_path / "project", cluster, topic, postgres)
    for number in range(BATCHES):
        sinks.deliver(flow, chance, number)
    for at, place in enumerate([*dealt(seed), None]):
        sinks.killed(flow, tmp_path / f"run{at}", place)
    assert sinks.differences(flow, cluster, topic, postgres) == []
    if "taken-events" in {step for step, _ in dealt(seed)}:
        messages = sinks.read(cluster, topic)
        assert len(messages) > len({dict(one.headers())["id"] for one in messages}), (
            "it is sent again with the same ids"
        )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "gap", ["noted-events", "portion-mirror", "portion-once", "taken-once", "sent-alerts"]
)
def test_a_driver_that_thaws_after_another_one_took_over_changes_nothing(
    tmp_path: Path,
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    postgres: PostgresServer,
    gap: str,
) -> None:
    """A shared lease: the host freezes, the lease runs out, a driver on another host drains all,
    the first thaws.
    """
    lease = {"mode": "shared", "duration": 5}
    flow = sinks.flow_of(tmp_path / "project", cluster, topic, postgres, lease=lease)
    for number in range(BATCHES):
        sinks.deliver(flow, random.Random(gap), number)
    document = flow.document["flows"]["f"] | {"lease": lease}
    entry = {"home": str(flow.home), "flow": document, "place": [gap, 1], "act": "wait"}
    with Driver(tmp_path, entry, **sinks.SECRET) as driver:
        driver.fired()
        driver.signal(signal.SIGSTOP)
        with (
            mock.patch.object(locks, "_kernel", lambda: "another host"),
            mock.patch.dict("os.environ", sinks.SECRET),
        ):
            assert flow.drain(spark).outcome == "done"
        before = sinks.differences(flow, cluster, topic, postgres)
        (flow.home / "go").touch()
        driver.signal(signal.SIGCONT)
        driver.wait(120)
    outcome = driver.outcome()
    assert (outcome["code"], outcome["error"]["code"]) in (
        (75, "lease-lost"),
        (75, "sink-fenced"),
    ), outcome
    assert before == sinks.differences(flow, cluster, topic, postgres) == []
    flow.drain(spark)
    assert sinks.differences(flow, cluster, topic, postgres) == []
