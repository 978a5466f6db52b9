"""The lease: the right to drain a flow, held by one driver at a time.

Local form, for a lake on this machine's disks: two kernel locks, which the kernel releases when
their process ends, and a card for people:

    driver.lock   held by the Python driver
    jvm.lock      held by its JVM, which can outlive Python and still commit
    owner.json    who, where, since when; it does not tell whether the lease is held

Shared form, for a lake that several hosts mount, where locks of another host can't be relied on:
epochs (`shared.py`) decide, and the same locks, with names that contain this host's boot id,
exclude drivers on the same host. A holder whose predecessor did not release the lease fences the
predecessor's writes first (`Fence`).
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from draindown.base.errors import DraindownError, TransientError, said
from draindown.base.progress import StepHook, ignore_step
from draindown.config.lease import LeaseSpec
from draindown.lake import directories
from draindown.lake.home import FlowHome
from draindown.lease import holder
from draindown.lease.holder import Card, epochs_of, left_open, local_card, open_epoch
from draindown.lease.locks import LOCKS, LOOKERS, POLL, JvmLock, is_free, lock_name, lock_state
from draindown.lease.shared import CLOCK, Clock, Epochs, Heart

_LOCAL = "a driver that holds it in the local form is at work"
_OVERTAKEN = ("ConcurrentTransaction", "CONCURRENT_TRANSACTION")


class Fence(Protocol):
    """Commits with the transaction ids of all writers of the flow, so that an earlier driver's
    commit in flight fails.

    It calls `check` before each table, and returns the paths of tables that it could not fence.
    """

    def __call__(self, layout: FlowHome, epoch: int, *, check: Callable[[], None]) -> list[str]:
        """Fence the tables of `layout` for `epoch`."""
        ...


class Lease:
    """Context manager that holds the lease of one flow. Not reentrant.

    Entering raises TransientError `lease-held`, which names the holder, if another driver or the
    JVM of a dead one holds it. In the shared form entering takes up to a heartbeat interval if the
    holder is alive, and up to `terms.duration` if it is gone. An error in the block that follows
    from a lost lease is replaced by TransientError `lease-lost`. `fence` is called in the shared
    form if the last holder did not release the lease. `so_far` returns what a run has committed, as
    text.
    """

    def __init__(
        self,
        layout: FlowHome,
        terms: LeaseSpec,
        *,
        owner: str,
        run_id: str,
        fence: Fence,
        so_far: Callable[[FlowHome, str], str],
        clock: Clock = CLOCK,
        again: str = "",
    ) -> None:
        self._layout = layout
        self._again = again or f"draindown run {layout.pipeline}/{layout.flow}"
        self._fence, self._so_far = fence, so_far
        self._home = Path(layout.lease)
        self._epochs = epochs_of(layout, terms, clock)
        self._is_shared = self._epochs is not None
        self._card = Card(
            owner,
            run_id,
            socket.gethostname(),
            os.getpid(),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        from filelock import FileLock  # a plan imports this module, and takes no lease

        self._driver = FileLock(
            self._home / lock_name("driver", shared=self._is_shared), mode=0o600
        )
        self._locked: os.stat_result | None = None
        self._jvm: JvmLock | None = None
        self._heart: Heart | None = None

    def __enter__(self) -> Self:
        from filelock import Timeout

        self._layout.make()
        directories.make(str(self._home), private=True)
        try:
            self._driver.acquire(timeout=LOOKERS, poll_interval=POLL)
        except Timeout:
            raise self._held("another driver is at work") from None
        self._locked = lock_state(self._driver.lock_file)
        try:
            self._refuse_left_behind()
            if self._epochs:
                self._begin(self._epochs)
            else:
                # a driver in the shared form looks at this lock after its epoch began, so one of
                # the two sees the other
                if open_epoch(self._layout):
                    raise self._held("a driver that holds it in the shared form came first")
                holder.leave_card(self._layout, self._card)
        except BaseException:
            self._leave(in_order=False)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._lost() or _overtaken(error)
        try:
            if not lost and not self._is_shared:
                holder.take_card_away(self._layout)
        finally:
            # after any other error the JVM may still write: the next holder waits for it and fences
            # it
            self._leave(in_order=error is None or isinstance(error, DraindownError))
        if lost and isinstance(error, Exception) and not _is_lease_lost(error):
            raise self._lease_lost(lost) from error

    @property
    def epoch(self) -> int:
        """The epoch of the shared form; 0 in the local one."""
        return self._heart.number if self._heart else 0

    def check(self) -> None:
        """Raise TransientError `lease-lost` unless the lease is certainly held. Call it before each
        write.
        """
        lost = self._lost()
        if lost:
            raise self._lease_lost(lost)

    def guard(self, reached: StepHook = ignore_step) -> StepHook:
        """Return a progress hook that calls `reached` and then `check`.

        A lost lease thus ends a batch before its next step writes.
        """

        def told(step: str) -> None:
            reached(step)
            self.check()

        return told

    def hand_to_jvm(self, jvm: Any) -> JvmLock:
        """Take the JVM's lock in the driver's JVM (`spark._jvm`), until the lease is released or
        the JVM ends.

        Call it before the first query starts. Raises TransientError `lease-held`.
        """
        file = jvm.java.io.RandomAccessFile(
            str(self._home / lock_name("jvm", shared=self._is_shared)), "rw"
        )
        until = time.monotonic() + LOOKERS
        while (lock := file.getChannel().tryLock()) is None:
            if time.monotonic() > until:
                file.close()
                raise self._held("another JVM took it in the meantime")
            time.sleep(POLL)
        self._jvm = JvmLock(file, lock)
        return self._jvm

    def _refuse_left_behind(self) -> None:
        if not self._becomes_free("jvm", shared=self._is_shared):
            raise self._held("its driver is gone, but the JVM it started is still at work")
        if self._is_shared and not self._is_free_locally():
            raise self._held(_LOCAL)

    def _is_free_locally(self) -> bool:
        return all(self._becomes_free(kind, shared=False) for kind in LOCKS)

    def _becomes_free(self, kind: str, *, shared: bool) -> bool:
        until = time.monotonic() + LOOKERS
        while not is_free(self._home / lock_name(kind, shared=shared), LOCKS[kind]):
            if time.monotonic() > until:
                return False
            time.sleep(POLL)
        return True

    def _begin(self, epochs: Epochs) -> None:
        """Begin the next epoch, once the newest one is released or stale; fence the writes of a
        stale one.
        """
        while True:
            newest = epochs.newest()
            state = epochs.watch(newest) if newest else "released"
            if state == "alive":
                raise self._held("another driver is at work")
            # before the claim: the heartbeat's age is counted from here
            heart = Heart(epochs, max(newest or 0, self._last_written()) + 1)
            if epochs.claim(heart.number, self._card.as_dict()):
                break
            time.sleep(POLL)  # the listing may be older than the epoch that was claimed first
        self._heart = heart
        heart.start()
        # a driver that took the local form meanwhile may not have seen this epoch
        if not self._is_free_locally():
            heart.stop(released=state == "released")
            raise self._held(_LOCAL)
        epochs.prune(heart.number)
        if state == "stale":
            left_out = self._fence(self._layout, heart.number, check=self.check)
            self.check()
            holder.remember_unfenced(self._layout, heart.number, left_out)

    def _last_written(self) -> int:
        """Return the epoch by which documents were written, for when the epochs were removed, or
        are those of an older copy: a lower one could write none.
        """
        return max(self._layout.generation.last_epoch, self._layout.rebuild.last_epoch)

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
            now = lock_state(self._driver.lock_file)
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
            next=[self._again, f"draindown doctor {self._layout.pipeline}"],
            in_order=True,
        )

    def _held(self, why: str) -> TransientError:
        card = left_open(self._layout) or local_card(self._layout)
        where = f"{self._layout.pipeline}/{self._layout.flow}"
        look = (
            f"draindown report {where} --run {shlex.quote(card.run_id)}"
            if card
            else f"draindown doctor {where}"
        )
        return TransientError(
            "lease-held",
            tried=f"take the lease of flow {self._layout.flow} of pipeline {self._layout.pipeline}",
            found=f"{why}: {card}; {self._so_far(self._layout, card.run_id)}"
            if card
            else f"{why}: it left no card",
            next=f"{look}   # the lease is free as soon as that process ends",
        )


def _overtaken(error: BaseException | None) -> str | None:
    """Return why the lease is lost if the error is Delta's for a concurrent transaction of the same
    writer, else None.

    The table's log then knows of a new holder before the lease does.
    """
    if isinstance(error, Exception) and any(
        mark in f"{type(error).__name__} {said(error)}" for mark in _OVERTAKEN
    ):
        return "another driver wrote to the table in this flow's name first"
    return None


def _is_lease_lost(error: BaseException) -> bool:
    return isinstance(error, DraindownError) and error.code == "lease-lost"
