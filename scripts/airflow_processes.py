"""The processes of one local Airflow, also after the process that started them died.

Each inherits a variable and an open file. Airflow's workers write their title over their
environment, so the variable alone does not identify them. A program that a task starts closes
inherited files, so the file alone does not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

VARIABLE = "DRAINDOWN_AIRFLOW_OF"
_HELD = "held-open"


def held(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Open the file that Airflow's parts inherit, for `pass_fds`. None if the variable is not set:
    by `up` only.
    """
    home = environ.get(VARIABLE)
    return (os.open(Path(home) / _HELD, os.O_RDONLY | os.O_CREAT, 0o600),) if home else ()


def left(home: Path) -> list[psutil.Process]:
    """Return the running processes of this user that the Airflow in `home` started, by process
    id.
    """
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _belongs(process, home)
    ]


def _belongs(process: psutil.Process, home: Path) -> bool:
    # processes of other users refuse to be read, and a process may end meanwhile
    with contextlib.suppress(psutil.Error, OSError):
        if process.uids().real != os.getuid():
            return False
        if process.environ().get(VARIABLE) == str(home):
            return True
        return any(file.path == str(home / _HELD) for file in process.open_files())
    return False


def end(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Send SIGTERM, and SIGKILL to those that run after `seconds`. Return those that still run
    after `seconds` more.
    """
    running = list(processes)
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for process in running:
            with contextlib.suppress(psutil.Error):
                send(process)
        running = _running_after(running, seconds)
    return running


def _running_after(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    until = time.monotonic() + seconds
    while (
        running := [process for process in processes if _runs(process)]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    return running


def _runs(process: psutil.Process) -> bool:
    # in a container without an init, nobody collects a zombie whose parent is dead
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def described(processes: Sequence[psutil.Process]) -> str:
    """Return the processes as text, with their ids."""
    return ", ".join(map(_described, processes))


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{' '.join(process.cmdline()).strip()[:60] or process.name()} ({process.pid})"
    return str(process.pid)
