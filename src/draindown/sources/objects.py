"""The files of a source where they lie: looking at one, opening one, hashing one. `listing` finds
them; readers of formats (pyarrow, gzip, Spark) get their paths.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

_BOUND = 2**63


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source: absolute path as the glob reaches it, bytes as stored, mtime as `mtime_ns`
    gives it.
    """

    path: str
    size: int
    mtime_ns: int


def look(path: str) -> SourceFile:
    """Return a file as it is now. Raises OSError if it is gone, or can't be looked at."""
    found = Path(path).stat()
    return SourceFile(path, found.st_size, mtime_ns(found))


def is_file(path: str) -> bool:
    """Return whether there is a file."""
    return Path(path).is_file()


def is_there(path: str) -> bool:
    """Return whether anything has that path: a file, a directory, a link to nothing."""
    return os.path.lexists(path)


def opened(path: str) -> BufferedReader:
    """Open a file to read its bytes as stored."""
    return Path(path).open("rb")


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file's bytes as stored, in hexadecimal."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mtime_ns(found: os.stat_result) -> int:
    """Return the mtime in nanoseconds, at most what a table's bigint holds: beyond 1677 to 2262 it
    is the bound.
    """
    return min(max(found.st_mtime_ns, -_BOUND), _BOUND - 1)
