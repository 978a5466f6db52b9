"""kill -9 in any gap of a batch that reads Kafka: table, raw, ledger and quarantine are what the records mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.cluster import Cluster
from tests.kafka.histories import GAPS, KEYED_ONLY, dealt, hold, play

SEEDS = 3  # the campaign of tests/faults plays twenty


def test_every_gap_has_its_turn() -> None:
    for seeds in (SEEDS, 20):
        keyed = {gap for seed in range(0, seeds, 2) for gap in dealt(seed, seeds)}
        appended = {gap for seed in range(1, seeds, 2) for gap in dealt(seed, seeds)}
        assert keyed | appended == set(GAPS)
        assert not appended & set(KEYED_ONLY)
    assert keyed == set(GAPS) and appended == set(GAPS) - set(KEYED_ONLY), "twenty strike both kinds of table"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_history_whose_drivers_were_killed_is_the_fold_of_its_records(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, topic: str, seed: int
) -> None:
    history, flow, proofs = play(tmp_path / "project", spark, cluster, topic, seed, dealt(seed, SEEDS))
    flow.run()
    assert hold(history, flow) == [], proofs
