"""The port of a lake's store: keys with small contents, and atomic writes.

A key is a path from `FlowHome`. The port needs no more than an object store offers: it has no
rename, no directories that act as flags, and no ordering by modification time. Every store must
pass tests/unit/test_store.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

Tag = str
"""Version tag of a content, like an ETag. Different contents have different tags; equal ones may
have the same.
"""


@dataclass(frozen=True)
class Entry:
    """A key in a listing. `size`: bytes. `modified`: for people and for ages in days; do not order
    by it.
    """

    key: str
    size: int
    modified: datetime

    @property
    def name(self) -> str:
        """What is behind the last slash of the key."""
        return self.key.rpartition("/")[2]


class Store(Protocol):
    """The interface of a lake's store.

    A key is written by `put` alone, by one writer at a time, or by `create` alone, by any number of
    them. Writes are atomic and durable: no reader sees partial content, and a completed write
    survives a power cut. Every method raises OSError if the store can't be reached.
    """

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """Return the content and its tag, or None if the key is absent."""
        ...

    def put(self, key: str, content: bytes) -> Tag:
        """Write the content, replacing any other. Return its tag."""
        ...

    def create(self, key: str, content: bytes) -> Tag | None:
        """Write the content if the key is absent and return its tag, else None. Of concurrent
        calls, one succeeds.
        """
        ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Yield the entries whose keys begin with `prefix` and are greater than `after`, sorted by
        key.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the key. No-op if it is absent."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Delete all keys that begin with `prefix`, which ends with a slash. Not atomic: a crash
        leaves some of them.
        """
        ...
