"""The right to drain a flow: one driver at a time. Local form, for a lake on this machine's disks.

Two kernel locks that vanish with the process that holds them, and a card that tells people who it is:

    driver.lock   held by the Python driver
    jvm.lock      held by its JVM, which can outlive Python and still commit
    owner.json    who, where, since when; says nothing about whether the lease is held
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from draindown.errors import TransientError
from draindown.layout import FlowLayout
from draindown.report import make_home, read_json, write_json

# someone who only looks holds a lock for microseconds
_LOOKERS = 0.5
_POLL = 0.02


@dataclass(frozen=True)
class Card:
    """Who holds a lease. `since` is UTC, ISO 8601."""

    owner: str
    run_id: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.owner or 'someone'} (run {self.run_id}, process {self.pid} on {self.host}, since {self.since})"


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


class Lease:
    """Context manager that holds the lease of one flow. Not reentrant.

    Entering raises TransientError `lease-held`, naming the holder, if another driver or a JVM it left behind has it.
    """

    def __init__(self, layout: FlowLayout, *, owner: str, run_id: str) -> None:
        self._layout = layout
        self._home = Path(layout.lease)
        self._card = Card(
            owner, run_id, socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        )
        self._driver = FileLock(self._home / "driver.lock", mode=0o600)
        self._jvm: JvmLock | None = None

    def __enter__(self) -> Self:
        make_home(self._layout)
        self._home.mkdir(mode=0o700, exist_ok=True)
        try:
            self._driver.acquire(timeout=_LOOKERS, poll_interval=_POLL)
        except Timeout:
            raise self._held("another driver is at work") from None
        try:
            if not _becomes_free(self._home / "jvm.lock"):
                raise self._held("its driver is gone, but the JVM it started is still at work")
            write_json(str(self._home / "owner.json"), asdict(self._card))
        except BaseException:
            self._driver.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._jvm:
            self._jvm.release()
        (self._home / "owner.json").unlink(missing_ok=True)
        self._driver.release()

    def hand_to_jvm(self, jvm: Any) -> JvmLock:
        """Have the driver's JVM (py4j's view of it, `spark._jvm`) hold the lease too, until the lease is left.

        Call it before the first query starts. Raises TransientError `lease-held`.
        """
        file = jvm.java.io.RandomAccessFile(str(self._home / "jvm.lock"), "rw")
        until = time.monotonic() + _LOOKERS
        while (lock := file.getChannel().tryLock()) is None:
            if time.monotonic() > until:
                file.close()
                raise self._held("another JVM took it in the meantime")
            time.sleep(_POLL)
        self._jvm = JvmLock(file, lock)
        return self._jvm

    def _held(self, why: str) -> TransientError:
        card = _card(self._layout)
        return TransientError(
            "lease-held",
            tried=f"take the lease of flow {self._layout.flow} of pipeline {self._layout.pipeline}",
            found=f"{why}: {card or 'it left no card'}",
            next=["wait: the lease is free as soon as that process ends", f"draindown plan {self._layout.pipeline}"],
        )


def holder(layout: FlowLayout) -> Card | None:
    """Who holds the lease, or None if it is free. Takes nothing away from anyone."""
    home = Path(layout.lease)
    if _is_free(home / "driver.lock", fcntl.flock) and _is_free(home / "jvm.lock", fcntl.lockf):
        return None
    return _card(layout) or Card("", "unknown", "unknown", 0, "unknown")


def _card(layout: FlowLayout) -> Card | None:
    try:
        content = read_json(f"{layout.lease}/owner.json")
        return Card(**content) if content else None
    except (ValueError, TypeError):
        return None


def _is_free(path: Path, lock: Callable[[int, int], None]) -> bool:
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


def _becomes_free(path: Path) -> bool:
    until = time.monotonic() + _LOOKERS
    while not _is_free(path, fcntl.lockf):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL)
    return True
