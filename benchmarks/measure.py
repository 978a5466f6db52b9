"""What a command costs: wall time, CPU time of all it started, and the memory of its largest process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_LINGER = 30.0  # seconds an orphan may take to end


@dataclass(frozen=True)
class Cost:
    """What one process and all it started cost."""

    wall_s: float
    cpu_s: float
    rss_mb: int
    """Peak of its largest process."""
    exit_code: int


def apart(work: Callable[..., Result], *args: object, **more: object) -> Result:
    """Do it in a process of its own: what this one once held would count as memory of every contender it forks."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(work, *args, **more).result()


def measured(command: list[str], env: Mapping[str, str], home: Path) -> Cost:
    """Run a command to its end, orphans included; what it prints goes to `out.txt` and `err.txt` in `home`."""
    with (home / "out.txt").open("wb") as out, (home / "err.txt").open("wb") as err:
        started = time.monotonic()
        main = subprocess.Popen(command, env=env, cwd=home, stdout=out, stderr=err)
        _, status, spent = os.wait4(main.pid, 0)
        wall = time.monotonic() - started
    main.returncode = os.waitstatus_to_exitcode(status)
    cpu, rss = spent.ru_utime + spent.ru_stime, spent.ru_maxrss
    until = time.monotonic() + _LINGER
    while time.monotonic() < until:
        try:
            pid, _, spent = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            cpu, rss = cpu + spent.ru_utime + spent.ru_stime, max(rss, spent.ru_maxrss)
        else:
            time.sleep(0.05)
    return Cost(round(wall, 2), round(cpu, 2), rss // 1024, main.returncode)


def adopt_orphans() -> None:
    """Make orphaned grandchildren ours: a JVM whose parent left without waiting must not be missing from the bill."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
