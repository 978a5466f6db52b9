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

# seconds to retry a lock: `is_free` of another process holds it for microseconds
LOOKERS = 0.5
POLL = 0.02  # seconds
LOCKS = {
    "driver": fcntl.flock,
    "jvm": fcntl.lockf,
}  # filelock takes BSD locks, a JVM's FileChannel POSIX locks
FORMS = (False, True)


@dataclass
class JvmLock:
    """The lock that the JVM holds until `release` or its end. Keep a reference: py4j frees objects
    without one.
    """

    _file: Any
    _lock: Any

    def release(self) -> None:
        """Release the lock. No-op if the JVM is gone."""
        # py4j raises its own errors if the JVM is gone, and this package does not import py4j
        with contextlib.suppress(Exception):
            self._lock.release()
            self._file.close()


def lock_name(kind: str, *, shared: bool) -> str:
    """Return the name of a lock file. In the shared form it contains the boot id, so that each
    kernel has its own.
    """
    return f"{kind}.{_kernel()}.lock" if shared else f"{kind}.lock"


def _kernel() -> str:
    """Return an id of the running kernel, which changes with each boot; the host's name where there
    is none.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def lock_state(path: str) -> os.stat_result | None:
    """Return the file status of a lock file, or None if it was removed."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def is_free(path: Path, lock: Callable[[int, int], None]) -> bool:
    """Return whether no other process holds the lock file. `lock`: `flock` for the driver's,
    `lockf` for a JVM's.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        # shared, so that two readers don't exclude each other
        lock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
