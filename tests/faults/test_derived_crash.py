"""kill -9 in every gap of a derive batch, upstream histories at random: the next run is right
(F37).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults import derived
from tests.faults.derived import DERIVED, ENDS, FLOWS, FOLDED, GAPS, PAIRS, History
from tests.faults.trial import Trial, conclude

_SEEDS = 20
_ABOVE = {"daily": ["hourly"], "paired": ["hourly"], "named": ["carriers"]}
"""The derived flows whose tables a flow reads."""
_TOGETHER = 4


def _gaps(seed: int, number: int) -> tuple[str, ...]:
    """Two gaps before the commit and one after, so that each flow meets each gap among any four
    seeds in turn.
    """
    first, second = sorted(((seed + number) % 4, (seed + number + 1 + seed // 4 % 3) % 4))
    return GAPS[first], GAPS[second], ENDS[(seed + number) % 4]


def _play(
    where: Path,
    seeds: range,
    flows: tuple[str, ...],
    spark: SparkSession,
    every: Mapping[str, Any] = FLOWS,
) -> None:
    """Per seed and flow: change the source, kill the flow's driver in gap after gap, run it, and
    hold its table.

    `every`: the derived flows that there are.
    """
    histories = {seed: History(where / str(seed), spark, seed, every) for seed in seeds}
    trials = []
    for number, flow in enumerate(flows):
        round_ = {seed: _trial(seed, number, flow) for seed in seeds}
        for history in histories.values():
            history.change()
            history.it.run("flights", *_ABOVE.get(flow, ()))
        with ThreadPoolExecutor(2) as pool:
            kills = [(round_[seed], histories[seed], _gaps(seed, number), flow) for seed in seeds]
            list(pool.map(_kill, *zip(*kills, strict=True)))
        for seed, trial in round_.items():
            history = histories[seed]
            derived.drained(trial, history.it, flow, spark)
            derived.hold(trial, history, *_ABOVE.get(flow, ()), flow)
        trials += round_.values()
    for seed, history in histories.items():
        last = trials[-len(histories) + list(seeds).index(seed)]
        history.change()
        history.it.run()
        derived.hold(last, history, *every)
        last.promise("nothing is left to do", not any(history.it.waits(flow) for flow in every))
    conclude(*trials)


def _trial(seed: int, number: int, flow: str) -> Trial:
    gaps = ", ".join(_gaps(seed, number))
    return Trial(
        "F37", f"seed {seed}, {flow}: {gaps}", f"SIGKILL at {gaps} of one batch, by a driver each"
    )


def _kill(trial: Trial, history: History, gaps: tuple[str, ...], flow: str) -> None:
    for gap in gaps:
        derived.killed(trial, history.it, flow, gap)


def test_each_flow_meets_each_gap() -> None:
    met = {
        (flow, gap)
        for seed in range(_SEEDS)
        for at, flow in enumerate(DERIVED)
        for gap in _gaps(seed, at)
    }
    assert met == {(flow, gap) for flow in DERIVED for gap in (*GAPS, *ENDS)}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_derived_flow_that_was_killed_is_right_after_its_next_run(
    tmp_path: Path, spark: SparkSession
) -> None:
    _play(tmp_path, range(2), ("hourly",), spark)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_a_join_and_a_lookup_that_were_killed_are_right(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    _play(tmp_path, range(seed, seed + 1), ("paired", "named"), spark, PAIRS)


_OF_ONE_BATCH = (
    ("intake", "begun", "read"),
    ("remembered", "data"),
    ("remembered", "commit"),
    *zip(ENDS[1:], strict=True),
)


def test_a_processor_meets_every_gap() -> None:
    assert {gap for gaps in _OF_ONE_BATCH for gap in gaps} == {*GAPS, "remembered", *ENDS}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gaps", _OF_ONE_BATCH, ids="-".join)
def test_a_processor_that_was_killed_is_right(
    tmp_path: Path, spark: SparkSession, gaps: tuple[str, ...]
) -> None:
    history = History(tmp_path / "0", spark, 5, FOLDED)
    trial = Trial(
        "F37", f"seed 5, baskets: {', '.join(gaps)}", f"SIGKILL at {', '.join(gaps)} of one batch"
    )
    history.change()
    history.it.run("flights")
    _kill(trial, history, gaps, "baskets")
    derived.drained(trial, history.it, "baskets", spark)
    derived.hold(trial, history, "baskets")
    history.change()
    history.it.run()
    derived.hold(trial, history, "baskets")
    trial.promise("nothing is left to do", not history.it.waits("baskets"))
    conclude(trial)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, _SEEDS, _TOGETHER))
def test_a_chain_that_was_killed_in_gap_after_gap_is_right(
    tmp_path: Path, spark: SparkSession, first: int
) -> None:
    _play(tmp_path, range(first, first + _TOGETHER), DERIVED, spark)
