"""kill -9 in any gap of a batch that reads Kafka: table, raw, ledger and quarantine are what the
records mean.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.cluster import Cluster
from tests.kafka.histories import GAPS, dealt, hold, play

SEEDS = 3  # the campaign of tests/faults plays twenty


def test_every_gap_has_its_turn() -> None:
    for seeds in (SEEDS, 20):
        assert {gap for seed in range(seeds) for gap in dealt(seed, seeds)} == set(GAPS)
    for target in (0, 1):
        assert {gap for seed in range(target, 20, 2) for gap in dealt(seed, 20)} == set(GAPS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_whose_drivers_were_killed_is_the_fold_of_its_records(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, topic: str, seed: int
) -> None:
    history, flow, proofs = play(
        tmp_path / "project", spark, cluster, topic, seed, dealt(seed, SEEDS)
    )
    flow.run()
    assert hold(history, flow) == [], proofs
