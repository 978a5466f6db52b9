"""Drivers that never outlive their task: both die with their parent, and are stopped by SIGTERM,
then SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
POLITE_SECONDS = 3.0
"""Seconds between SIGTERM and SIGKILL. Airflow kills a task five seconds after its own SIGTERM."""
# resolved before any fork: between fork and exec only a plain C call is safe, no import
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Make the kernel send a signal when the parent dies; 0: none. Callable between fork and exec.
    Only on Linux.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


@contextlib.contextmanager
def ended_with_supervisor() -> Iterator[None]:
    """Send this process SIGTERM, which Airflow handles by `on_kill`, if its supervisor dies during
    the block.

    Otherwise it would go on beside its next try, which Airflow starts for want of heartbeats
    (apache/airflow#72128).
    """
    die_with_parent()
    try:
        yield
    finally:
        die_with_parent(0)


def stop(process: subprocess.Popen[str], polite_seconds: float = POLITE_SECONDS) -> None:
    """End `process` and its whole session: SIGTERM, a wait, SIGKILL. No-op if it has ended
    already.
    """
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(polite_seconds)
    _signal(process.pid, signal.SIGKILL)


def _signal(leader: int, number: signal.Signals) -> None:
    # the driver leads its own session: its process group holds the JVM and the Python processes it
    # started
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
