"""Whole directories of a lake on a file system: who may use one, and moving one.

The only module that moves what lies in a lake. A store without directories has its own rights, and
no directory to make.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def absolute(path: str | Path) -> str:
    """Return a path as the intake records it: absolute, without `..`, and with symbolic links
    unresolved.
    """
    return os.path.abspath(path)  # noqa: PTH100 - `resolve` follows links, `absolute` leaves `..`


def make(directory: str, *, private: bool = False) -> None:
    """Create a directory and those above it that are missing, for others to read. `private`: the
    last one for its owner alone, whatever the umask. No-op if it exists.
    """
    if "://" in directory:
        return
    path = Path(directory)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.mkdir(mode=0o700 if private else 0o755, exist_ok=True)


def share(file: str) -> None:
    """Let other users of the lake read a file."""
    if "://" not in file:
        Path(file).chmod(0o644)


def exists(directory: str) -> bool:
    """Return whether there is a directory, which may be empty."""
    return Path(directory).is_dir()


def names(directory: str) -> list[str]:
    """Return the names of the directories in a directory, empty ones included; none if it is
    absent.
    """
    if not exists(directory):
        return []
    return [path.name for path in Path(directory).iterdir() if path.is_dir()]


def move(directory: str, to: str) -> None:
    """Move a directory, in one step. What is above `to` is created."""
    Path(to).parent.mkdir(parents=True, exist_ok=True)
    Path(directory).rename(to)


def clear(directory: str, *, but: str) -> None:
    """Remove what is in a directory, except the file or directory `but`. No-op if it is absent."""
    for path in Path(directory).iterdir() if exists(directory) else ():
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
