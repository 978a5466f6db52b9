"""Whole directories of a lake: whether there is one, what is in it, who may use it, moving it.

The only module that moves what lies in a lake. On a file system a directory may be empty, or closed
to this user. In a store without directories there is one where keys are, rights are the store's, and
nothing can be moved.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from draindown.lake.stores import holds_any, names_under, store_of


def absolute(path: str | Path) -> str:
    """Return a path as the intake records it: absolute, without `..`, and with symbolic links
    unresolved.
    """
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


def make(directory: str, *, private: bool = False) -> None:
    """Create a directory that others may read, as far as the umask lets them, or with `private` its
    owner alone. Creates those above it that are missing. No-op if it exists.
    """
    if _is_local(directory):
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        Path(directory).mkdir(mode=0o700 if private else 0o755, exist_ok=True)


def share(file: str) -> None:
    """Let other users of the lake read a file."""
    if _is_local(file):
        Path(file).chmod(0o644)


def exists(directory: str) -> bool:
    """Return whether there is a directory."""
    return Path(directory).is_dir() if _is_local(directory) else holds_any(f"{directory}/")


def names(directory: str) -> list[str]:
    """Return the names of the directories in a directory; none if it is absent."""
    if not _is_local(directory):
        found = names_under(f"{directory}/")
        return [name.removesuffix("/") for name in found if name.endswith("/")]
    if not exists(directory):
        return []
    return [path.name for path in Path(directory).iterdir() if path.is_dir()]


def file_names(directory: str) -> set[str]:
    """Return the names of what is in a directory, without looking at it; none if it is absent.

    Raises PermissionError if this user may not list it.
    """
    if not _is_local(directory):
        return {name for name in names_under(f"{directory}/") if not name.endswith("/")}
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def move(directory: str, to: str) -> None:
    """Move a directory, in one step. What is above `to` is created. Raises OSError where nothing
    can be moved.
    """
    if not _is_local(directory):
        raise OSError(errno.EOPNOTSUPP, "a store without directories moves nothing", directory)
    Path(to).parent.mkdir(parents=True, exist_ok=True)
    Path(directory).rename(to)


def clear(directory: str, *, but: str) -> None:
    """Remove what is in a directory, except the file or directory `but`. No-op if it is absent."""
    if not _is_local(directory):
        store = store_of(directory)
        for entry in store.list(f"{directory}/"):
            if entry.key != but and not entry.key.startswith(f"{but}/"):
                store.delete(entry.key)
        return
    for path in Path(directory).iterdir() if exists(directory) else ():
        if str(path) == but:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove(directory: str) -> None:
    """Remove a directory with all that is in it. No-op if there is none."""
    if not _is_local(directory):
        store_of(directory).delete_prefix(f"{directory}/")
    elif exists(directory):
        shutil.rmtree(directory)


def _is_local(place: str) -> bool:
    return "://" not in place
