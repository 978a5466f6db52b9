"""Workers and tasks that die, and too little memory (F7, F8); what a driver says of it:
tests/unit/test_runner.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.drill.process import gone
from tests.faults import lakes
from tests.faults.lakes import Control, Driver
from tests.faults.trial import Trial, conclude
from tests.landing import Landing

_TRANSFORM = """
from pathlib import Path
import os

FAULTS = Path({faults!r})


@F.udf("string")
def fragile(region):
    order = FAULTS / (region or "none")
    if order.exists():
        kind = order.read_text()
        (FAULTS / "fired").write_text(f"{{kind}} in process {{os.getpid()}}")
        if kind != "always":
            order.unlink()
        if kind == "die":
            os.kill(os.getpid(), 9)
        raise RuntimeError("a task that throws")
    return region


def tidy(df):
    return df.withColumn("part", fragile("region"))
"""
_FLOW = lakes.FLOW | {"transform": "fragile.tidy"}


def _lake(home: Path) -> Landing:
    landing = lakes.lake(home, flow=_FLOW)
    (home / "faults").mkdir()
    landing.transform("fragile", _TRANSFORM.format(faults=str(home / "faults")))
    return landing


def _hold(trial: Trial, landing: Landing, expected: dict[str, Any]) -> None:
    found = lakes.state(landing)
    for what in expected:
        trial.promise(f"{what} as in the control", found[what] == expected[what])
    trial.wrong += lakes.wrong(landing)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_task_that_dies_counts_nothing_twice(tmp_path: Path, spark: SparkSession) -> None:
    undisturbed = _lake(tmp_path / "control")
    undisturbed.drain(spark)
    expected, trials = lakes.state(undisturbed), []
    for kind, words in (
        ("die", "SIGKILL of the Python worker; the task is tried again"),
        ("throw", "a task that throws once; it is tried again"),
        ("always", "a task that throws until its job fails"),
    ):
        for batch, place in enumerate(lakes.PLACES, 1):
            landing = _lake(tmp_path / f"{kind}-{place}")
            order = landing.home / "faults" / f"r{batch}"
            order.write_text(kind)
            trial = Trial("F7", f"{place} batch, {kind}", words)
            trial.run(landing, spark)
            trial.fired = (landing.home / "faults" / "fired").read_text()
            trial.promise(
                "red if the task never succeeds", bool(trial.runs[0].code) == (kind == "always")
            )
            order.unlink(missing_ok=True)
            trial.run(landing, spark)
            _hold(trial, landing, expected)
            trials.append(trial)
    conclude(*trials)


_HUNGRY = """
def tidy(df):
    one = (F.col("region") == "r{batch}") & (F.col("a") == 5)
    greedy = F.length(F.repeat(F.lit("x"), F.when(one, 480_000_000).otherwise(1)))
    return df.withColumn("part", F.when(greedy > 0, F.lit("eaten")))
"""


def _hungry(home: Path, batch: int) -> Landing:
    landing = lakes.lake(home, flow=lakes.FLOW | {"transform": "hungry.tidy"})
    landing.transform("hungry", _HUNGRY.format(batch=batch))
    return landing


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_too_little_memory_is_red_and_more_is_right(tmp_path: Path, spark: SparkSession) -> None:
    undisturbed = _hungry(tmp_path / "control", 0)
    undisturbed.drain(spark)
    expected, trials = lakes.state(undisturbed), []
    for batch, place in enumerate(lakes.PLACES, 1):
        landing = _hungry(tmp_path / place, batch)
        entry = {"home": str(landing.home), "flow": lakes.FLOW | {"transform": "hungry.tidy"}}
        trial = Trial("F8", f"{place} batch, heap", "a value of 480 MB in a heap of 512 MB")
        driver = Driver(landing.home, entry, DRAINDOWN_DRIVER_MEMORY="512m")
        code = driver.wait()
        outcome = driver.outcome()
        trial.ran(code, outcome["error"])
        trial.fired = (
            f"OutOfMemoryError, exit {code}" if "OutOfMemoryError" in driver.log.read_text() else ""
        )
        trial.promise("red", code)
        trial.promise("batches before it are there", len(landing.ledger()) == batch - 1)
        if trial.runs[-1].error == "out-of-memory" and "DRAINDOWN_DRIVER_MEMORY" in " ".join(
            trial.runs[-1].next
        ):
            trial.commands.append("export DRAINDOWN_DRIVER_MEMORY")
        else:
            trial.surgery.append("the error does not say that memory was short")
        trial.run(landing, spark)
        _hold(trial, landing, expected)
        trials.append(trial)
    conclude(*trials)


_FATAL = """
def tidy(df):
    struck = pathlib.Path(__file__).with_name("struck")
    if not struck.exists():
        struck.touch()
        os.kill(df.sparkSession._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    return df
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_command_whose_jvm_is_killed_says_so_and_the_next_is_right(tmp_path: Path) -> None:
    landing = Landing(tmp_path, transform="fatal.tidy")
    landing.transform("fatal", "import os\nimport pathlib\nimport signal\n\n" + _FATAL)
    landing.write_pipeline()
    landing.deliver(json.dumps({"id": "a", "seq": 1}))
    command = (sys.executable, "-m", "draindown.cli", "--root", str(tmp_path), "run", "p", "--json")
    died = subprocess.run(command, capture_output=True, text=True)
    assert (tmp_path / "jobs" / "transforms" / "struck").exists()
    told = json.loads(died.stdout)
    error = told["reports"][-1]["error"]
    assert (died.returncode, told["exit"], error["code"]) == (Exit.CRASH, Exit.CRASH, "crash")
    assert error["found"].startswith(
        "the JVM was ended by SIGKILL, as the kernel does where memory is short; "
    )
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert [row["id"] for row in landing.rows()] == ["a"]


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_jvm_that_the_kernel_kills_is_red_and_the_next_run_right(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    """What a memory limit of a container does: SIGKILL for the process that grew, here at the sight
    of its size.
    """
    trials = []
    for batch, place in enumerate(lakes.PLACES):
        landing = lakes.lake(tmp_path / place)
        driver = Driver(
            landing.home, {"home": str(landing.home), "place": ["read", batch], "act": "wait"}
        )
        jvm = driver.fired()
        trial = Trial(
            "F8", f"{place} batch, killed", "SIGKILL of the JVM alone, as by a memory limit"
        )
        size = _resident(jvm)
        os.kill(jvm, signal.SIGKILL)
        trial.promise("the JVM is gone", gone(jvm))
        (landing.home / "go").touch()
        code = driver.wait()
        trial.ran(code, driver.outcome()["error"])
        trial.fired = f"JVM of {size // 1024} MB killed, its driver exits {code}"
        trial.promise("red", code)
        trial.run(landing, spark)
        lakes.hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
