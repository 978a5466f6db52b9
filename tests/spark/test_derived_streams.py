"""Random histories through real streams in one JVM: in whatever order flows run, their tables equal
their queries.

A history delivers rows that come late, twice, change and go. Flows run at random between
deliveries, their fills and changes divided into few rows a batch or not at all. DuckDB computes the
queries from a model of the source in Python.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from draindown.ledger import table as ledger_table
from draindown.sources.tables import source as tables
from tests.faults.derived import DERIVED, History, hold
from tests.faults.trial import Trial

_HISTORIES, _TOGETHER = 50, 5
_SIZES = (3, 8, tables.ROWS)


def _again(history: History, draw: Random) -> None:
    """Deliver a file a second time, under another name."""
    known = sorted((history.it.home / "landing").iterdir())
    copied = draw.choice(known)
    history.it.files += 1
    shutil.copy(copied, copied.with_name(f"{history.it.files:03}.json"))


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, _HISTORIES, _TOGETHER))
def test_derived_tables_equal_their_queries_after_any_history(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    batches: Counter[str] = Counter()
    for seed in range(first, first + _TOGETHER):
        draw = Random(1000 + seed)
        monkeypatch.setattr(tables, "ROWS", _SIZES[seed % len(_SIZES)])
        history = History(tmp_path / str(seed), spark, seed)
        it, trial = history.it, Trial("F37", f"seed {seed}", "no fault")
        for _ in range(3):
            history.change()
            if draw.random() < 0.4:
                _again(history, draw)
            for flow in draw.sample(list(it.spec.flows), draw.randint(1, len(it.spec.flows))):
                it.run(flow)
        for _ in range(len(it.spec.flows)):
            it.run()
        hold(trial, history, *DERIVED)
        assert not trial.wrong and len(trial.held) > 3 * len(DERIVED), (seed, trial.wrong)
        assert not any(it.waits(flow) for flow in it.spec.flows), seed
        batches += Counter(
            {flow: len(ledger_table.recent(it.layout(flow), 10_000)) for flow in DERIVED}
        )
    assert min(batches[flow] for flow in DERIVED) > 2 * _TOGETHER, "a fill, and changes after it"
