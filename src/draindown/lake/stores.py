"""Which store keeps a place."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from draindown.lake.local_store import LocalStore
from draindown.lake.memory_store import MemoryStore
from draindown.lake.store import Store

STORES: dict[str, Store] = {"": LocalStore(), "memory": MemoryStore()}
"""The store of each scheme; a path has none."""

_LAST = "\U0010ffff"  # no key has a greater character


def store_of(place: str) -> Store:
    """Return the store that keeps a place: of `memory://name/key` the one of this process, of a
    path the file system.

    Raises OSError for every other scheme.
    """
    scheme, separator, _ = place.partition("://")
    try:
        return STORES[scheme if separator else ""]
    except KeyError:
        raise OSError(errno.EPROTONOSUPPORT, "no store keeps it", place) from None


def names_under(prefix: str) -> Iterator[str]:
    """Yield the distinct next segments of the keys that begin with `prefix`, which ends with a
    slash, ascending. One that has keys below it ends with a slash.

    It takes one listing, and one more for each segment that has keys below it, however many.
    """
    store, after = store_of(prefix), prefix
    while after:
        listed, after = store.list(prefix, after), ""
        for entry in listed:
            name, slash, _ = entry.key.removeprefix(prefix).partition("/")
            yield name + slash
            if slash:  # what is below it is passed over
                after = f"{prefix}{name}/{_LAST}"
                break


def holds_any(prefix: str) -> bool:
    """Return whether any key begins with `prefix`."""
    return next(store_of(prefix).list(prefix), None) is not None
