"""kill -9 anywhere: the next run is right, and nobody saw half of anything (F1 to F6, F9; one kill:
test_starts).
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import lakes
from tests.faults.lakes import Control, Driver
from tests.faults.reader import Reader
from tests.faults.trial import Trial, conclude
from tests.landing import Landing

_GAPS = {
    "begun": ("F1", "SIGKILL as Spark hands the batch over"),
    "read": ("F1", "SIGKILL when all is read and nothing written"),
    "data": ("F2", "SIGKILL when a data file of the MERGE appears"),
    "quarantined": ("F3", "SIGKILL between quarantine and tombstones"),
    "remembered": ("F3", "SIGKILL between tombstones and MERGE"),
    "merged": ("F4", "SIGKILL between MERGE and ledger"),
    "recorded": ("F5", "SIGKILL between ledger and the checkpoint's commit file"),
    "commit": ("F9", "SIGKILL at the moment the commit is in the log"),
    "committed": ("F6", "SIGKILL between two batches"),
}
_PAIRS = [
    ["begun", "read"],
    ["data", "quarantined"],
    ["remembered", "merged"],
    ["recorded", "commit"],
    ["committed"],
]
_SEEDS = 20
_KILLS = 2  # of each lake that is killed at random times: the second strikes what recovers from the first


def _watched(homes: list[Path]) -> Reader:
    landings = [
        flow for home in homes for flow in (Landing(home, **lakes.FLOW), lakes.witness(home))
    ]
    return Reader(*[landing.layout.tables.target.path for landing in landings])


def _recover(
    trials: list[Trial], home: Path, spark: SparkSession, control: Control, reader: Reader
) -> None:
    """Drain a lake that was killed and hold it, for all its trials at once."""
    landing, last = Landing(home, **lakes.FLOW), trials[-1]
    last.run(landing, spark)
    lakes.witness(home).drain(spark)
    lakes.hold(last, landing, control, beside=True)
    reader.look()
    lakes.read_whole(last, reader, landing, control, beside=True)
    for trial in trials[:-1]:
        trial.runs += last.runs[1:]
        trial.held, trial.wrong = last.held, last.wrong


def _struck_again_and_again(home: Path, step: str) -> list[Trial]:
    """One lake, killed in its first batch, in the middle one by the next driver, in the last one by
    the third.
    """
    case, words = _GAPS[step]
    trials = [Trial(case, f"{place} batch, {step}", words) for place in lakes.PLACES]
    for batch, trial in enumerate(trials):
        lakes.killed(trial, home, (step, batch), beside=True)
        if step == "data":
            # version 0 only made the table
            version = Landing(home, **lakes.FLOW).layout.tables.target.version
            assert version == batch, "the commit came before the kill"
            trial.fired += f"; the table is still at version {version}"
    return trials


def _crash_all(where: Path, steps: list[str], spark: SparkSession, control: Control) -> None:
    homes = [where / step for step in steps]
    for home in homes:
        lakes.lake(home)
    with _watched(homes) as reader:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(_struck_again_and_again, homes, steps))
        for home, trials in zip(homes, found, strict=True):
            _recover(trials, home, spark, control, reader)
    conclude(*[trial for trials in found for trial in trials])


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("steps", _PAIRS, ids="-".join)
def test_run_after_kill_in_any_gap_of_any_batch_is_right(
    tmp_path: Path, spark: SparkSession, control: Control, steps: list[str]
) -> None:
    _crash_all(tmp_path, steps, spark, control)


def _killed_at_random(home: Path, seed: int, seconds: float) -> Trial:
    trial = Trial("F6", f"random time, seed {seed}", "SIGKILL of Python and JVM at a random time")
    driver = Driver(home, {"home": str(home), "beside": True})
    driver.ready()
    time.sleep(random.Random(seed).uniform(0.02, 0.9) * seconds)
    assert not (home / "outcome.json").exists(), (
        "it ended before it could be killed: the machine's pace changed"
    )
    driver.signal(signal.SIGKILL)
    code = driver.wait(60)
    landing, beside = Landing(home, **lakes.FLOW), lakes.witness(home)
    found = [f"{len(flow.ledger())} of {lakes.BATCHES}" for flow in (landing, beside)]
    trial.fired = f"exit {code} after {found[0]} batches, the witness after {found[1]}"
    trial.ran(code)
    return trial


def _killed_twice(home: Path, seeds: tuple[int, ...], seconds: float) -> list[Trial]:
    # what is left to do after a kill takes less time
    return [
        _killed_at_random(home, seed, seconds / (number + 1)) for number, seed in enumerate(seeds)
    ]


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_run_after_kill_at_random_times_is_right(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    # a driver of its own takes longer than the session here, which is warm: so much is measured
    # once
    lakes.lake(tmp_path / "pace")
    driver = Driver(tmp_path / "pace", {"home": str(tmp_path / "pace"), "beside": True})
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    seconds = driver.outcome()["seconds"]
    homes = [lakes.lake(tmp_path / str(number)).home for number in range(_SEEDS // _KILLS)]
    seeds = [tuple(range(number * _KILLS, (number + 1) * _KILLS)) for number in range(len(homes))]
    with _watched(homes) as reader:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(_killed_twice, homes, seeds, [seconds] * len(homes)))
        for home, trials in zip(homes, found, strict=True):
            _recover(trials, home, spark, control, reader)
    conclude(*[trial for trials in found for trial in trials])


@pytest.mark.campaign
def test_run_after_kill_that_follows_the_intake_is_right(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    home = lakes.lake(tmp_path / "intake").home
    trial = Trial("F6", "after the intake", "SIGKILL when files are taken in and no batch is begun")
    with _watched([home]) as reader:
        lakes.killed(trial, home, ("intake", 0), beside=True)
        _recover([trial], home, spark, control, reader)
    conclude(trial)


@pytest.mark.campaign
def test_replay_of_a_batch_that_is_done_changes_nothing(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES, 1):
        landing, beside = lakes.lake(tmp_path / place), lakes.witness(tmp_path / place)
        trial = Trial("F5", f"{place} batch, deleted", "the checkpoint's commit file deleted")
        for flow in (landing, beside):
            flow.drain(spark, max_batches=done)
            flow.forget_last_batch()
        version = landing.layout.tables.target.version
        trial.fired = f"commits/{done - 1} is gone, the table has batch {done - 1}"
        trial.ran(0)
        trial.run(landing, spark, max_batches=1)
        trial.promise(
            "the repeated batch is a no-op", landing.layout.tables.target.version == version
        )
        trial.run(landing, spark)
        beside.drain(spark)
        lakes.hold(trial, landing, control, beside=True)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
def test_answer_that_is_lost_is_no_second_write(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES):
        landing = lakes.lake(tmp_path / place)
        trial = Trial(
            "F9",
            f"{place} batch, exception",
            "an exception right after the commit; the JVM lives on",
        )

        def lost(
            step: str, version: int = batch + 1, landing: Landing = landing, trial: Trial = trial
        ) -> None:
            if step == "merged" and landing.layout.tables.target.version == version:
                trial.fired = f"version {version} is there, its writer got an exception"
                raise ConnectionResetError("the answer is lost")

        trial.run(landing, spark, reached=lost)
        trial.promise("red", trial.runs[0].code)
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)
