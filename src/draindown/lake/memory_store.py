"""The store in the memory of this process: a key begins with `memory://`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

from draindown.lake.store import Entry, Tag


class MemoryStore:
    """Contents by key. A tag is the number of a write, so equal contents have different ones."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[bytes, Tag, datetime]] = {}
        self._written = 0
        self._lock = threading.RLock()

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """See `Store.read`."""
        found = self._held.get(key)
        return None if found is None else found[:2]

    def put(self, key: str, content: bytes) -> Tag:
        """See `Store.put`."""
        with self._lock:
            self._written += 1
            tag = str(self._written)
            self._held[key] = (content, tag, datetime.now(UTC))
            return tag

    def create(self, key: str, content: bytes) -> Tag | None:
        """See `Store.create`."""
        with self._lock:
            return None if key in self._held else self.put(key, content)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """See `Store.list`."""
        with self._lock:
            held = sorted(self._held.items())
        for key, (content, _, modified) in held:
            if key.startswith(prefix) and (after is None or key > after):
                yield Entry(key, len(content), modified)

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        self._held.pop(key, None)

    def delete_prefix(self, prefix: str) -> None:
        """See `Store.delete_prefix`."""
        with self._lock:
            for key in [key for key in self._held if key.startswith(prefix)]:
                del self._held[key]
