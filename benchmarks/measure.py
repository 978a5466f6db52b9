"""What a run costs: wall time, CPU time of all it started, and the memory of its largest
process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped]

from benchmarks import meter

Result = TypeVar("Result")

_LOOK = 0.5  # seconds between two looks at the memory of all processes


@dataclass(frozen=True)
class Cost:
    """What a run and all it started cost."""

    wall_s: float
    cpu_s: float
    rss_mb: int
    """Peak of its largest process."""
    exit_code: int


def apart(work: Callable[..., Result], *args: object, **more: object) -> Result:
    """Do it in a process of its own, which gives back all memory and may change its environment."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *args, **more).result()


def measured(command: list[str], env: Mapping[str, str], home: Path) -> Cost:
    """Run a command to its end, orphans included; what it prints goes to `out.txt` and `err.txt` in
    `home`.
    """
    metered = [sys.executable, "-I", meter.__file__, str(home), *command]
    done = subprocess.run(metered, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return Cost(**json.loads(done.stdout))


def watched(work: Callable[[], int]) -> Cost:
    """What the processes below this one spend while `work` goes on, which gives an exit code; this
    one's own is free.

    For work that others do who stand already. Their orphans must become ours
    (`meter.adopt_orphans`), or the CPU time of those is missing. Memory is looked at twice a
    second.
    """
    seen, ended = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(seen, ended))
    before, started = _cpu(), time.monotonic()
    watcher.start()
    try:
        code = work()
        wall = time.monotonic() - started
    finally:
        ended.set()
        watcher.join()
    return Cost(round(wall, 2), round(_cpu() - before, 2), max(seen) // 1024**2, code)


def _watch(seen: list[int], ended: threading.Event) -> None:
    while not ended.wait(_LOOK):
        for process in psutil.Process().children(recursive=True):
            try:
                seen[0] = max(seen[0], process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue


def _cpu() -> float:
    """CPU seconds of all processes below this one that live, with those of children they waited
    for, as we did.
    """
    while True:
        below = psutil.Process().children(recursive=True)
        try:
            times = [process.cpu_times() for process in below]
        except psutil.NoSuchProcess:
            continue
        own = psutil.Process().cpu_times()
        # one that ended between the two looks might count twice, or never
        if {*below} == {*psutil.Process().children(recursive=True)}:
            waited = own.children_user + own.children_system
            return float(
                waited + sum(t.user + t.system + t.children_user + t.children_system for t in times)
            )
