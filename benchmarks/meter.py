"""Run a command to its end and print as JSON what it cost: `python benchmarks/meter.py HOME
COMMAND...`.

A process of its own for each run: what it waits for is the command and what that leaves behind,
nothing else. And it holds next to nothing, as Linux counts the memory of the one who starts a
process as that process's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_LINGER = 30.0  # seconds an orphan may take to end


def adopt_orphans() -> None:
    """Make orphaned grandchildren ours: a JVM whose parent left without waiting must not be missing
    from the bill.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def spent(home: str, command: list[str]) -> dict[str, float]:
    """Wall time of the command; CPU time of all it started, orphans included; the peak of the
    largest; exit code.
    """
    with open(f"{home}/out.txt", "wb") as out, open(f"{home}/err.txt", "wb") as err:  # noqa: PTH123  pathlib is large
        started = time.monotonic()
        main = subprocess.Popen(command, cwd=home, stdout=out, stderr=err)
        _, status, used = os.wait4(main.pid, 0)
        wall = time.monotonic() - started
    main.returncode = os.waitstatus_to_exitcode(status)
    cpu, rss = used.ru_utime + used.ru_stime, used.ru_maxrss
    until = time.monotonic() + _LINGER
    while time.monotonic() < until:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid:
            cpu, rss = cpu + used.ru_utime + used.ru_stime, max(rss, used.ru_maxrss)
        else:
            time.sleep(0.05)
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "rss_mb": rss // 1024,
        "exit_code": main.returncode,
    }


if __name__ == "__main__":
    adopt_orphans()
    print(json.dumps(spent(sys.argv[1], sys.argv[2:])))
