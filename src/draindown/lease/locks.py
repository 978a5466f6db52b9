"""Kernel locks of a lease: one of the driver process, one of the JVM that it started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# someone who only looks holds a lock for microseconds
LOOKERS = 0.5
POLL = 0.02
LOCKS = {"driver": fcntl.flock, "jvm": fcntl.lockf}  # the kinds that Python and a JVM take
FORMS = (False, True)


@dataclass
class JvmLock:
    """The JVM's half of a lease; the JVM keeps it until `release` or its end. Keep a reference to it."""

    _file: Any
    _lock: Any

    def release(self) -> None:
        """Let go. Nothing happens if the JVM is gone."""
        # py4j raises errors of its own when the JVM is gone, and core doesn't know py4j
        with contextlib.suppress(Exception):
            self._lock.release()
            self._file.close()


def lock_name(kind: str, *, shared: bool) -> str:
    """The name of a lock file. Locks of the shared form are seen by one kernel, whatever others make of them."""
    return f"{kind}.{_kernel()}.lock" if shared else f"{kind}.lock"


def _kernel() -> str:
    """What names the kernel whose locks this process sees; until it starts again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def lock_state(path: str) -> os.stat_result | None:
    """Return the file status of a lock file, or None where it was removed."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def is_free(path: Path, lock: Callable[[int, int], None]) -> bool:
    """Whether no other process holds the kind of lock that `lock` takes: `flock` is Python's, `lockf` a JVM's."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        # shared: two that look don't see each other
        lock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
