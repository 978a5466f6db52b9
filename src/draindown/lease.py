"""The right to drain a flow: one driver at a time.

Local form, for a lake on this machine's disks. Two kernel locks that vanish with the process that holds them, and a
card that tells people who it is:

    driver.lock   held by the Python driver
    jvm.lock      held by its JVM, which can outlive Python and still commit
    owner.json    who, where, since when; says nothing about whether the lease is held

Shared form, for a lake that several hosts mount, where the locks of another host can't be trusted: the same locks under
a name of this host's own, and epochs (`epochs.py`), which decide. Whoever follows a holder that did not leave in order
fences its writes first (`fence.py`).
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

from draindown import fence
from draindown.epochs import Epochs, Heart
from draindown.errors import DraindownError, TransientError, said
from draindown.files import read_json, write_json
from draindown.layout import FlowLayout
from draindown.report import make_home
from draindown.spec import LeaseSpec
from draindown.steps import Reached, untold

# someone who only looks holds a lock for microseconds
_LOOKERS = 0.5
_POLL = 0.02
_LOCKS = {"driver": fcntl.flock, "jvm": fcntl.lockf}  # the kinds that Python and a JVM take
_FORMS = (False, True)
_LOCAL = "a driver that holds it in the local form is at work"
_UNFENCED = "unfenced.json"
_OVERTAKEN = ("ConcurrentTransaction", "CONCURRENT_TRANSACTION")


@dataclass(frozen=True)
class Card:
    """Who holds a lease. `since` is UTC, ISO 8601; `epoch` and `heartbeat`, in words, are of a shared one only."""

    owner: str
    run_id: str
    host: str
    pid: int
    since: str
    epoch: int = 0
    heartbeat: str = ""

    def as_dict(self) -> dict[str, Any]:
        """What is written down: all but what only a look can tell."""
        return {name: value for name, value in asdict(self).items() if name not in ("epoch", "heartbeat")}

    def __str__(self) -> str:
        who = f"{self.owner or 'someone'} (run {self.run_id}, process {self.pid} on {self.host}, since {self.since}"
        return f"{who}; epoch {self.epoch}, {self.heartbeat})" if self.epoch else f"{who})"


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

    Entering raises TransientError `lease-held`, naming the holder, if another driver or a JVM it left behind has it. In
    the shared form that can take as long as a heartbeat, and as long as `terms.expires` where the holder is gone. An
    error inside it that comes of a lost lease leaves as TransientError `lease-lost`.
    """

    def __init__(self, layout: FlowLayout, terms: LeaseSpec, *, owner: str, run_id: str) -> None:
        self._layout = layout
        self._home = Path(layout.lease)
        self._epochs = _epochs(layout, terms)
        self._is_shared = self._epochs is not None
        self._card = Card(
            owner, run_id, socket.gethostname(), os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        )
        self._driver = FileLock(self._home / _lock("driver", shared=self._is_shared), mode=0o600)
        self._locked: os.stat_result | None = None
        self._jvm: JvmLock | None = None
        self._heart: Heart | None = None

    def __enter__(self) -> Self:
        make_home(self._layout)
        self._home.mkdir(mode=0o700, exist_ok=True)
        try:
            self._driver.acquire(timeout=_LOOKERS, poll_interval=_POLL)
        except Timeout:
            raise self._held("another driver is at work") from None
        self._locked = _state(self._driver.lock_file)
        try:
            self._refuse_left_behind()
            if self._epochs:
                self._begin(self._epochs)
            else:
                # whoever shares it looks at this lock after its epoch began: one of both sees the other
                if _open_epoch(self._layout):
                    raise self._held("a driver that holds it in the shared form came first")
                write_json(str(self._home / "owner.json"), self._card.as_dict())
        except BaseException:
            self._leave(in_order=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = self._lost() or _overtaken(error)
        try:
            if not lost and not self._is_shared:
                (self._home / "owner.json").unlink(missing_ok=True)
        finally:
            # after any other error nobody knows whether the JVM still writes: the next holder waits, and fences it
            self._leave(in_order=error is None or isinstance(error, DraindownError))
        if lost and isinstance(error, Exception) and not _is_lease_lost(error):
            raise self._lease_lost(lost) from error

    def check(self) -> None:
        """Raise TransientError `lease-lost` unless the lease is certainly held: nothing may be written any more."""
        lost = self._lost()
        if lost:
            raise self._lease_lost(lost)

    def guard(self, reached: Reached = untold) -> Reached:
        """`reached`, followed by `check`: each step of a batch is told before the next one writes."""

        def told(step: str) -> None:
            reached(step)
            self.check()

        return told

    def hand_to_jvm(self, jvm: Any) -> JvmLock:
        """Have the driver's JVM (py4j's view of it, `spark._jvm`) hold the lease too, until the lease is left.

        Call it before the first query starts. Raises TransientError `lease-held`.
        """
        file = jvm.java.io.RandomAccessFile(str(self._home / _lock("jvm", shared=self._is_shared)), "rw")
        until = time.monotonic() + _LOOKERS
        while (lock := file.getChannel().tryLock()) is None:
            if time.monotonic() > until:
                file.close()
                raise self._held("another JVM took it in the meantime")
            time.sleep(_POLL)
        self._jvm = JvmLock(file, lock)
        return self._jvm

    def _refuse_left_behind(self) -> None:
        if not self._becomes_free("jvm", shared=self._is_shared):
            raise self._held("its driver is gone, but the JVM it started is still at work")
        if self._is_shared and not self._is_free_locally():
            raise self._held(_LOCAL)

    def _is_free_locally(self) -> bool:
        return all(self._becomes_free(kind, shared=False) for kind in _LOCKS)

    def _becomes_free(self, kind: str, *, shared: bool) -> bool:
        until = time.monotonic() + _LOOKERS
        while not _is_free(self._home / _lock(kind, shared=shared), _LOCKS[kind]):
            if time.monotonic() > until:
                return False
            time.sleep(_POLL)
        return True

    def _begin(self, epochs: Epochs) -> None:
        """Begin the next epoch as soon as the newest one is over."""
        while True:
            newest = epochs.newest()
            state = epochs.watch(newest) if newest else "released"
            if state == "alive":
                raise self._held("another driver is at work")
            heart = Heart(epochs, newest + 1)  # before the epoch is there: its heartbeat is as old as this
            if epochs.claim(heart.number, self._card.as_dict()):
                break
            time.sleep(_POLL)  # a listing may be older than the epoch that was in the way
        self._heart = heart
        heart.start()
        if not self._is_free_locally():  # who took it in the local form since may not have seen this epoch
            heart.stop(released=state == "released")
            raise self._held(_LOCAL)
        epochs.prune(heart.number)
        if state == "stale":
            left_out = fence.write(self._layout, heart.number, check=self.check)
            self.check()
            write_json(str(self._home / _UNFENCED), {"epoch": heart.number, "tables": left_out})

    def _leave(self, *, in_order: bool) -> None:
        try:
            if self._jvm:
                self._jvm.release()
            if self._heart:
                self._heart.stop(released=in_order)
        finally:
            self._driver.release()

    def _lost(self) -> str | None:
        if self._heart:
            return self._heart.lost()
        try:
            now = _state(self._driver.lock_file)
        except OSError as error:
            return f"its lock file can't be looked at: {error.strerror}"
        same = self._locked is not None and now is not None and os.path.samestat(self._locked, now)
        return None if same else "its lock file was removed or replaced"

    def _lease_lost(self, why: str) -> TransientError:
        return TransientError(
            "lease-lost",
            tried=f"go on as {self._card} in flow {self._layout.flow} of pipeline {self._layout.pipeline}",
            found=f"this driver can't rely on the lease any more: {why}",
            changed="whole batches only, each once; whoever holds the lease next goes on after them",
            next=[f"draindown run {self._layout.pipeline}", f"draindown doctor {self._layout.pipeline}"],
        )

    def _held(self, why: str) -> TransientError:
        card = left_open(self._layout) or _card(self._layout)
        return TransientError(
            "lease-held",
            tried=f"take the lease of flow {self._layout.flow} of pipeline {self._layout.pipeline}",
            found=f"{why}: {card or 'it left no card'}",
            next=["wait: the lease is free as soon as that process ends", f"draindown plan {self._layout.pipeline}"],
        )


def holder(layout: FlowLayout, *, patient: bool = True) -> Card | None:
    """Who holds the lease, or None if it is free. Takes nothing away from anyone.

    Where a shared one seems to be stale it is watched until that is sure, for as long as its holder asked at most, and
    counts as free then; who is not `patient` gets the card of its last holder, which says so.
    """
    epochs = _seen(layout)
    newest = epochs.newest()
    if not all(_is_free(Path(layout.lease, _lock(kind, shared=on)), _LOCKS[kind]) for kind in _LOCKS for on in _FORMS):
        found = _newest_card(epochs) if epochs.is_open(newest) else _card(layout)
        return found or Card("", "unknown", "unknown", 0, "unknown")
    if not epochs.is_open(newest):
        return None
    if patient and _seems_stale(epochs, newest) and epochs.watch(newest) != "alive":
        return None
    return _newest_card(epochs)


def left_open(layout: FlowLayout) -> Card | None:
    """The card of the newest epoch of a shared lease if its holder did not leave in order; it may hold it still."""
    return _newest_card(_seen(layout)) if _open_epoch(layout) else None


def unfenced(layout: FlowLayout) -> list[str]:
    """Paths of the tables that the last fence had to leave out: nothing but its ids stops what was in flight there."""
    try:
        found = read_json(f"{layout.lease}/{_UNFENCED}")
    except ValueError:
        return []
    return [str(path) for path in found.get("tables", ())] if isinstance(found, dict) else []


def _open_epoch(layout: FlowLayout) -> int:
    """The newest epoch of a shared lease where it was not left in order, else 0."""
    epochs = _seen(layout)
    newest = epochs.newest()
    return newest if epochs.is_open(newest) else 0


def _epochs(layout: FlowLayout, terms: LeaseSpec) -> Epochs | None:
    """The epochs of the shared form; also where the terms say local, and someone holds it in the shared form."""
    if terms.form == "shared":
        return Epochs(Path(layout.lease, "epochs"), terms.expires)
    return _seen(layout) if _open_epoch(layout) else None


def _seen(layout: FlowLayout) -> Epochs:
    """The epochs of a lease for who has no terms of its own, as patient as the holder of the newest asks for."""
    some = Epochs(Path(layout.lease, "epochs"), LeaseSpec().expires)
    return Epochs(some.home, some.patience(some.newest()))


def _newest_card(epochs: Epochs) -> Card | None:
    newest = epochs.newest()
    if not newest:
        return None
    unknown: dict[str, Any] = {"owner": "", "run_id": "unknown", "host": "unknown", "pid": 0, "since": "unknown"}
    known = {name: value for name, value in epochs.card(newest).items() if name in unknown}
    return Card(**(unknown | known), epoch=newest, heartbeat=_heartbeat(epochs, newest))


def _heartbeat(epochs: Epochs, number: int) -> str:
    age, pulse = epochs.age(number), epochs.pulse(number)
    told = f"heartbeat {pulse.decode(errors='replace')[:20]}" if pulse else "no heartbeat yet"
    ago = "" if age is None else f" seen {max(age, 0):.0f} s ago"
    return f"{told}{ago}{', it looks stale' if age is None or age > epochs.expires else ''}"


def _seems_stale(epochs: Epochs, number: int) -> bool:
    """By the times of files, which another host's clock may have set: a reason to watch, not more."""
    age = epochs.age(number)
    return age is None or not 0 <= age < epochs.expires / 2


def _lock(kind: str, *, shared: bool) -> str:
    """The name of a lock file. Locks of the shared form are seen by one kernel, whatever others make of them."""
    return f"{kind}.{_kernel()}.lock" if shared else f"{kind}.lock"


def _kernel() -> str:
    """What names the kernel whose locks this process sees; until it starts again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _state(path: str) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _overtaken(error: BaseException | None) -> str | None:
    """Where the table's log says what the lease does not know yet: someone else wrote in this flow's name."""
    if isinstance(error, Exception) and any(mark in f"{type(error).__name__} {said(error)}" for mark in _OVERTAKEN):
        return "another driver wrote to the table in this flow's name first"
    return None


def _is_lease_lost(error: BaseException) -> bool:
    return isinstance(error, DraindownError) and error.code == "lease-lost"


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
