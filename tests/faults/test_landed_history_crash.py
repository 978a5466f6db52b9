"""kill -9 in every gap of a batch of events that land in a history, at random: the next run is
right (F3, F4).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from tests.faults import lakes
from tests.faults.trial import Trial, conclude
from tests.landing import Landing
from tests.spark.test_history_target import TRACKED, accounts, delete, folded, line, runs

_SEEDS = 20
_TOGETHER = 4
_GAPS = (
    "begun",
    "read",
    "inputs",
    "quarantined",
    "remembered",
    "data",
    "merged",
    "recorded",
    "commit",
)
FLOW: dict[str, Any] = {"target": TRACKED}


def _gaps(seed: int) -> tuple[str, str]:
    """One gap before the commit and one after the events are remembered."""
    return _GAPS[seed % 5], _GAPS[5 + seed % 4]


class Events:
    """A history that gets random events of few keys, and all that came."""

    flow = FLOW

    def __init__(self, home: Path, seed: int) -> None:
        self.it, self.draw, self.came = Landing(home, **self.flow), Random(seed), list[str]()

    def change(self) -> None:
        lines = []
        for _ in range(self.draw.randint(6, 14)):
            key, seq = self.draw.choice("abc"), self.draw.randrange(9)
            event = line(key, seq, self.draw.choice((None, 1, 2)), b=self.draw.choice("xy"))
            lines.append(delete(key, seq) if self.draw.random() < 0.2 else event)
        self.it.deliver(*lines, *lines[:2])
        self.came += lines

    def hold(self, trial: Trial) -> None:
        trial.promise("the history is the fold of all events", runs(self.it) == folded(self.came))
        records = sum(row.records for row in accounts(self.it))
        trial.promise("each record is counted once", records == self._delivered())
        trial.promise("the audit is clean", audit(self.it.spec, "f", root=self.it.home).clean)

    def _delivered(self) -> int:
        return sum(len(path.read_bytes().splitlines()) for path in self.it.landing.iterdir())


def _kill(trial: Trial, story: Events, seed: int) -> None:
    for gap in _gaps(seed):
        lakes.killed(trial, story.it.home, (gap, 1), flow=story.flow)


def play(
    where: Path,
    seeds: range,
    spark: SparkSession,
    kind: type[Events] = Events,
    name: str = "history",
) -> None:
    """Per seed: a batch, more events, a driver killed in gap after gap, the next run, and one more
    batch.
    """
    stories = {seed: kind(where / str(seed), seed) for seed in seeds}
    trials = {
        seed: Trial(
            "F3",
            f"seed {seed}, {name}: {', '.join(_gaps(seed))}",
            "SIGKILL in gap after gap, by drivers",
        )
        for seed in seeds
    }
    for story in stories.values():
        story.change()
        story.it.drain(spark)
        story.change()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda seed: _kill(trials[seed], stories[seed], seed), seeds))
    for seed, story in stories.items():
        trials[seed].run(story.it, spark)
        story.hold(trials[seed])
        story.change()
        trials[seed].run(story.it, spark)
        story.hold(trials[seed])
    conclude(*trials.values())


def test_seeds_meet_each_gap() -> None:
    assert {gap for seed in range(_SEEDS) for gap in _gaps(seed)} == set(_GAPS)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, _SEEDS, _TOGETHER))
def test_histories_that_were_killed_in_gap_after_gap_are_right(
    tmp_path: Path, spark: SparkSession, first: int
) -> None:
    play(tmp_path, range(first, first + _TOGETHER), spark)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_history_whose_driver_was_killed_is_right_after_its_next_run(
    tmp_path: Path, spark: SparkSession
) -> None:
    play(tmp_path, range(4, 5), spark)
