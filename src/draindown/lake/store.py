"""The store of draindown's documents: a key-value store for small contents, with atomic writes.

A key is a path from `FlowHome`. The interface needs no more than an object store offers: it has
no rename, no directories that act as flags, and no ordering by modification time. `LocalStore`
implements it for the file system. Every implementation must pass tests/unit/test_store.py.
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

Tag = str
"""Version tag of a content, like an ETag. Different contents have different tags; equal ones may
have the same.
"""
_NAMED = 40  # characters of the file's name in the draft's name; a file name has at most 255
_TRIES = 5  # attempts to create a draft, while other processes remove the empty directory


@dataclass(frozen=True)
class Entry:
    """A key in a listing. `size`: bytes. `modified`: for people and for ages in days; do not order
    by it.
    """

    key: str
    size: int
    modified: datetime


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


class LocalStore:
    """The store on a file system: keys are paths. Files and directories that it creates are
    readable by this user only.

    `create` makes a hard link, which is atomic, also on NFS. Names that begin with a dot are
    drafts, not keys.
    """

    def read(self, key: str) -> tuple[bytes, Tag] | None:
        """Return the content and its tag, or None if the file is absent."""
        try:
            content = Path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content, _tag(content)

    def put(self, key: str, content: bytes) -> Tag:
        """Write the content to a draft and rename it. Return its tag."""
        with _draft(Path(key), content) as draft:
            draft.replace(key)
        _settle(Path(key))
        return _tag(content)

    def create(self, key: str, content: bytes) -> Tag | None:
        """Write the content to a draft and hard-link it, which fails if the file exists. Return its
        tag, else None.
        """
        with _draft(Path(key), content) as draft:
            try:
                os.link(draft, key)
            except FileExistsError:
                # if an NFS client retries after a lost reply, the link exists but the call fails;
                # the link count tells
                if draft.stat().st_nlink < 2:
                    return None
        _settle(Path(key))
        return _tag(content)

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """Yield the entries whose keys begin with `prefix` and are greater than `after`, sorted by
        key.
        """
        yield from sorted(
            (entry for entry in _files(prefix) if after is None or entry.key > after),
            key=lambda one: one.key,
        )

    def delete(self, key: str) -> None:
        """Delete the file, drafts of it that a crashed writer left, and the directory if it is
        empty then.
        """
        path = Path(key)
        path.unlink(missing_ok=True)
        for draft in path.parent.glob(f"{glob.escape(_drafts_of(path))}*.tmp"):
            draft.unlink(missing_ok=True)
        with suppress(OSError):  # the directory is not empty, or it is gone
            path.parent.rmdir()

    def delete_prefix(self, prefix: str) -> None:
        """Delete the directory with everything in it, drafts included."""
        # not shutil.rmtree: it fails where another process deletes as well
        for home, directories, names in os.walk(prefix, topdown=False, onerror=_unless_absent):
            links = (name for name in directories if Path(home, name).is_symlink())
            for name in (*names, *links):
                Path(home, name).unlink(missing_ok=True)
            with suppress(OSError):  # another process deleted it, or wrote to it
                Path(home).rmdir()


def store_of(key: str) -> Store:
    """Return the store for a key. `LocalStore` is the only kind."""
    del key
    return LocalStore()


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """Yield a temporary file beside `path` with the content, synced to disk. It is deleted when the
    block exits.
    """
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
        _make_private(path.parent)
        try:
            return tempfile.mkstemp(dir=path.parent, prefix=_drafts_of(path), suffix=".tmp")
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _make_private(directory: Path) -> None:
    """Create a directory and those above it that are missing, with access for this user only."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)  # `parents` would leave the mode to the umask


def _drafts_of(path: Path) -> str:
    return f".{path.name[:_NAMED]}."


def _settle(path: Path) -> None:
    """Sync the directory to disk. Errors are ignored: the write itself has succeeded."""
    with suppress(OSError):
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _tag(content: bytes) -> Tag:
    return hashlib.sha256(content).hexdigest()


def _files(prefix: str) -> Iterator[Entry]:
    """Yield the files whose keys begin with the prefix."""
    for home, directories, names in os.walk(prefix.rpartition("/")[0], onerror=_unless_absent):
        directories[:] = [name for name in directories if f"{home}/{name}/".startswith(prefix)]
        keys = (f"{home}/{name}" for name in names if not name.startswith("."))
        for key in keys:
            if not key.startswith(prefix):
                continue
            with suppress(FileNotFoundError):  # deleted since
                known = os.lstat(key)
                if stat.S_ISREG(known.st_mode):
                    yield Entry(key, known.st_size, datetime.fromtimestamp(known.st_mtime, UTC))


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
