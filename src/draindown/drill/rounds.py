"""The rounds of a shuffled copy: its landing flows drain some of their slices, the derived flows
follow, and again.

The control fills its derived flows once. Those of a copy go on from what earlier rounds left, first
in a process that ran them before, at last in a fresh one. So a table shows what was kept elsewhere
than in it, or what was not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from draindown.base.exits import Exit
from draindown.drill import baseline, process
from draindown.drill.sandbox import Project
from draindown.flow.checkpoint import Checkpoint
from draindown.flow.generations import generation
from draindown.lake.home import FlowHome
from draindown.runs.request import Request
from draindown.sources.slices import FIRST

PATIENCE = 3600
"""Seconds after which a driver of a copy hangs."""
_ROUNDS = (3, 4)
# A state after each time: what comes later goes on from one, unless it is before all that its key
# has. The keys of a partition from the greatest to the least: the one that was folded last in the
# control begins with a class that saw no other key.
_TUNING = {"kept_every": 1, "keys_descending": True}

Rounds = Mapping[str, Sequence[int]]
"""By landing flow, the number of slices that each round drains."""


def divided(slices: Mapping[str, int], draw: Random) -> Rounds:
    """Divide the slices of landing flows into three or four rounds, or as many as the flow with
    most slices has.

    A flow with fewer slices than rounds has some in the first round and in the last ones. `slices`:
    how many, by flow.
    """
    number = min(draw.choice(_ROUNDS), max(1, *slices.values()))
    return {name: _parts(of, number, draw) for name, of in slices.items()}


def _parts(of: int, rounds: int, draw: Random) -> list[int]:
    cuts = sorted(draw.sample(range(1, of), max(min(rounds, of) - 1, 0)))
    first, *rest = (end - begin for begin, end in pairwise([0, *cuts, of]))
    return [first, *[0] * (rounds - 1 - len(rest)), *rest]


def run(copy: Project, flows: Sequence[str], rounds: Rounds) -> str:
    """Run the rounds of a copy, all but the last in one process. Return why a step failed, or
    nothing.

    `flows`: landing and derived ones, each after those that it reads. Slices of the first round
    that a driver drained before count.
    """
    number = max(map(len, rounds.values()))
    for some in (range(number - 1), range(number - 1, number)):
        plan = [entry for at in some for entry in _round(copy, flows, rounds, at)]
        if plan and (failed := _driven(copy, plan)):
            return failed
    return ""


def _round(
    copy: Project, flows: Sequence[str], rounds: Rounds, at: int
) -> Iterator[tuple[Request, Mapping[str, Any]]]:
    """Yield a drain and a check of each flow. A drain of a derived flow has no bound."""
    for name in flows:
        one, run_id = replace(copy, flow=name), f"round-{at + 1}"
        most = rounds[name][at] - (0 if at else _done(one.layout)) if name in rounds else None
        if most is None or most > 0:
            yield one.request(run_id, most=most), {"tuning": _TUNING}
        yield one.request(run_id, "check"), {}


def _done(layout: FlowHome) -> int:
    """Return the number of slices that no driver reads again. A batch without the checkpoint's
    commit runs again.
    """
    return Checkpoint(layout.checkpoint(generation(layout))).first_unread - FIRST


def _driven(copy: Project, plan: Sequence[tuple[Request, Mapping[str, Any]]]) -> str:
    with baseline.driving(copy, plan) as driver:
        code = process.code_of(driver, PATIENCE)
    if code == Exit.DONE:
        return ""
    ended = f"no end after {PATIENCE} s" if code is None else f"exit {code}"
    return f"{baseline.outcome(copy).get('error') or ended}: see {copy.root / 'driver.log'}"
