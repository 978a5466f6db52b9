"""Detect errors of storage that can't be written: a full disk, a read-only file system, a missing permission.

Error messages differ by engine, version and locale, so the flow's directories are checked too.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from draindown.base.errors import DraindownError, TerminalError, said
from draindown.base.formatting import shortened, size
from draindown.lake.layout import FlowLayout

Trouble = Literal["full", "read-only", "denied"]
_SIGNS: dict[Trouble, tuple[str, ...]] = {
    # the text of errno, as in messages of the JVM and Python, and its number, as in messages of deltalake (Rust)
    "full": ("No space left on device", "os error 28)", "Disk quota exceeded", "os error 122)"),
    "read-only": ("Read-only file system", "os error 30)"),
    "denied": (
        *("Permission denied", "os error 13)", "Operation not permitted", "os error 1)"),
        *("java.nio.file.AccessDeniedException", "Mkdirs failed to create"),
    ),
}
_LITTLE = 64 * 1024  # bytes; with less free space, a table commit does not fit


def refusal(error: BaseException, layout: FlowLayout | None, *, tried: str, changed: str) -> TerminalError | None:
    """Return the error to raise if storage that can't be written or read caused `error`, else None.

    Its code is `disk-full`, `lake-not-writable` or `permission-denied`. Without a `layout`, only the error's own text
    is examined, and no directory.
    """
    chain = list(causes(error))
    told = next((found for one in chain if (found := _told(one))), None)
    at_fault = _place(layout) if layout is not None and (told or any(map(_is_of_storage, chain))) else None
    trouble, place = at_fault or (told, next(filter(None, map(_file, chain)), ""))
    if trouble is None:
        return None
    run = f"draindown run {layout.pipeline}" if layout is not None else "the same command again"
    if trouble == "full":
        return _full(place or (layout.lake if layout else "."), error, tried, changed, run)
    return _closed(trouble, place, error, tried, changed, run, is_lake=at_fault is not None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all errors in its chain.

    Cleanup after the original error may fail too, and that error is then raised instead.
    """
    seen, at = set[int](), [error]
    while at:
        one = at.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            at += [before for before in (one.__cause__, one.__context__) if before is not None]


@contextmanager
def named(layout: FlowLayout, *, tried: str, changed: str = "nothing was changed") -> Iterator[None]:
    """Translate an error in the block with `refusal`. Other errors, and DraindownError, pass unchanged."""
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        known = refusal(error, layout, tried=tried, changed=changed)
        if known is None:
            raise
        raise known from error


def _told(error: BaseException) -> Trouble | None:
    text = said(error)
    return next((trouble for trouble, signs in _SIGNS.items() if any(sign in text for sign in signs)), None)


def _is_of_storage(error: BaseException) -> bool:
    return isinstance(error, OSError) or "java.io." in said(error) or "java.nio.file." in said(error)


def _file(error: BaseException) -> str:
    return str(error.filename) if isinstance(error, OSError) and error.filename is not None else ""


def _place(layout: FlowLayout) -> tuple[Trouble, str] | None:
    """Return the reason and path of the first directory of the flow that can't be written; None if all can."""
    for directory in _directories(layout):
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            return "read-only", directory
        if not os.access(directory, os.W_OK | os.X_OK):
            return "denied", directory
        if shutil.disk_usage(directory).free < _LITTLE:
            return "full", directory
    return None


def _directories(layout: FlowLayout) -> Iterable[str]:
    """Yield the existing directories that a flow writes to, the lake first.

    If the lake does not exist, its nearest existing parent is yielded instead.
    """
    lake = Path(layout.lake)
    yield str(next(place for place in (lake, *lake.absolute().parents) if place.is_dir()))
    tables = (layout.table, layout.tombstones, layout.quarantine, layout.ledger, layout.inputs, layout.intake_of(1))
    within = (*tables, *(f"{table}/_delta_log" for table in tables), layout.home, layout.lease, layout.reports)
    yield from (place for place in within if Path(place).is_dir())


def _full(place: str, error: BaseException, tried: str, changed: str, again: str) -> TerminalError:
    there = next((at for at in (Path(place), *Path(place).absolute().parents) if at.exists()), Path("/"))
    disk = shutil.disk_usage(there)
    scratch = tempfile.gettempdir()
    if disk.free >= _LITTLE:  # this disk has room, so the full one is that of Spark's spill files
        place, disk = scratch, shutil.disk_usage(scratch)
    room = f"{size(disk.free)} of {size(disk.total)} are free at {place}"
    return TerminalError(
        "disk-full",
        tried=tried,
        found=f"no space is left on a disk; {room}; {_words(error)}",
        changed=changed,
        next=[f"df -h {shlex.quote(place)} {shlex.quote(scratch)}", f"{again}   # once there is room"],
        in_order=True,
    )


def _closed(
    trouble: Trouble, place: str, error: BaseException, tried: str, changed: str, again: str, *, is_lake: bool
) -> TerminalError:
    read_only = trouble == "read-only"
    why = "its file system is mounted read-only" if read_only else f"{_user()} has no permission"
    look = f"findmnt --target {shlex.quote(place or '.')}" if read_only else f"ls -ld {shlex.quote(place or '.')}"
    then = "it is mounted for writing" if read_only else f"{_user()} may write there"
    can = "is not writable" if is_lake or read_only else "can't be opened"
    return TerminalError(
        "lake-not-writable" if is_lake or read_only else "permission-denied",
        tried=tried,
        found=f"{place or 'a file'} {can}: {why}; {_words(error)}",
        changed=changed,
        next=[look, f"{again}   # once {then}" if is_lake or read_only else again],
        in_order=True,
    )


def _words(error: BaseException) -> str:
    line = next((line.strip() for line in said(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {shortened(line)}"


def _user() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (OSError, KeyError):
        return f"user {os.getuid()}"
