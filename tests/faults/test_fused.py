"""A driver that dies, is told to end, or finds the disk full after its drain, when it checks what
it drained.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.flow import at_work
from draindown.gate.published import published
from draindown.lease import holder
from draindown.runs import step_lines, store
from draindown.spark.checks.check import check
from draindown.spark.job.main import attempt
from tests.faults import lakes
from tests.faults.test_disk import fill, small_disk
from tests.landing import Landing

__all__ = ["small_disk"]
_JOB = "from draindown.jobs import drain_main; drain_main()"
_PATIENCE = 240
Driver = subprocess.Popen[str]


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return lakes.lake(tmp_path / "lake", batches=1)


@contextmanager
def _started(landing: Landing) -> Iterator[Driver]:
    """The job of a drain that the check follows, from where its check begins."""
    asked = landing.request(then=("check",))
    root = lakes.ROOT
    with subprocess.Popen(
        [sys.executable, "-c", _JOB, "--request", asked.encode()],
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'src'}", "DRAINDOWN_MASTER": "local[2]"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as driver:
        assert driver.stdout is not None
        begun = any((step_lines.begun(line) or ("", ""))[0] == "check" for line in driver.stdout)
        assert begun, "the check never began"
        yield driver


def _judging(landing: Landing, driver: Driver) -> None:
    """Return once the check's note says that it is at work."""
    while at_work.look(landing.layout, "p", "r", "check").state != "at work":
        assert driver.poll() is None, "it ended before it was killed"


def _own(landing: Landing, spark: SparkSession) -> tuple[Exit, list[str]]:
    asked = landing.request().model_copy(update={"step": "check"})
    told, code = attempt(asked, lambda _: check(asked, spark))
    return code, [finding.kind for finding in told.findings]


def _drained(landing: Landing) -> None:
    """The drain is done whatever became of the check: reported, with its lease given back."""
    told = store.read(landing.layout, "r", "drain")
    assert (
        told is not None
        and told.outcome == "done"
        and told.drain is not None
        and len(told.drain.batches) == 1
    )
    assert holder.holder(landing.layout, patient=False) is None


@pytest.mark.long
def test_killed_within_the_check_it_is_a_dead_check_and_its_own_driver_publishes(
    landing: Landing, spark: SparkSession
) -> None:
    with _started(landing) as driver:
        _judging(landing, driver)
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait(_PATIENCE) == -signal.SIGKILL
    _drained(landing)
    assert store.read(landing.layout, "r", "check") is None and published(landing.layout) is None
    left = at_work.left(landing.layout, "p", "r", "check")
    assert (
        left is not None
        and left.state == "died"
        and at_work.left(landing.layout, "p", "r", "drain") is None
    )
    assert _own(landing, spark) == (Exit.DONE, ["died"])
    assert published(landing.layout) is not None
    assert not lakes.wrong(landing)


@pytest.mark.long
def test_told_to_end_within_the_check_it_judges_to_the_end_and_begins_nothing(
    landing: Landing, spark: SparkSession
) -> None:
    with _started(landing) as driver:
        _judging(landing, driver)
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.wait(_PATIENCE) == Exit.DONE
    _drained(landing)
    assert published(landing.layout) is not None


@pytest.mark.long
def test_a_disk_that_is_full_after_the_drain_is_the_check_s_error(
    small_disk: Path, spark: SparkSession
) -> None:
    landing = lakes.lake(small_disk / "lake", batches=1)
    with _started(landing) as driver:
        os.kill(driver.pid, signal.SIGSTOP)
        fill(small_disk)
        os.kill(driver.pid, signal.SIGCONT)
        assert driver.wait(_PATIENCE) == Exit.DONE
    _drained(landing)
    assert published(landing.layout) is None and store.read(landing.layout, "r", "check") is None
    (small_disk / "ballast").unlink()
    assert _own(landing, spark)[0] == Exit.DONE
    assert published(landing.layout) is not None
