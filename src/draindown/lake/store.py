"""The store of what draindown keeps beside its tables: small contents under keys, each there whole or not at all.

A key is the path that `FlowLayout` derives. The port asks for no more than an object store offers: no rename, no
directory as a flag, no time of a file as an order. `LocalStore` is the file system's; any other passes the same tests
(tests/unit/test_store.py).
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from filelock import FileLock

Tag = str
"""Names the content of a key. Other content has another tag; equal content may have the same one."""
_NAMED = 40  # characters of a file's name in that of its draft: a name has room for 255
_TRIES = 5  # at a directory that someone removes as its last file goes


@dataclass(frozen=True)
class Entry:
    """A key as a listing shows it. `size` in bytes; `modified` is for people and for ages in days, never an order."""

    key: str
    size: int
    modified: datetime


class Store(Protocol):
    """What a lake's store must offer. A key is written by `put` alone, which has one writer, or by the other two.

    Every method raises OSError where the store can't be reached. No reader ever sees a part of a content, and what a
    method returned outlives a power cut.
    """

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """Return the content and its tag, or None where there is none."""
        ...

    def put(self, key: str, content: bytes) -> Tag:
        """Write the content, whatever was there."""
        ...

    def create(self, key: str, content: bytes) -> Tag | None:
        """Write the content where there is none, and return its tag; None where there is one. Of many, one succeeds."""
        ...

    def replace(self, key: str, content: bytes, tag: Tag) -> Tag | None:
        """Write the content where the one with this tag still is; None where there is another, or none any more."""
        ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Yield the entries whose keys begin with `prefix` and are greater than `after`, by key."""
        ...

    def delete(self, key: str) -> None:
        """Remove the content, if there is any."""
        ...


class LocalStore:
    """Keys are paths of the file system; files are readable by this user alone, as are directories it makes.

    `create` makes a hard link, which succeeds once, on NFS too; `replace` trusts the file system's locks, so nothing
    that must hold between hosts stands on it. Names that begin with a dot are drafts and locks, and no keys.
    """

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """Return the content and its tag, or None where there is none."""
        try:
            content = Path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content, _tag(content)

    def put(self, key: str, content: bytes) -> Tag:
        """Write the content by rename."""
        with _draft(Path(key), content) as draft:
            draft.replace(key)
        _settle(Path(key))
        return _tag(content)

    def create(self, key: str, content: bytes) -> Tag | None:
        """Write the content by a hard link, which is made where no file is or not at all."""
        with _draft(Path(key), content) as draft:
            try:
                os.link(draft, key)
            except FileExistsError:
                # an answer that got lost and a second try of the file system's client look like another's file
                if draft.stat().st_nlink < 2:
                    return None
        _settle(Path(key))
        return _tag(content)

    def replace(self, key: str, content: bytes, tag: Tag) -> Tag | None:
        """Write the content under a lock beside it, which stays: to remove a lock file is a race."""
        path = Path(key)
        if not path.parent.is_dir():
            return None
        with FileLock(path.with_name(f".{path.name}.lock"), mode=0o600):
            found = self.read(key)
            return self.put(key, content) if found is not None and found[1] == tag else None

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Yield the entries below the directory that `prefix` begins with, by key."""
        found = (entry for entry in _files(prefix.rpartition("/")[0]) if entry.key.startswith(prefix))
        yield from sorted((entry for entry in found if after is None or entry.key > after), key=lambda one: one.key)

    def delete(self, key: str) -> None:
        """Remove the file, drafts of it that a writer left who died, and its directory if it was the last one there."""
        path = Path(key)
        path.unlink(missing_ok=True)
        for draft in path.parent.glob(f"{glob.escape(_drafts_of(path))}*.tmp"):
            draft.unlink(missing_ok=True)
        with suppress(OSError):  # others are there, or it is gone
            path.parent.rmdir()


def store_of(key: str) -> Store:
    """Return the store that holds a key: the file system's, until there is another kind."""
    del key
    return LocalStore()


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """A file beside `path` that holds the content, on disk; it is gone afterwards unless it was moved."""
    handle, name = _made(path)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _made(path: Path) -> tuple[int, str]:
    for left in reversed(range(_TRIES)):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return tempfile.mkstemp(dir=path.parent, prefix=_drafts_of(path), suffix=".tmp")
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _drafts_of(path: Path) -> str:
    return f".{path.name[:_NAMED]}."


def _settle(path: Path) -> None:
    """Have the directory on disk too. One that can't be synced must not make a write that happened look like none."""
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _tag(content: bytes) -> Tag:
    return hashlib.sha256(content).hexdigest()


def _files(directory: str) -> Iterator[Entry]:
    for home, _, names in os.walk(directory, onerror=_unless_absent):
        for name in names:
            key = f"{home}/{name}"
            with suppress(FileNotFoundError):  # deleted since
                known = os.lstat(key)
                if stat.S_ISREG(known.st_mode) and not name.startswith("."):
                    yield Entry(key, known.st_size, datetime.fromtimestamp(known.st_mtime, UTC))


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
