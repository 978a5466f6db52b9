"""One driver at a time, ended politely, rudely, or half; stopped and woken (F10, F14, F15, F19)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.drill.process import end, gone
from draindown.lease import locks
from draindown.runs.request import Step
from draindown.runs.store import read
from draindown.spark.job.main import attempt
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from tests.faults import lakes
from tests.faults.lakes import Control, Driver
from tests.faults.trial import Trial, conclude
from tests.landing import Landing


def _end_right(
    trials: Sequence[Trial], landings: Sequence[Landing], spark: SparkSession, control: Control
) -> None:
    """One run more in each lake, and it is as if nothing had happened."""
    for trial, landing in zip(trials, landings, strict=True):
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
    conclude(*trials)


def _refused(trial: Trial, landing: Landing, step: Step = "drain") -> str:
    """What a second driver is told. It is given no Spark session: it must leave before it wants
    one.
    """
    before = _everything(landing)
    request = landing.request(run_id="second").model_copy(update={"step": step})
    none = cast(Any, None)
    report, code = attempt(
        request,
        lambda stop: drain(request, none, stop=stop) if step == "drain" else compact(request, none),
    )
    trial.ran(code, report.error, report.seconds)
    trial.promise(f"a second {step} leaves with 75", code == Exit.TRY_AGAIN == 75)
    trial.promise("it touched nothing", _everything(landing) == before)
    assert report.error and report.error["code"] == "lease-held"
    return str(report.error["found"])


def _everything(landing: Landing) -> dict[str, int]:
    """Every file of the lake but reports, with its time of change."""
    files = (
        path
        for path in Path(landing.spec.lake).rglob("*")
        if path.is_file() and "reports" not in path.parts
    )
    return {str(path): path.stat().st_mtime_ns for path in files}


def _entry(landing: Landing, step: str, batch: int, act: str) -> dict[str, Any]:
    return {"home": str(landing.home), "place": [step, batch], "act": act}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_driver_refuses_company_and_ends_politely(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landing = lakes.lake(tmp_path / "once")
    driver = Driver(tmp_path, _entry(landing, "read", 0, "wait"))
    driver.fired()
    company = Trial(
        "F14", "first batch, fast", "a second drain beside one", "the first waits in batch 0"
    )
    assert "another driver is at work" in _refused(company, landing)
    told = Trial("F10", "first batch, once", "SIGTERM inside a batch", "SIGTERM sent")
    driver.process.send_signal(signal.SIGTERM)
    (landing.home / "go").touch()
    told.ran(driver.wait(120))
    outcome = driver.outcome()
    told.promise(
        "it ends after its batch, with exit 0",
        (outcome["outcome"], outcome["code"]) == ("stopped", 0),
    )
    report = read(landing.layout, "r", "drain")
    assert (
        report and report.drain and len(report.drain.batches) == 1 and report.drain.after.units == 2
    )
    assert "SIGTERM" in report.drain.bound
    for trial in (told, company):
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
    conclude(company, told)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_company_is_refused_in_every_batch(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landings = [lakes.lake(tmp_path / place) for place in lakes.PLACES]
    driver = Driver(
        tmp_path, *[_entry(landing, "remembered", i, "wait") for i, landing in enumerate(landings)]
    )
    trials, beside = [], []
    for batch, (place, landing) in enumerate(zip(lakes.PLACES, landings, strict=True)):
        driver.fired(landing.home)
        proof = f"the first waits in batch {batch}, before its MERGE"
        trial = Trial(
            "F14",
            f"{place} batch",
            "drain, compact and reset while a drain is inside a batch",
            proof,
        )
        other = Trial(
            "F11", f"{place} batch, compact", "compact while a drain is inside a batch", proof
        )
        _refused(trial, landing)
        _refused(other, landing, "compact")
        landing.write_pipeline()
        code = main(["--root", str(landing.home), "reset", "p", "--yes"])
        trial.promise("reset leaves with 75", code == Exit.TRY_AGAIN)
        (landing.home / "go").touch()
        trials, beside = [*trials, trial], [*beside, other]
    assert driver.wait() == 0
    for landing, *pair in zip(landings, trials, beside, strict=True):
        for trial in pair:
            trial.run(landing, spark)
            lakes.hold(trial, landing, control)
    conclude(*trials, *beside)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_run_after_drivers_that_were_told_to_end_is_right(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landings = [lakes.lake(tmp_path / place) for place in lakes.PLACES]
    driver = Driver(
        tmp_path, *[_entry(landing, "read", i, "term") for i, landing in enumerate(landings)]
    )
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    trials = []
    for batch, (place, landing) in enumerate(zip(lakes.PLACES, landings, strict=True)):
        trial = Trial(
            "F10", f"{place} batch", "SIGTERM inside a batch", f"SIGTERM in batch {batch}"
        )
        trial.ran(int(driver.outcome(landing.home)["code"]))
        trial.promise("it ended after that batch", len(landing.ledger()) == batch + 1)
        trials.append(trial)
    trials.append(_told_twice(tmp_path / "twice"))
    landings.append(Landing(tmp_path / "twice", **lakes.FLOW))
    _end_right(trials, landings, spark, control)


def _told_twice(home: Path) -> Trial:
    """The second SIGTERM ends it at once, JVM included."""
    landing = lakes.lake(home)
    driver = Driver(home, _entry(landing, "remembered", 0, "wait"))
    jvm = driver.fired()
    trial = Trial("F10", "first batch, twice", "SIGTERM twice inside a batch", "SIGTERM sent twice")
    driver.process.send_signal(signal.SIGTERM)
    driver.until(lambda: "stopping after this batch" in driver.log.read_text())
    driver.process.send_signal(signal.SIGTERM)
    code = driver.wait(60)
    trial.ran(code)
    trial.promise("it ends at once", code == -signal.SIGTERM and not landing.ledger())
    trial.promise("no JVM stays", gone(jvm))
    return trial


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_driver_that_wakes_after_its_retry_commits_nothing_of_its_own(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landings = [lakes.lake(tmp_path / place) for place in lakes.PLACES]
    driver = Driver(
        tmp_path, *[_entry(landing, "remembered", i, "wait") for i, landing in enumerate(landings)]
    )
    trials = []
    for batch, (place, landing) in enumerate(zip(lakes.PLACES, landings, strict=True)):
        driver.fired(landing.home)
        trial = Trial(
            "F15", f"{place} batch, stopped", "SIGSTOP before the MERGE, a retry, SIGCONT"
        )
        driver.signal(signal.SIGSTOP)
        _refused(trial, landing)
        trial.fired = f"stopped in batch {batch}; the retry left with {trial.runs[-1].code}"
        (landing.home / "go").touch()
        driver.signal(signal.SIGCONT)
        trials.append(trial)
    assert driver.wait() == 0, driver.log.read_text()[-4000:]
    _end_right(trials, landings, spark, control)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_jvm_that_outlives_its_python_commits_nothing(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """It still holds the lease, whatever it is doing; woken, it finds itself alone and ends."""
    landing = lakes.lake(tmp_path / "half")
    driver = Driver(landing.home, _entry(landing, "remembered", 1, "wait"))
    jvm = driver.fired()
    trial = Trial(
        "F15", "middle batch, half", "SIGSTOP of the JVM, SIGKILL of its Python, a retry, SIGCONT"
    )
    os.kill(jvm, signal.SIGSTOP)
    try:
        driver.process.kill()
        trial.ran(driver.wait(30))
        assert "the JVM it started is still at work" in _refused(trial, landing)
        trial.fired = "Python is gone, its JVM stopped; the retry left with 75"
        version = landing.layout.tables.target.version
        os.kill(jvm, signal.SIGCONT)
        trial.promise("the JVM ends by itself", gone(jvm))
        trial.promise("it committed nothing", landing.layout.tables.target.version == version)
    finally:
        end(jvm)
    trial.run(landing, spark)
    lakes.hold(trial, landing, control)
    conclude(trial)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_driver_that_lost_its_lease_can_not_commit(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """Someone removed the lock files, as nobody may: another driver gets in, and the first one's
    MERGE is fenced.
    """
    landings = [lakes.lake(tmp_path / place) for place in lakes.PLACES]
    driver = Driver(
        tmp_path, *[_entry(landing, "remembered", i, "wait") for i, landing in enumerate(landings)]
    )
    trials = []
    for batch, (place, landing) in enumerate(zip(lakes.PLACES, landings, strict=True)):
        driver.fired(landing.home)
        trial = Trial(
            "F15",
            f"{place} batch, no lease",
            "lock files removed while a driver waits before its MERGE",
        )
        shutil.rmtree(landing.layout.lease)
        trial.run(landing, spark)
        trial.promise("the other driver drained all", len(landing.ledger()) == lakes.BATCHES)
        (landing.home / "go").touch()
        driver.until(lambda landing=landing: (landing.home / "outcome.json").exists())  # type: ignore[misc]
        outcome = driver.outcome(landing.home)
        trial.ran(outcome["code"], outcome["error"])
        trial.fired = (
            f"it woke in batch {batch} with the table ahead, and ended with {outcome['code']}"
        )
        trial.promise("the one that woke is red", outcome["code"])
        trials.append(trial)
    driver.wait()
    _end_right(trials, landings, spark, control)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_driver_on_another_host_that_was_followed_commits_nothing(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """A shared lease: its host freezes, the next driver follows it and drains everything, then it
    wakes.
    """
    flow = lakes.FLOW | {"lease": {"mode": "shared", "duration": 5}}
    landings = [lakes.lake(tmp_path / place, flow=flow) for place in lakes.PLACES]
    places = enumerate(landings)
    driver = Driver(
        tmp_path,
        *[_entry(landing, "remembered", i, "wait") | {"flow": flow} for i, landing in places],
    )
    trials = []
    for batch, (place, landing) in enumerate(zip(lakes.PLACES, landings, strict=True)):
        driver.fired(landing.home)
        trial = Trial(
            "F15",
            f"{place} batch, shared",
            "SIGSTOP before the MERGE, a driver on another host, SIGCONT",
        )
        driver.signal(signal.SIGSTOP)
        with mock.patch.object(locks, "_kernel", lambda: "another host"):
            trial.run(landing, spark)
        trial.promise(
            "the other driver followed and drained all", len(landing.ledger()) == lakes.BATCHES
        )
        version = landing.layout.tables.target.version
        (landing.home / "go").touch()
        driver.signal(signal.SIGCONT)
        driver.until(lambda landing=landing: (landing.home / "outcome.json").exists())  # type: ignore[misc]
        outcome = driver.outcome(landing.home)
        trial.ran(outcome["code"], outcome["error"])
        trial.fired = (
            f"it woke in batch {batch} with epoch 2 begun, and ended with {outcome['code']}"
        )
        lost = outcome["code"] == Exit.TRY_AGAIN and outcome["error"]["code"] == "lease-lost"
        trial.promise("the one that woke says that it lost its lease", lost)
        trial.promise("it committed nothing", landing.layout.tables.target.version == version)
        trials.append(trial)
    driver.wait()
    _end_right(trials, landings, spark, control)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_two_drivers_make_and_alter_one_table(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    fresh, altered = lakes.lake(tmp_path / "fresh"), lakes.lake(tmp_path / "altered")
    altered.drain(spark, max_batches=1)
    wider = lakes.FLOW | {"columns": altered.document["flows"]["f"]["columns"] | {"extra": "int"}}
    drivers = [
        Driver(tmp_path / side, *_two(tmp_path / side, fresh, altered, wider))
        for side in ("left", "right")
    ]
    trials = []
    for number, landing in enumerate((fresh, Landing(altered.home, **wider))):
        trial = Trial(
            "F19",
            "fresh table" if number == 0 else "one column more",
            "two processes from one barrier",
        )
        homes = [driver.homes[number] for driver in drivers]
        for driver, home in zip(drivers, homes, strict=True):
            driver.fired(home)
        for home in homes:
            (home / "go").touch()
        for driver, home in zip(drivers, homes, strict=True):
            driver.until(lambda home=home: (home / "outcome.json").exists())  # type: ignore[misc]
        outcomes = [driver.outcome(home) for driver, home in zip(drivers, homes, strict=True)]
        codes = sorted(outcome["code"] for outcome in outcomes)
        trial.fired = f"both stood at the barrier, and ended with {codes}"
        trial.promise(
            "one drains, the other leaves with 75 or finds nothing", codes in ([0, 0], [0, 75])
        )
        for outcome in outcomes:
            trial.ran(outcome["code"], outcome["error"])
        trial.run(landing, spark)
        trials.append(trial)
    for driver in drivers:
        driver.wait()
    lakes.hold(trials[0], fresh, control)
    for words in lakes.against_oracle(altered):
        trials[1].promise(words, False)
    trials[1].promise(
        "the table has the column", "extra" in Landing(altered.home, **wider).rows()[0]
    )
    conclude(*trials)


def _two(
    notes: Path, fresh: Landing, altered: Landing, wider: dict[str, Any]
) -> list[dict[str, Any]]:
    for name in ("fresh", "altered"):
        (notes / name).mkdir(parents=True)
    at = {"place": ["start", 0], "act": "wait"}
    return [
        at | {"home": str(fresh.home), "notes": str(notes / "fresh")},
        at | {"home": str(altered.home), "notes": str(notes / "altered"), "flow": wider},
    ]
