"""Processes under a fault: each leads a process group, leaves marker files in a directory, and is
killed in the end.
"""

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
from draindown.lake.presence import PIN

Process = subprocess.Popen[bytes]
_POLL = 0.02
_ENDED, _STOPPED = (None, "Z", "X"), ("T", "t")  # letters of /proc/PID/stat


@dataclass(frozen=True)
class Ended:
    """A command that ended. `seconds`: wall time, process start included."""

    code: int
    seconds: float
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """The error in the command's JSON output; empty if there is none."""
        return _error_of(self.out) or _error_of(self.err)


def start(arguments: Sequence[str], *, cwd: Path, log: Path) -> Process:
    """Start this Python with `arguments` and this draindown on its path; stdout and stderr go to
    `log`.
    """
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=_environ(),
            cwd=cwd,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


@contextmanager
def running(arguments: Sequence[str], *, cwd: Path, log: Path) -> Iterator[Process]:
    """Start a process as `start` does; kill its process group on leaving the block."""
    process = start(arguments, cwd=cwd, log=log)
    try:
        yield process
    finally:
        end_group(process)


def call(arguments: Sequence[str], *, cwd: Path, patience: float) -> Ended:
    """Run this Python to its end. After `patience` seconds it is killed, and its exit code is
    -9.
    """
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


def wait_for_fault(home: Path, driver: Process, patience: float) -> int | None:
    """Wait for the fault's marker file.

    Returns the JVM's process id, or None if the driver ended, or `patience` seconds passed, before
    the fault happened.
    """
    until, marker = time.monotonic() + patience, home / "fired"
    while True:
        # polled first: it may write the marker and die between the two tests
        ended = driver.poll() is not None
        written = marker.read_text() if marker.exists() else ""
        if written:  # a file that was created and not yet written is empty
            return int(written)
        if ended or time.monotonic() > until:
            return None
        time.sleep(_POLL)


def code_of(driver: Process, patience: float) -> int | None:
    """Return the exit code (a signal as its negative number), or None if it did not end within
    `patience` seconds.
    """
    try:
        return driver.wait(patience)
    except subprocess.TimeoutExpired:
        return None


def alive(pid: int) -> bool:
    """Return whether a process, or any of its threads, still runs.

    A zombie counts as ended, because its parent may be dead. A zombie with threads left is alive:
    they hold its files and locks until they end.
    """
    return _state(pid) not in _ENDED or _threads(pid) > 1


def gone(pid: int, patience: float = 60) -> bool:
    """Wait until the process has ended with all its threads. Returns whether it did within
    `patience` seconds.
    """
    return _becomes(lambda: not alive(pid), patience)


def frozen(pid: int, patience: float = 60) -> bool:
    """Wait until the process is stopped by a signal. Returns whether it was; False if it ended."""
    return (
        _becomes(lambda: _state(pid) in (*_STOPPED, *_ENDED), patience) and _state(pid) in _STOPPED
    )


def end(pid: int) -> None:
    """Kill one process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill the process group that `process` leads, and wait for `process`."""
    signal_group(process, signal.SIGKILL)
    process.wait()


def signal_group(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Send a signal to all processes of the group that `process` leads."""
    # some systems raise PermissionError for a group of zombies
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
    """Return the state letter in /proc/PID/stat, None if there is no such process."""
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
    ours = {
        name: value for name, value in os.environ.items() if name != PIN
    }  # a copy has a lake of its own
    return ours | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _error_of(text: str) -> dict[str, Any]:
    """Return the error in a command's JSON document: its own, or that of the last report in it.

    On stderr the document may follow lines of text.
    """
    start = 0 if text.startswith("{") else text.rfind('{\n "error"')
    try:
        document = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else {}
    except ValueError:
        return {}
    steps = document.get("reports") or [{}]
    found = document.get("error") or steps[-1].get("error")
    return dict(found) if isinstance(found, dict) else {}
