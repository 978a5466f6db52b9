"""Detect storage that can't be written: a full disk, a read-only file system, no permission, a file
as directory.

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
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome

Trouble = Literal["full", "read-only", "denied", "no directory"]
_SIGNS: dict[Trouble, tuple[str, ...]] = {
    # the text of errno, as in messages of the JVM and Python, and its number, as in messages of
    # deltalake (Rust)
    "full": ("No space left on device", "os error 28)", "Disk quota exceeded", "os error 122)"),
    "read-only": ("Read-only file system", "os error 30)"),
    "denied": (
        *("Permission denied", "os error 13)", "Operation not permitted", "os error 1)"),
        *("java.nio.file.AccessDeniedException", "Mkdirs failed to create"),
    ),
    "no directory": ("Not a directory", "os error 20)", "ParentNotDirectoryException"),
}
_LITTLE = 64 * 1024  # bytes; with less free space, a table commit does not fit


def refusal(
    error: BaseException, layout: FlowHome | None, *, tried: str, changed: str, again: str = ""
) -> TerminalError | None:
    """Return the error to raise if storage that can't be written or read caused `error`, else None.

    Its code is `disk-full`, `lake-not-writable`, `permission-denied` or `not-a-directory`. Without
    a `layout`, only the error's own text is examined, and no directory. `again`: the command to
    repeat; default: a run of the pipeline.
    """
    chain = list(causes(error))
    reported: Trouble | None = next(filter(None, map(_reported, chain)), None)
    at_fault: tuple[Trouble, str] | None = None
    if layout is not None and (reported or any(map(_is_of_storage, chain))):
        at_fault = _at_fault(layout, reported)
    trouble, place = at_fault or (reported, next(filter(None, map(_file, chain)), ""))
    if trouble is None:
        return None
    run = again or "the same command again"
    if layout is not None:
        run = again or f"draindown run {layout.pipeline}"
        if trouble == "full":
            place = place or layout.lake
    return _named(trouble, place, error, tried, changed, run, is_lake=at_fault is not None)


def free_bytes(place: str) -> int:
    """Return the free bytes of the disk of a path, which need not exist."""
    return shutil.disk_usage(_nearest(place)).free


def state_of_path(path: str) -> str:
    """Return what is at the path of a lake without flows, as text."""
    if not os.path.lexists(path):
        return f"there is no {path}"
    is_empty = not any(Path(path).iterdir())
    return f"{path} is empty" if is_empty else f"{path} has no flow"


def refuse_file_as_lake(lake: str, *, tried: str, again: str) -> None:
    """Raise TerminalError `not-a-directory` if the lake's path is that of a file, or leads through
    one.
    """
    if not _nearest(lake).is_dir():
        raise _no_directory(lake, tried, "nothing was changed", again)


def unwritable(layout: FlowHome) -> TerminalError | None:
    """Return the error that a run would end with because a directory of the flow can't be written
    now, else None.
    """
    tried, run = (
        f"look at the lake of pipeline {layout.pipeline}",
        f"draindown run {layout.pipeline}",
    )
    trouble, place = next(_troubles(layout), (None, ""))
    if trouble is None:
        return None
    return _named(trouble, place, None, tried, "nothing was changed", run, is_lake=True)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all errors in its chain.

    Cleanup after the original error may fail too, and that error is then raised instead.
    """
    seen, left = set[int](), [error]
    while left:
        cause = left.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        for earlier in (cause.__cause__, cause.__context__):
            if earlier is not None:
                left.append(earlier)


@contextmanager
def named(layout: FlowHome, *, tried: str, changed: str = "nothing was changed") -> Iterator[None]:
    """Translate an error in the block with `refusal`. Other errors, and DraindownError, pass
    unchanged.
    """
    try:
        yield
    except DraindownError:
        raise
    except Exception as error:
        known = refusal(error, layout, tried=tried, changed=changed)
        if known is None:
            raise
        raise known from error


def _reported(error: BaseException) -> Trouble | None:
    text = said(error)
    for trouble, signs in _SIGNS.items():
        if any(sign in text for sign in signs):
            return trouble
    return None


def _is_of_storage(error: BaseException) -> bool:
    return (
        isinstance(error, OSError) or "java.io." in said(error) or "java.nio.file." in said(error)
    )


def _file(error: BaseException) -> str:
    return str(error.filename) if isinstance(error, OSError) and error.filename is not None else ""


def _at_fault(layout: FlowHome, reported: Trouble | None) -> tuple[Trouble, str] | None:
    """Return trouble and path of the first directory of the flow that has the reported trouble;
    None if none has.

    An error that reports none is that of the first directory that can't be written. Where the lake
    is a file, every error comes of that.
    """
    for trouble, place in _troubles(layout):
        if reported in (None, trouble) or trouble == "no directory":
            return trouble, place
    return None


def _troubles(layout: FlowHome) -> Iterator[tuple[Trouble, str]]:
    """Yield trouble and path of each directory of the flow that can't be written. Where a directory
    can't be, only that path is yielded.
    """
    for path in (layout.lake, layout.home, layout.tables.target.path):
        if not _nearest(path).is_dir():
            yield "no directory", path
            return
    for directory in _directories(layout):
        if os.statvfs(directory).f_flag & os.ST_RDONLY:
            yield "read-only", directory
        elif not os.access(directory, os.W_OK | os.X_OK):
            yield "denied", directory
        elif _is_full(directory):
            yield "full", directory


def _is_full(directory: str) -> bool:
    disk = shutil.disk_usage(directory)
    # a file system of the kernel, as at /sys, has no size
    return disk.total > 0 and disk.free < _LITTLE


def _nearest(path: str) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    return next(
        place for place in (Path(path), *Path(path).absolute().parents) if os.path.lexists(place)
    )


def _directories(layout: FlowHome) -> Iterable[str]:
    """Yield the existing directories that a flow writes to, the lake first.

    If the lake does not exist, its nearest existing parent is yielded instead.
    """
    yield str(_nearest(layout.lake))
    # the generation is not known here: its document may be what can't be read
    tables = [table.path for table in reversed(flow_tables(layout, 1))]
    within = (
        *tables,
        *(f"{table}/_delta_log" for table in tables),
        layout.home,
        layout.lease,
        layout.reports,
    )
    yield from (place for place in within if Path(place).is_dir())


def _named(
    trouble: Trouble,
    place: str,
    error: BaseException | None,
    tried: str,
    changed: str,
    again: str,
    *,
    is_lake: bool,
) -> TerminalError:
    """Return the error that names a trouble at a place."""
    match trouble:
        case "full":
            return _full(place, error, tried, changed, again)
        case "no directory":
            return _no_directory(place, tried, changed, again)
    return _closed(
        trouble, place, _words(error) if error else "", tried, changed, again, is_lake=is_lake
    )


def _full(
    place: str, error: BaseException | None, tried: str, changed: str, again: str
) -> TerminalError:
    scratch = tempfile.gettempdir()
    found = ["no space is left on a disk"]
    if place:
        disk = shutil.disk_usage(_nearest(place))
        # this disk has room, so the full one is that of Spark's spill files
        if error and disk.free >= _LITTLE:
            place, disk = scratch, shutil.disk_usage(scratch)
        found.append(f"{size(disk.free)} of {size(disk.total)} are free at {place}")
    found += [_words(error)] if error else []
    where = " ".join(map(shlex.quote, dict.fromkeys([place, scratch] if place else [])))
    return TerminalError(
        "disk-full",
        tried=tried,
        found="; ".join(found),
        changed=changed,
        next=[f"df -h {where}".rstrip(), f"{again}   # once there is room"],
        in_order=True,
    )


def _no_directory(place: str, tried: str, changed: str, again: str) -> TerminalError:
    obstacle = _nearest(place) if place else Path()
    is_broken_link = obstacle.is_symlink() and not obstacle.exists()
    what = "a link to nothing" if is_broken_link else "a file"
    found = f"{obstacle} is {what}, where a directory is needed"
    if str(obstacle) != place:
        found += f" for {place}"
    return TerminalError(
        "not-a-directory",
        tried=tried,
        found=found,
        changed=changed,
        next=[
            f"ls -ld {shlex.quote(str(obstacle))}",
            f"{again}   # once the path is that of a directory",
        ],
        in_order=True,
    )


def _closed(
    trouble: Trouble, place: str, words: str, tried: str, changed: str, again: str, *, is_lake: bool
) -> TerminalError:
    read_only = trouble == "read-only"
    why = "its file system is mounted read-only" if read_only else f"{_user()} has no permission"
    there = shlex.quote(str(_nearest(place)) if place else ".")
    look = f"findmnt --target {there}" if read_only else f"ls -ld {there}"
    then = "it is mounted for writing" if read_only else f"{_user()} may write there"
    can = "is not writable" if is_lake or read_only else "can't be opened"
    return TerminalError(
        "lake-not-writable" if is_lake or read_only else "permission-denied",
        tried=tried,
        found=f"{place or 'a file'} {can}: {why}" + (f"; {words}" if words else ""),
        changed=changed,
        next=[look, f"{again}   # once {then}" if is_lake or read_only else again],
        in_order=True,
    )


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = next((line.strip() for line in said(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {shortened(line)}"


def _user() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (OSError, KeyError):
        return f"user {os.getuid()}"
