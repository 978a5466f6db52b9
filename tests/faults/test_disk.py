"""The disk is full, at every step that writes (F21). Needs the right to mount a tmpfs; says so
where it is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import lakes
from tests.faults.lakes import Control, Driver
from tests.faults.trial import Trial, conclude, skip
from tests.landing import Landing

_STEPS = ("read", "quarantined", "remembered", "merged", "recorded")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    home = tmp_path / "disk"
    home.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(home)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        why = f"a small file system can't be mounted: {done.stderr.strip() or done.returncode}"
        skip("F21", why)
        pytest.skip(why)
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)


def fill(disk: Path) -> str:
    """Leave no byte free."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as out, pytest.raises(OSError, match="No space left"):
        while True:
            out.write(bytes(2**16))
    return f"{shutil.disk_usage(disk).free} bytes free"


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_full_disk_is_red_and_room_is_enough(
    small_disk: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for step in ("intake", *_STEPS):
        for batch, place in enumerate(lakes.PLACES):
            if step == "intake" and batch:
                continue
            landing = lakes.lake(small_disk / f"{step}-{place}")
            trial = Trial("F21", f"{place} batch, {step}", f"no byte free from `{step}` on")

            def reached(
                now: str, landing: Landing = landing, batch: int = batch, step: str = step
            ) -> None:
                waiting = lakes.BATCHES - batch - (step == "recorded")
                if now == step and len(landing.ledger()) == lakes.BATCHES - waiting:
                    trial.fired = fill(small_disk)  # noqa: B023 (called before the next trial begins)

            if step == "intake":
                trial.fired = fill(small_disk)
            trial.run(landing, spark, reached=reached)
            trial.promise("red", trial.runs[0].code)
            trial.promise("named", trial.runs[0].error == "disk-full")
            (small_disk / "ballast").unlink()
            trial.run(landing, spark)
            lakes.hold(trial, landing, control)
            trials.append(trial)
            shutil.rmtree(landing.home)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_full_scratch_disk_is_red_and_room_is_enough(
    small_disk: Path, tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    landing = lakes.lake(tmp_path / "scratch")
    trial = Trial(
        "F21", "middle batch, spark.local.dir", "no byte free under Spark's scratch files"
    )
    entry = {"home": str(landing.home), "place": ["begun", 1], "act": "wait"}
    driver = Driver(landing.home, entry, SPARK_LOCAL_DIRS=str(small_disk))
    driver.fired()
    trial.fired = fill(small_disk)
    (landing.home / "go").touch()
    trial.ran(driver.wait(), driver.outcome()["error"])
    trial.promise("red", trial.runs[0].code)
    trial.promise("named", trial.runs[0].error == "disk-full")
    os.truncate(small_disk / "ballast", 0)
    trial.run(landing, spark)
    lakes.hold(trial, landing, control)
    conclude(trial)
