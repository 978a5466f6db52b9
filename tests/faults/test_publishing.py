"""The gate fails, dies, or judges while the next run writes (F32): nothing is published that was
not judged.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.drill.process import gone
from draindown.gate import published
from draindown.lake.lost_files import lost_files
from draindown.lake.table import Table
from draindown.runs.report import Expectation
from draindown.spark.checks import judge
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import Landing

_SUITE = {
    "name": "f",
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "a", "max_value": 1000},
            "meta": {},
        }
    ],
}


def _pointer(landing: Landing) -> int | None:
    found = published.published(landing.layout)
    return found.version if found else None


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_gate_that_fails_publishes_nothing_until_rows_are_right(
    tmp_path: Path, spark: SparkSession
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        trial = Trial(
            "F32", f"{place} batch, fails", "a row that breaks an expectation; then its correction"
        )
        with (landing.landing / f"{batch}.json").open("a") as out:
            out.write(json.dumps({"id": "odd", "seq": 50, "a": 5000}) + "\n")
        os.utime(out.name, (batch, batch))
        for _ in range(batch - 1):
            trial.run(landing, spark, max_batches=1)
            trial.run(landing, spark, "check", suite=_SUITE)
        before = _pointer(landing)
        trial.run(landing, spark, max_batches=1)
        trial.run(landing, spark, "check", suite=_SUITE)
        trial.fired = f"the gate ended with {trial.runs[-1].code} {trial.runs[-1].error}"
        trial.promise(
            "red, by name", (trial.runs[-1].code, trial.runs[-1].error) == (65, "gate-failed")
        )
        trial.promise("nothing was published", _pointer(landing) == before)
        trial.run(landing, spark)
        trial.run(landing, spark, "check", suite=_SUITE)
        trial.promise("it stays red", trial.runs[-1].code == 65 and _pointer(landing) == before)
        trial.run(landing, spark, "compact", force=True)
        missing = lost_files(Table(landing.layout.tables.target.path, before)) if before else []
        trial.promise("the published version can be read", not missing)
        landing.deliver(json.dumps({"id": "odd", "seq": 51, "a": 5}), name="correction.json")
        trial.run(landing, spark)
        trial.run(landing, spark, "check", suite=_SUITE)
        trial.promise("all is published", _pointer(landing) == landing.layout.tables.target.version)
        trial.wrong += lakes.wrong(landing) + lakes.against_oracle(landing)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_gate_that_dies_publishes_nothing(
    tmp_path: Path, spark: SparkSession, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=done)
        trial = Trial(
            "F32", f"after the {place} batch, crashes", "an exception inside Great Expectations"
        )

        def dies(*_: Any, trial: Trial = trial) -> list[Expectation]:
            trial.fired = "raised inside the gate"
            raise MemoryError("the gate died")

        with monkeypatch.context() as patch:
            patch.setattr(judge, "judge", dies)
            trial.run(landing, spark, "check", suite=_SUITE)
        trial.promise("red, nothing published", trial.runs[-1].code and _pointer(landing) is None)
        _publish_and_hold(trial, landing, spark, control)
        trials.append(trial)
    landing = lakes.lake(tmp_path / "killed")
    landing.drain(spark, max_batches=1)
    trial = Trial("F32", "after the first batch, killed", "SIGKILL inside the gate")
    entry = {"home": str(landing.home), "step": "check", "suite": _SUITE, "place": ["judging", 0]}
    driver = lakes.Driver(landing.home, entry)
    jvm = driver.fired()
    code = driver.wait(60)
    trial.ran(code)
    trial.fired = f"exit {code} inside the gate"
    trial.promise("no JVM stays, nothing published", gone(jvm) and _pointer(landing) is None)
    _publish_and_hold(trial, landing, spark, control)
    conclude(*trials, trial)


def _publish_and_hold(
    trial: Trial, landing: Landing, spark: SparkSession, control: Control
) -> None:
    trial.run(landing, spark, "check", suite=_SUITE)
    trial.run(landing, spark)
    trial.run(landing, spark, "check", suite=_SUITE)
    trial.promise(
        "then all is published", _pointer(landing) == landing.layout.tables.target.version
    )
    lakes.hold(trial, landing, control)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_gate_judges_one_version_while_the_next_run_writes(
    tmp_path: Path, spark: SparkSession, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = lakes.lake(tmp_path / "lake")
    landing.drain(spark, max_batches=1)
    judged = landing.layout.tables.target.version
    trial = Trial("F32", "middle batch, beside", "the next drain writes while the gate judges")
    right = judge.judge

    def slowly(*given: Any) -> list[Expectation]:
        landing.drain(spark, max_batches=1)
        trial.fired = (
            f"version {judged} is judged, the table is at {landing.layout.tables.target.version}"
        )
        return right(*given)

    with monkeypatch.context() as patch:
        patch.setattr(judge, "judge", slowly)
        trial.run(landing, spark, "check", suite=_SUITE)
    trial.promise("what was judged is published, not more", _pointer(landing) == judged)
    _publish_and_hold(trial, landing, spark, control)
    conclude(trial)
