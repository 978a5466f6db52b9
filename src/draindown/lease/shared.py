"""Epochs: the holders of a shared lease, one after the other, in a store that several hosts see.

    0000000007.json   epoch 7: the card of its holder, created once and never changed. The number is a fencing token
    0000000007.beat   its heartbeat: a counter that the holder replaces, finally `released`

An epoch is claimed by creating its file in the store (put if absent), so exactly one driver gets
it. No decision compares clocks of two hosts: a driver that waits watches the heartbeat, and
measures with its own monotonic clock how long it does not change.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draindown.config.lease import LONGEST
from draindown.lake import documents
from draindown.lake.store import Store
from draindown.lake.stores import store_of

State = Literal["released", "alive", "stale"]
RELEASED = b"released"
KEPT = 5
"""Number of epochs to keep for people, the newest included."""
BEATS = 4
"""Heartbeats per `expires`, the time after which a lease without a heartbeat is stale."""
SAFE = 2 / 3
"""Fraction of `expires` for which the last heartbeat lets its holder write, so that it stops before
another follows.
"""
_UNSEEN = (
    2  # factor on the wait for a first heartbeat: a host may cache that the file does not exist
)
_NAME = re.compile(r"(\d{10})\.json")
_ANY = re.compile(r"(\d{10})\.(json|beat)")
_LOOKS = 50  # reads of a heartbeat within the wait


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Clock:
    """The clocks of one driver, in seconds: `waited` and `pause` while it waits, `held` while it
    holds a lease.
    """

    waited: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    # also counts while the machine sleeps, because other hosts don't sleep with it
    held: Callable[[], float] = _boottime if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


CLOCK = Clock()


@dataclass(frozen=True)
class Epochs:
    """The epochs under `home`. `expires`: seconds after which a heartbeat that does not change is
    stale.
    """

    home: str
    expires: float
    clock: Clock = CLOCK

    def newest(self) -> int:
        """Return the number of the newest epoch, 0 before the first."""
        names = (entry.name for entry in self._store.list(f"{self.home}/"))
        return max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0)

    def card(self, number: int) -> Mapping[str, Any]:
        """Return the card of an epoch, empty if it can't be read. Raises TerminalError
        `format-unknown`.
        """
        try:
            return documents.Document(self._path(number)).read() or {}
        except (OSError, ValueError):
            return {}

    def patience(self, number: int) -> float:
        """Return the `expires`, in seconds, in the card of an epoch; that of this object if it has
        none.
        """
        expires = self.card(number).get("expires")
        if isinstance(expires, int | float) and 0 < expires <= LONGEST:
            return float(expires)
        return self.expires

    def pulse(self, number: int) -> bytes | None:
        """Return the current heartbeat. Only a change of it, and the value RELEASED, have a
        meaning.
        """
        found = self._store.read(self._beat(number))
        return None if found is None else found[0]

    def age(self, number: int) -> float | None:
        """Return the seconds since the last heartbeat by the store's clock. For display only, not
        for decisions.
        """
        with contextlib.suppress(OSError):
            # the heartbeat comes before the card
            for entry in self._store.list(f"{self.home}/{number:010}."):
                return time.time() - entry.modified.timestamp()
        return None

    def is_open(self, number: int) -> bool:
        """Return whether the epoch was claimed and not released."""
        return number > 0 and self.pulse(number) != RELEASED

    def watch(self, number: int) -> State:
        """Watch an epoch until its state is known, at most for the greater `expires` of its holder
        and this object.

        Time counts only between reads with the same result, so a reader that was suspended does not
        take a live holder for a dead one. A first heartbeat is awaited twice as long.
        """
        patience = max(self.expires, self.patience(number))
        try:
            first, since = self.pulse(number), self.clock.waited()
            while first != RELEASED:
                looked, found = self.clock.waited(), self.pulse(number)
                if found != first or self.newest() != number:
                    return "released" if found == RELEASED else "alive"
                if looked - since >= patience * (_UNSEEN if first is None else 1):
                    return "stale"
                self.clock.pause(patience / _LOOKS)
        except OSError:  # an unreadable heartbeat does not prove that the holder is gone
            return "alive"
        return "released"

    def claim(self, number: int, card: Mapping[str, Any]) -> bool:
        """Claim an epoch. Returns False if another driver claimed it or a later one."""
        claimed = documents.Document(self._path(number)).create({**card, "expires": self.expires})
        # a driver that was suspended before this may find a number that was pruned since; then a
        # newer epoch exists
        return claimed and self.newest() <= number

    def is_there(self, number: int) -> bool:
        """Return whether the file of an epoch exists, even if a cached listing does not have it
        yet.
        """
        return self._store.read(self._path(number)) is not None

    def tell(self, number: int, content: bytes) -> None:
        """Replace the heartbeat of an epoch."""
        self._store.put(self._beat(number), content)

    def prune(self, newest: int) -> None:
        """Remove the files of all epochs but the last KEPT."""
        for entry in self._store.list(f"{self.home}/"):
            found = _ANY.fullmatch(entry.name)
            if found and int(found[1]) <= newest - KEPT:
                self._store.delete(entry.key)

    @property
    def _store(self) -> Store:
        return store_of(self.home)

    def _path(self, number: int) -> str:
        return f"{self.home}/{number:010}.json"

    def _beat(self, number: int) -> str:
        return f"{self.home}/{number:010}.beat"


class Heart:
    """The heartbeat of one epoch, written by a thread until it is stopped or the epoch is lost."""

    def __init__(self, epochs: Epochs, number: int) -> None:
        self._epochs, self.number = epochs, number
        self._count, self._last = 0, self._now()
        self._lost: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._beats, name=f"lease epoch {number}", daemon=True
        )

    def start(self) -> None:
        """Write the first heartbeat, then start the thread."""
        self._beat()
        self._thread.start()

    def lost(self) -> str | None:
        """Return why the epoch is lost to this holder, None while it holds it."""
        self._lost = self._lost or self._followed() or self._late(self._now())
        return self._lost

    def _followed(self) -> str | None:
        try:
            newest = self._epochs.newest()
            if newest > self.number:
                return f"epoch {newest} began after its epoch {self.number}"
            # a cached listing may be older than the epoch
            there = newest == self.number or self._epochs.is_there(self.number)
        except OSError:  # the store can't be read; if that lasts, the heartbeat becomes too old
            return None
        return None if there else f"its epoch {self.number} is gone"

    def _late(self, now: float) -> str | None:
        age, expires = now - self._last, self._epochs.expires
        if age <= expires * SAFE:
            return None
        return f"its heartbeat in epoch {self.number} is {age:.0f} s old; after {expires:g} s another driver may follow"

    def stop(self, *, released: bool) -> None:
        """Stop the thread. If `released`, and the epoch is not lost, mark it as released."""
        self._over.set()
        if self._thread.ident is not None:  # not started if the first heartbeat failed
            self._thread.join(self._epochs.expires)
        if released and not self._thread.is_alive() and self.lost() is None:
            with contextlib.suppress(OSError):  # the epoch then becomes stale
                self._epochs.tell(self.number, RELEASED)

    def _beats(self) -> None:
        while not self._over.wait(self._epochs.expires / BEATS) and self.lost() is None:
            # a transient failure; if it lasts, the epoch is lost
            with contextlib.suppress(OSError):
                self._beat()

    def _beat(self) -> None:
        began = self._now()
        self._lost = self._lost or self._late(began)
        if self._lost is None:
            self._epochs.tell(self.number, str(self._count + 1).encode())
            # its age counts from the start of the write: a waiting driver may have seen it at once
            self._count, self._last = self._count + 1, began

    def _now(self) -> float:
        return self._epochs.clock.held()
