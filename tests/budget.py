"""CPU seconds of a tier, checked at the end of `pytest -p tests.budget --budget NAME`; the names
are in budget.toml.

Counted are the processes of the tests, their workers, and whatever these start: JVMs, brokers,
Airflow. CPU seconds are not wall time, so a busy machine costs nothing; a slow one is allowed as
much more as a fixed computation takes longer. A tier without tests of the kind that was asked for
passes.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

BUDGETS = Path(__file__).with_name("budget.toml")
REFERENCE = 0.021
"""CPU seconds of `computation` on an idle core of the machine whose seconds the budgets are.

On a busy one it takes up to 1.8 times as long, and so do tests: two threads of one core share its
caches. So it is measured while the tests run.
"""
EVERY = 10.0
"""Seconds between two measurements."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The name of the budget, and where budgets are."""
    parser.addoption("--budget", help="check CPU seconds against this entry, as form.tier")
    parser.addoption("--budgets", default=str(BUDGETS), help="the file of budgets")


def pytest_configure(config: pytest.Config) -> None:
    """Count where a budget is named: here, and in each worker."""
    name = config.getoption("budget")
    if hasattr(config, "workeroutput"):
        config.pluginmanager.register(_Worker())
    elif name:
        form, tier = name.split(".")
        budget = tomllib.loads(Path(config.getoption("budgets")).read_text())[form][tier]
        config.pluginmanager.register(_Tier(name, budget))


class _Worker:
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.workeroutput["cpu"] = used()  # type: ignore[attr-defined]


class _Tier:
    def __init__(self, name: str, budget: float) -> None:
        self.name, self.budget, self.workers, self.verdict = name, budget, 0.0, ""
        self.seconds: list[float] = []
        self.measured_at = -EVERY

    def pytest_runtest_logfinish(self) -> None:
        if time.monotonic() - self.measured_at >= EVERY:
            self.seconds.append(computation())
            self.measured_at = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.workers += getattr(node, "workeroutput", {}).get("cpu", 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if exitstatus != pytest.ExitCode.OK:
            return
        # workers that ended are children by now: what they used is in `workers`
        own = sum(os.times()[:2]) if self.workers else used()
        self.verdict, passed = verdict(
            self.name, own + self.workers, self.budget, slowness(self.seconds)
        )
        if not passed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.verdict:
            terminalreporter.write_line(self.verdict)


def verdict(name: str, seconds: float, budget: float, slower: float) -> tuple[str, bool]:
    """Return one line about a tier, and whether it keeps its budget. `slower`: how much slower this
    machine is.
    """
    allowed = budget * slower
    line = f"{name}: {seconds:.0f} CPU seconds of {allowed:.0f}"
    if seconds <= allowed:
        return line, True
    more = (
        "mark tests as long, or shorten them (the slowest are listed), or raise tests/budget.toml"
    )
    return f"{line}, which is too much: {more}", False


def used() -> float:
    """Return the CPU seconds of this process, of its children that ended, and of all its
    descendants that live.
    """
    return sum(os.times()[:4]) + _living(os.getpid())


def slowness(seconds: Sequence[float]) -> float:
    """Return how many times longer than on the reference machine a computation took, at least 1: by
    the median.
    """
    return max(1.0, median(seconds) / REFERENCE)


def computation() -> float:
    """Return the CPU seconds of a fixed computation."""
    started = time.process_time()
    sum(number * number % 7 for number in range(400_000))
    return time.process_time() - started


def _living(process: int) -> float:
    """Return the CPU seconds of the descendants of a process, their ended children included. 0
    without /proc.
    """
    stats = dict(filter(None, map(_stat, Path("/proc").glob("[0-9]*"))))
    children: dict[int, list[int]] = {}
    for child, (parent, _) in stats.items():
        children.setdefault(parent, []).append(child)
    return _sum(process, children, stats)


def _sum(
    process: int, children: Mapping[int, list[int]], stats: Mapping[int, tuple[int, float]]
) -> float:
    return sum(
        stats[child][1] + _sum(child, children, stats) for child in children.get(process, ())
    )


def _stat(process: Path) -> tuple[int, tuple[int, float]] | None:
    """Return a process with its parent and CPU seconds; None if it ended meanwhile."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(process.name), (
        int(fields[1]),
        sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
    )
