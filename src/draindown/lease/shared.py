"""Epochs: who held a shared lease, one after the other, in a store that several hosts see.

    0000000007.json   epoch 7: the card of its holder, made once and never changed. The number is a fencing token
    0000000007.beat   its heartbeat: a counter that its holder replaces, `released` once it left in order

An epoch is taken by creating its file in the store: of all who try, one succeeds. Whether the holder of the newest is
alive is never asked of a clock that two hosts would have to agree on: who waits watches the heartbeat, and counts by
its own clock how long it stands still.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draindown.lake import documents
from draindown.lake.store import Store, store_of
from draindown.spec.models import LONGEST

State = Literal["released", "alive", "stale"]
RELEASED = b"released"
KEPT = 5
"""Epochs that stay for people to look at, with the newest."""
BEATS = 4
"""Heartbeats within the time after which a lease without any is stale."""
SAFE = 2 / 3
"""Part of that time for which the last heartbeat lets its holder write: it stops before anybody may follow it."""
_UNSEEN = 2  # times as long is a heartbeat awaited that was never seen: a host may keep "no such file" in mind
_NAME = re.compile(r"(\d{10})\.json")
_ANY = re.compile(r"(\d{10})\.(json|beat)")
_LOOKS = 50  # at a heartbeat, within that time


@dataclass(frozen=True)
class Epochs:
    """The epochs under `home`. `expires`: seconds after which a heartbeat that stands still is no longer waited for."""

    home: str
    expires: float

    def newest(self) -> int:
        """The newest epoch, 0 before the first."""
        names = (entry.key.rpartition("/")[2] for entry in self._store.list(f"{self.home}/"))
        return max((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), default=0)

    def card(self, number: int) -> Mapping[str, Any]:
        """What an epoch says of its holder; nothing where that can't be read. Raises TerminalError `format-unknown`."""
        try:
            return documents.read_json(self._path(number)) or {}
        except (OSError, ValueError):
            return {}

    def patience(self, number: int) -> float:
        """Seconds that the holder of an epoch asked others to wait for its heartbeat; `expires` where it can't say."""
        expires = self.card(number).get("expires")
        if isinstance(expires, int | float) and 0 < expires <= LONGEST:
            return float(expires)
        return self.expires

    def pulse(self, number: int) -> bytes | None:
        """The heartbeat as it is now, whatever it says: only that it changes, or says RELEASED, means anything."""
        found = self._store.read(self._beat(number))
        return None if found is None else found[0]

    def age(self, number: int) -> float | None:
        """Seconds since the last heartbeat by the store's clock, for people: nothing is decided by it."""
        with contextlib.suppress(OSError):
            for entry in self._store.list(f"{self.home}/{number:010}."):  # the heartbeat comes before the card
                return time.time() - entry.modified.timestamp()
        return None

    def is_open(self, number: int) -> bool:
        """Whether the epoch was begun and not left in order."""
        return number > 0 and self.pulse(number) != RELEASED

    def watch(self, number: int) -> State:
        """Watch an epoch until it is known what became of it, for as long as its holder or this one asks at most.

        A reader that is stopped meanwhile and wakes is not fooled: time counts between two looks that saw the same.
        A heartbeat that was never seen is awaited twice as long.
        """
        patience = max(self.expires, self.patience(number))
        try:
            first, since = self.pulse(number), time.monotonic()
            while first != RELEASED:
                looked, found = time.monotonic(), self.pulse(number)
                if found != first or self.newest() != number:
                    return "released" if found == RELEASED else "alive"
                if looked - since >= patience * (_UNSEEN if first is None else 1):
                    return "stale"
                time.sleep(patience / _LOOKS)
        except OSError:  # what can't be read proves nothing
            return "alive"
        return "released"

    def claim(self, number: int, card: Mapping[str, Any]) -> bool:
        """Begin an epoch; false where another holder was quicker."""
        claimed = documents.create_json(self._path(number), {**card, "expires": self.expires})
        # who was stopped before this may find a number free that was pruned since: there is a newer one then
        return claimed and self.newest() <= number

    def is_there(self, number: int) -> bool:
        """Whether the file of an epoch can be found, also where a listing is older than it."""
        return self._store.read(self._path(number)) is not None

    def tell(self, number: int, content: bytes) -> None:
        """Replace the heartbeat of an epoch."""
        self._store.put(self._beat(number), content)

    def prune(self, newest: int) -> None:
        """Remove what older epochs left but of the last few."""
        for entry in self._store.list(f"{self.home}/"):
            found = _ANY.fullmatch(entry.key.rpartition("/")[2])
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
    """Proves that the holder of one epoch lives, in a thread, until it is stopped. Once lost it never beats again."""

    def __init__(self, epochs: Epochs, number: int) -> None:
        self._epochs, self.number = epochs, number
        self._count, self._last = 0, _clock()
        self._lost: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beats, name=f"lease epoch {number}", daemon=True)

    def start(self) -> None:
        """Beat once, then go on in a thread."""
        self._beat()
        self._thread.start()

    def lost(self) -> str | None:
        """Why the epoch is no longer this holder's, in words; None while it is."""
        self._lost = self._lost or self._followed() or self._late(_clock())
        return self._lost

    def _followed(self) -> str | None:
        try:
            newest = self._epochs.newest()
            if newest > self.number:
                return f"epoch {newest} began after its epoch {self.number}"
            # a listing may be older than the epoch
            there = newest == self.number or self._epochs.is_there(self.number)
        except OSError:  # a store that can't be looked at; if it goes on, the heartbeat is late
            return None
        return None if there else f"its epoch {self.number} is gone"

    def _late(self, now: float) -> str | None:
        age, expires = now - self._last, self._epochs.expires
        if age <= expires * SAFE:
            return None
        return f"its heartbeat in epoch {self.number} is {age:.0f} s old; after {expires:g} s another driver may follow"

    def stop(self, *, released: bool) -> None:
        """Stop beating, and say that the epoch was left in order if it was; one that is lost says nothing more."""
        self._over.set()
        if self._thread.ident is not None:  # the first beat may have failed
            self._thread.join(self._epochs.expires)
        if released and not self._thread.is_alive() and self.lost() is None:
            with contextlib.suppress(OSError):  # then it goes stale
                self._epochs.tell(self.number, RELEASED)

    def _beats(self) -> None:
        while not self._over.wait(self._epochs.expires / BEATS) and self.lost() is None:
            with contextlib.suppress(OSError):  # a store that hiccups; if it goes on, the epoch is lost
                self._beat()

    def _beat(self) -> None:
        began = _clock()
        self._lost = self._lost or self._late(began)
        if self._lost is None:
            self._epochs.tell(self.number, str(self._count + 1).encode())
            # when it began counts, not when it ended: whoever waits may have seen it at once
            self._count, self._last = self._count + 1, began


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_clock: Callable[[], float] = _boottime if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
"""The holder's clock goes on while its machine sleeps, where there is such a one: others don't sleep with it."""
