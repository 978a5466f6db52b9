"""Processes that are struck: each leads a group of its own, leaves marks in a directory, and ends with its block."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draindown

Process = subprocess.Popen[bytes]
_POLL = 0.02
_ENDED, _STOPPED = (None, "Z", "X"), ("T", "t")  # letters of /proc/PID/stat


@dataclass(frozen=True)
class Ended:
    """A command that ended. `seconds` is wall time, its start included."""

    code: int
    seconds: float
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """The error it ended with, as a command with --json says it; empty if there is none."""
        return _error_of(self.out) or _error_of(self.err)


def start(arguments: Sequence[str], *, cwd: Path, log: Path) -> Process:
    """Run this Python with `arguments`, on the same draindown as here; what it says goes to `log`."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *arguments], env=_environ(), cwd=cwd, stdout=out, stderr=out, start_new_session=True
        )


@contextmanager
def running(arguments: Sequence[str], *, cwd: Path, log: Path) -> Iterator[Process]:
    """`start`, and whatever is left of it ends with the block."""
    process = start(arguments, cwd=cwd, log=log)
    try:
        yield process
    finally:
        end_group(process)


def call(arguments: Sequence[str], *, cwd: Path, patience: float) -> Ended:
    """Run this Python to its end, at most `patience` seconds: then it is killed, which its exit code tells."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=_environ(),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        end_group(process)
        out, err = process.communicate()
    finally:
        end_group(process)
    return Ended(process.returncode, time.monotonic() - begun, out, err)


def struck(home: Path, driver: Process, patience: float) -> int | None:
    """Wait until the fault struck; the JVM's process id, or None if the driver ended or time ran out before."""
    until = time.monotonic() + patience
    while True:
        ended = driver.poll() is not None  # before the look: it may leave its mark and die between the two
        if (home / "fired").exists():
            return int((home / "fired").read_text())
        if ended or time.monotonic() > until:
            return None
        time.sleep(_POLL)


def code_of(driver: Process, patience: float) -> int | None:
    """The exit code once it ended (a signal as its negative number), or None if it did not in time."""
    try:
        return driver.wait(patience)
    except subprocess.TimeoutExpired:
        return None


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended, with all its threads.

    A zombie has ended, as whoever should collect it may be dead; but only without its other threads, which hold its
    files and locks until they have ended too.
    """
    return _state(pid) not in _ENDED or _threads(pid) > 1


def gone(pid: int, patience: float = 60) -> bool:
    """Whether the process ends in time, locks and all."""
    return _becomes(lambda: not alive(pid), patience)


def frozen(pid: int, patience: float = 60) -> bool:
    """Whether the process is stopped by a signal in time; one that ended is not."""
    return _becomes(lambda: _state(pid) in (*_STOPPED, *_ENDED), patience) and _state(pid) in _STOPPED


def end(pid: int) -> None:
    """Kill one process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill whatever is left of the group that `process` leads, and collect it."""
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to all processes of the group that `process` leads."""
    # PermissionError is what some systems say of a group of zombies
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _becomes(so: Callable[[], bool], patience: float) -> bool:
    until = time.monotonic() + patience
    while not so():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL)
    return True


def _state(pid: int) -> str | None:
    """The kernel's letter for what a process does, None where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _threads(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _environ() -> dict[str, str]:
    here = str(Path(draindown.__file__).parents[1])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _error_of(text: str) -> dict[str, Any]:
    """The error in a command's one JSON document: of its own (after its notes), or of the last step it reports."""
    start = 0 if text.startswith("{") else text.rfind('{\n "error"')
    try:
        document = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
    except ValueError:
        return {}
    steps = document.get("reports") or [{}]
    found = document.get("error") or steps[-1].get("error")
    return dict(found) if isinstance(found, dict) else {}
