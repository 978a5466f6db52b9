"""A driver that never outlives its task: it dies with its parent, and is stopped politely, then for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
POLITE_SECONDS = 3.0
"""Airflow kills a task five seconds after it asked it to stop: waiting must end well before."""


# resolved before any fork: between fork and exec only a plain C call is safe
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Run between fork and exec: the kernel sends SIGTERM when the task's process dies. Only on Linux."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def stop(process: subprocess.Popen[str], polite_seconds: float = POLITE_SECONDS) -> None:
    """End `process` and everything in its session: SIGTERM, a wait, SIGKILL. Harmless when it is gone already."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(polite_seconds)
    _signal(process.pid, signal.SIGKILL)


def _signal(leader: int, number: signal.Signals) -> None:
    # the driver was started as leader of its own session: its group holds the JVM and the Python it started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
