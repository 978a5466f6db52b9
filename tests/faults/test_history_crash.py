"""kill -9 in every gap of a batch of a history, or of rows that ask it, events at random: the next
run is right.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults import derived
from tests.faults.derived import ENDS, GAPS
from tests.faults.trial import Trial, conclude
from tests.folding import Row, fold
from tests.spark.test_derived_flow import Chain
from tests.spark.test_history_flow import EVENTS, HISTORY

_SEEDS = 20
_TOGETHER = 4
ASKED = {
    "source": {"table": "flights"},
    "lookup": {
        "table": "statuses",
        "on": ["id"],
        "columns": {"carrier": "was", "noise": "noted"},
        "as_of": "seq",
    },
}
"""Each event with what all events say of its own sequence."""
_NAMES = ("seq", "op", "carrier", "at", "delay", "noise")


class Changes:
    """A chain whose append table gets random events of few keys: early, late, equal in sequence,
    delivered twice.
    """

    def __init__(self, home: Path, spark: SparkSession, seed: int) -> None:
        flows = {"flights": EVENTS, "statuses": HISTORY, "asked": ASKED}
        self.it, self.draw = Chain(home, spark, **flows), Random(seed)
        self.events, self.landed = list[Row](), list[Row]()
        self.change()
        for _ in range(2):  # the feed of the history is on from the end of its first drain
            self.it.run()

    def change(self) -> None:
        rows = []
        for _ in range(self.draw.randint(6, 12)):
            row = self.it.row(
                self.draw.randrange(6), self.draw.choice((None, 1, 2)), self.draw.choice("AB")
            )
            row |= {
                "seq": self.draw.randint(1, 12),
                "op": self.draw.choice((None, None, None, "d")),
                "noise": None,
            }
            rows.append(row | {"noise": self.draw.choice((None, "x"))})
        self.it.deliver(*rows, *rows[:2])
        self.events += rows
        self.landed += [*rows, *rows[:2]]

    def hold(self, trial: Trial) -> None:
        """Compare the table with a plain loop over all events, and the ledger with its accounts."""
        events = [
            row | {"at": row["at"] and datetime.fromisoformat(row["at"])} for row in self.events
        ]
        rows = fold(
            events, ["id"], ["seq"], ["carrier", "at", "delay"], lambda event: event["op"] == "d"
        )
        expected = [
            (row["id"], *row["start"], (row["end"] or [None])[0], *(row[n] for n in _NAMES))
            for row in rows
        ]
        found = [tuple(map(_plain, row)) for row in derived.found(self.it, "statuses")]
        expected = [tuple(map(_plain, row)) for row in expected]
        trial.promise(
            "the history is the fold of all events",
            sorted(found, key=str) == sorted(expected, key=str),
        )
        derived.hold_accounts(trial, self.it, "statuses")

    def hold_asked(self, trial: Trial) -> None:
        """Compare what each event was told with the runs of the same loop, and the ledger with its
        accounts.
        """
        runs = fold(
            self.events,
            ["id"],
            ["seq"],
            ["carrier", "at", "delay"],
            lambda event: event["op"] == "d",
        )
        expected = Counter[tuple[Any, ...]]()
        for one in self.landed:
            own = [row for row in runs if row["id"] == one["id"] and row["start"] <= (one["seq"],)]
            own = [row for row in own if row["end"] is None or (one["seq"],) < row["end"]]
            told = (own[0]["carrier"], own[0]["noise"]) if own else (None, None)
            expected[one["id"], one["seq"], *told, bool(own)] += 1
        trial.promise(
            "each row has the run of its time", Counter(derived.found(self.it, "asked")) == expected
        )
        derived.hold_accounts(trial, self.it, "asked")


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


def _gaps(seed: int) -> tuple[str, ...]:
    """Two gaps before the commit and one after."""
    first, second = sorted((seed % 4, (seed + 1 + seed // 4 % 3) % 4))
    return GAPS[first], GAPS[second], ENDS[seed % 4]


def _play(where: Path, seeds: range, spark: SparkSession, flow: str) -> None:
    """Per seed: more events, the flow's driver killed in gap after gap, the next run, and once more
    without a fault.
    """
    stories = {seed: Changes(where / str(seed), spark, seed) for seed in seeds}
    trials = {}
    for seed, story in stories.items():
        gaps = ", ".join(_gaps(seed))
        trials[seed] = Trial(
            "F37",
            f"seed {seed}, {_TOLD[flow]}: {gaps}",
            f"SIGKILL at {gaps} of one batch, by a driver each",
        )
        story.change()
        story.it.run("flights", *(["statuses"] if flow == "asked" else []))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda seed: _kill(trials[seed], stories[seed], seed, flow), seeds))
    for seed, story in stories.items():
        derived.drained(trials[seed], story.it, flow, spark)
        story.hold(trials[seed])
        story.change()
        story.it.run()
        story.hold(trials[seed])
        story.hold_asked(trials[seed])
        trials[seed].promise(
            "nothing is left to do", not story.it.waits("statuses") and not story.it.waits("asked")
        )
    conclude(*trials.values())


_TOLD = {"statuses": "history", "asked": "rows that ask it"}


def _kill(trial: Trial, story: Changes, seed: int, flow: str) -> None:
    for gap in _gaps(seed):
        derived.killed(trial, story.it, flow, gap)


def test_seeds_meet_each_gap() -> None:
    assert {gap for seed in range(_SEEDS) for gap in _gaps(seed)} == {*GAPS, *ENDS}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flow", _TOLD)
def test_a_history_whose_driver_was_killed_is_right_after_its_next_run(
    tmp_path: Path, spark: SparkSession, flow: str
) -> None:
    _play(tmp_path, range(2), spark, flow)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("flow", _TOLD)
@pytest.mark.parametrize("first", range(0, _SEEDS, _TOGETHER))
def test_histories_that_were_killed_in_gap_after_gap_are_right(
    tmp_path: Path, spark: SparkSession, first: int, flow: str
) -> None:
    _play(tmp_path, range(first, first + _TOGETHER), spark, flow)
