"""Which store keeps a place."""

from __future__ import annotations

import errno

from draindown.lake.local_store import LocalStore
from draindown.lake.memory_store import MemoryStore
from draindown.lake.store import Store

STORES: dict[str, Store] = {"": LocalStore(), "memory": MemoryStore()}
"""The store of each scheme; a path has none."""


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
