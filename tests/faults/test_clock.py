"""Clocks that jump, and an hour that comes twice (F27). Python's clock: the JVM's own only dates
Delta's commits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.gate import waivers
from draindown.runs import report
from draindown.spark.checks import check as checking
from draindown.spark.runs import drain as draining
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import Landing

_AUTUMN = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)  # 01:30 in New York, and an hour later again


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[datetime]]:
    """What every clock of ours says, as long as the list holds a time."""
    told: list[datetime] = []

    def now() -> datetime:
        return told[0] if told else datetime.now(UTC)

    for module in (report, draining, checking, waivers):
        monkeypatch.setattr(module, "now", now)
    yield told


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    os.environ.pop("TZ", None)
    time.tzset()


def _judged(trial: Trial, landing: Landing, spark: SparkSession) -> None:
    """Check publishes the newest version, having seen the rows of the batches since: none is hidden
    by its stamp.
    """
    found = trial.run(landing, spark, "check").check
    expected = {row["id"] for row in landing.rows() if row["_changed_at"] is not None}
    trial.promise("all of the table is published", found and found.published_after == found.version)
    trial.promise("stamps rise", _stamps_rise(landing))
    trial.promise("rows have stamps", len(expected) == len(landing.rows()))


def _stamps_rise(landing: Landing) -> bool:
    stamps = [row["changed_at"] for row in landing.ledger()]
    return stamps == sorted(set(stamps))


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("jump", "words"), [(timedelta(days=366), "a year"), (timedelta(days=1), "a day")]
)
def test_clock_that_jumps_hides_nothing(
    tmp_path: Path,
    spark: SparkSession,
    control: Control,
    clock: list[datetime],
    jump: timedelta,
    words: str,
) -> None:
    trials = []
    for batch, place in enumerate(lakes.PLACES):
        landing = lakes.lake(tmp_path / place)
        trial = Trial(
            "F27", f"{place} batch, {words} ahead", f"clock {words} ahead for one batch, then back"
        )
        for number in range(lakes.BATCHES):
            clock[:] = [datetime.now(UTC) + jump] if number == batch else []
            trial.run(landing, spark, max_batches=1)
            found = trial.run(landing, spark, "check").check
            assert found
            # each batch changes rows or deletes some: a check that saw none missed a stamp
            changed = sum(landing.ledger()[-1][name] for name in ("inserted", "updated"))
            trial.promise("each batch is judged", found.changed_rows >= changed > 0)
        stamps = [row["changed_at"] for row in landing.ledger()]
        trial.fired = f"batch {batch} is stamped {max(stamps) - datetime.now(UTC)} ahead"
        assert max(stamps) > datetime.now(UTC) + jump / 2
        clock[:] = []
        _judged(trial, landing, spark)
        lakes.hold(trial, landing, control)
        trials.append(trial)
    conclude(*trials)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_an_hour_that_comes_twice_is_two_hours(
    tmp_path: Path, spark: SparkSession, control: Control, clock: list[datetime], new_york: None
) -> None:
    landing = lakes.lake(tmp_path / "lake")
    trial = Trial(
        "F27", "first, middle, last batch, end of summer time", "batches at 01:30 and 01:30 again"
    )
    files = sorted(landing.landing.iterdir())
    held = [path.rename(tmp_path / path.name) for path in files]
    for number, path in enumerate(held):
        clock[:] = [_AUTUMN + timedelta(hours=number)]
        path.rename(landing.landing / path.name)
        trial.run(landing, spark)
    trial.fired = f"{time.tzname}: " + ", ".join(
        (_AUTUMN + timedelta(hours=n)).astimezone().strftime("%H:%M %Z") for n in range(len(held))
    )
    seen = sorted({row["first_seen"] for row in landing.quarantine()})
    trial.promise(
        "each is the instant it was",
        seen == [_AUTUMN + timedelta(hours=n) for n in range(len(held))],
    )
    clock[:] = []
    _judged(trial, landing, spark)
    lakes.hold(trial, landing, control)
    conclude(trial)
