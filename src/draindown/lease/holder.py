"""Find out who holds a lease, and what its last holder left: its card, and the tables that its
fence left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from draindown.config.lease import LeaseSpec
from draindown.lake.home import FlowHome
from draindown.lease.locks import FORMS, LOCKS, is_free, lock_name
from draindown.lease.shared import CLOCK, Clock, Epochs

_NOT_STORED = ("epoch", "heartbeat", "is_stale")


@dataclass(frozen=True)
class Card:
    """Who holds a lease. `since`: UTC, ISO 8601. Of the shared form only: `epoch`, and `heartbeat`
    as a phrase.

    `is_stale`: whether the heartbeat is older than `expires`, by the modification time of its file.
    """

    owner: str
    run_id: str
    host: str
    pid: int
    since: str
    epoch: int = 0
    heartbeat: str = ""
    is_stale: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are stored: all but those that the reader finds out."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_STORED}

    def __str__(self) -> str:
        who = f"{self.owner or 'someone'} (run {self.run_id}, process {self.pid} on {self.host}, since {self.since}"
        return f"{who}; epoch {self.epoch}, {self.heartbeat})" if self.epoch else f"{who})"


def holder(layout: FlowHome, *, patient: bool = True) -> Card | None:
    """Return the holder of the lease, or None if it is free. Does not change the lease.

    A shared lease whose heartbeat looks stale is watched for at most as long as its holder asked
    for. If the heartbeat stands still it counts as free. If not `patient`, the card of its last
    holder is returned at once and says so.
    """
    epochs = _seen(layout)
    newest = epochs.newest()
    if is_locked(layout):
        found = _newest_card(epochs) if epochs.is_open(newest) else local_card(layout)
        return found or Card("", "unknown", "unknown", 0, "unknown")
    if not epochs.is_open(newest):
        return None
    if patient and _seems_stale(epochs, newest) and epochs.watch(newest) != "alive":
        return None
    return _newest_card(epochs)


def is_locked(layout: FlowHome) -> bool:
    """Return whether a process that this host sees, driver or JVM, keeps a lock of the lease."""
    return not all(
        is_free(Path(layout.lease, lock_name(kind, shared=on)), LOCKS[kind])
        for kind in LOCKS
        for on in FORMS
    )


def left_open(layout: FlowHome) -> Card | None:
    """Return the card of the newest epoch of a shared lease, unless it was released. The holder may
    be alive.
    """
    return _newest_card(_seen(layout)) if open_epoch(layout) else None


def unfenced(layout: FlowHome) -> list[str]:
    """Return the paths of tables that the last fence could not fence.

    In these a commit in flight of the previous holder is stopped only if it has the transaction id
    of a later commit.
    """
    try:
        found = layout.unfenced.read()
        return [] if found is None else [str(path) for path in found["tables"]]
    except (ValueError, LookupError):
        return []


def remember_unfenced(layout: FlowHome, epoch: int, tables: Sequence[str]) -> None:
    """Store the paths of tables that the fence of an epoch left out. To be called by its holder."""
    layout.unfenced.write({"epoch": epoch, "tables": list(tables)})


def open_epoch(layout: FlowHome) -> int:
    """Return the newest epoch of a shared lease if it was not released, else 0."""
    epochs = _seen(layout)
    newest = epochs.newest()
    return newest if epochs.is_open(newest) else 0


def epochs_of(layout: FlowHome, terms: LeaseSpec, clock: Clock = CLOCK) -> Epochs | None:
    """Return the epochs if the terms say shared, or if an epoch of that form was not released; else
    None.
    """
    if terms.mode == "shared":
        return Epochs(_epochs(layout), terms.duration, clock)
    return _seen(layout, clock) if open_epoch(layout) else None


def _seen(layout: FlowHome, clock: Clock = CLOCK) -> Epochs:
    """Return the epochs of a lease with the `expires` of its newest holder, for a reader without
    terms of its own.
    """
    some = Epochs(_epochs(layout), LeaseSpec().duration, clock)
    return replace(some, expires=some.patience(some.newest()))


def _epochs(layout: FlowHome) -> str:
    return f"{layout.lease}/epochs"


def _newest_card(epochs: Epochs) -> Card | None:
    newest = epochs.newest()
    if not newest:
        return None
    unknown: dict[str, Any] = {
        "owner": "",
        "run_id": "unknown",
        "host": "unknown",
        "pid": 0,
        "since": "unknown",
    }
    known = {name: value for name, value in epochs.card(newest).items() if name in unknown}
    age = epochs.age(newest)
    is_stale = age is None or age > epochs.expires
    phrase = _heartbeat(epochs.pulse(newest), age, is_stale=is_stale)
    return Card(**(unknown | known), epoch=newest, heartbeat=phrase, is_stale=is_stale)


def _heartbeat(pulse: bytes | None, age: float | None, *, is_stale: bool) -> str:
    told = f"heartbeat {pulse.decode(errors='replace')[:20]}" if pulse else "no heartbeat yet"
    ago = "" if age is None else f" seen {max(age, 0):.0f} s ago"
    return f"{told}{ago}{', it looks stale' if is_stale else ''}"


def _seems_stale(epochs: Epochs, number: int) -> bool:
    """Return whether the newest heartbeat is old by its modification time.

    Another host's clock may have set that time, so it is a reason to watch the heartbeat, not a
    proof.
    """
    age = epochs.age(number)
    return age is None or not 0 <= age < epochs.expires / 2


def local_card(layout: FlowHome) -> Card | None:
    """Return the card of the last holder in the local form, or None if there is none or it is
    torn.
    """
    try:
        content = layout.owner.read()
        return Card(**content) if content else None
    except (ValueError, TypeError):
        return None


def leave_card(layout: FlowHome, card: Card) -> None:
    """Store the card of the holder in the local form. To be called by the holder."""
    layout.owner.write(card.as_dict())


def take_card_away(layout: FlowHome) -> None:
    """Remove the card of the holder in the local form. To be called by the holder."""
    layout.owner.delete()
