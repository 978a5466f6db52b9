"""Whole directories of a lake on a file system: whether there is one, what is in it, who may use
it, moving it.

The only module that moves what lies in a lake. Every function raises OSError for a place that is no
path.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path


def absolute(path: str | Path) -> str:
    """Return a path as the intake records it: absolute, without `..`, and with symbolic links
    unresolved.
    """
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


def make(directory: str, *, private: bool = False) -> None:
    """Create a directory that others may read, as far as the umask lets them, or with `private` its
    owner alone. Creates those above it that are missing. No-op if it exists.
    """
    made = _local(directory)
    made.parent.mkdir(parents=True, exist_ok=True)
    made.mkdir(mode=0o700 if private else 0o755, exist_ok=True)


def share(file: str) -> None:
    """Let other users of the lake read a file."""
    _local(file).chmod(0o644)


def exists(directory: str) -> bool:
    """Return whether there is a directory."""
    return _local(directory).is_dir()


def names(directory: str) -> list[str]:
    """Return the names of the directories in a directory; none if it is absent."""
    if not exists(directory):
        return []
    return [path.name for path in _local(directory).iterdir() if path.is_dir()]


def file_names(directory: str) -> set[str]:
    """Return the names of what is in a directory, without looking at it; none if it is absent.

    Raises PermissionError if this user may not list it.
    """
    try:
        with os.scandir(_local(directory)) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def move(directory: str, to: str) -> None:
    """Move a directory, in one step. What is above `to` is created."""
    _local(to).parent.mkdir(parents=True, exist_ok=True)
    _local(directory).rename(to)


def clear(directory: str, *, but: str) -> None:
    """Remove what is in a directory, except the file or directory `but`. No-op if it is absent."""
    for path in _local(directory).iterdir() if exists(directory) else ():
        if str(path) == but:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove(directory: str) -> None:
    """Remove a directory with all that is in it. No-op if there is none."""
    if exists(directory):
        shutil.rmtree(directory)


def _local(place: str) -> Path:
    if "://" in place:
        raise OSError(errno.EPROTONOSUPPORT, "no directory of a file system", place)
    return Path(place)
