"""Read a file once before Spark does: is it readable as a whole, what is its hash, how many lines
does it hold?

A file is accepted or parked as a whole. Errors *within* a readable container (NULs, broken UTF-8,
bad rows) are not checked here: bad rows are refused one by one later.
"""

from __future__ import annotations

import errno
import shlex
from dataclasses import dataclass
from typing import Any

from draindown.base.findings import Finding
from draindown.config.sources import FilesSource
from draindown.sources import objects
from draindown.sources.files.container import LIMITS, Broken, FileBytes, Limits
from draindown.sources.files.formats import inspector_of
from draindown.sources.files.listing import shown
from draindown.sources.objects import SourceFile


@dataclass(frozen=True, slots=True)
class Verified:
    """A file that is readable as a whole. `raw_bytes` is its unpacked size; counts are None if the
    format has none.

    Files of one `shape` (CSV header, schema) are read by one plan.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str = ""
    lines: int | None = None
    blank: int | None = None
    raw_bytes: int = 0
    records: int | None = None
    header: str | None = None
    multiline: bool = False
    bom: bool = False
    shape: str = ""

    @property
    def counted(self) -> int:
        """Its lines, or its rows if the format has no lines."""
        return (self.lines if self.lines is not None else self.records) or 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is not readable as a whole. `reason` is a stable name; `head` holds its first
    bytes, up to 64 KiB.
    """

    path: str
    size: int
    mtime_ns: int
    reason: str
    detail: str
    head: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be inspected this time. The next run tries again.

    `trouble`: why this machine could not read it; empty if the file is only not settled yet.
    """

    path: str
    finding: Finding
    trouble: str = ""


def verify(
    file: SourceFile, source: FilesSource, limits: Limits = LIMITS
) -> Verified | Unreadable | Skipped:
    """Read the file once, in memory that does not depend on its size.

    The result is Skipped if storage or memory fail, or if the file changed after it was listed or
    while it was read.
    """
    try:
        with objects.opened(file.path) as handle:
            result = _judge(file, source, FileBytes(handle, limits))
            found = objects.look(file.path)
    except FileNotFoundError:
        return _skip(file, "ignored", "went away after it was listed", "check where it went")
    except (OSError, MemoryError) as error:
        return unread(file.path, error)
    if found != file:
        return _skip(
            file,
            "unsettled",
            "changed while it was read",
            "the next run takes it; `min_file_age` makes runs wait",
        )
    return result


def unread(path: str, error: OSError | MemoryError) -> Skipped:
    """Return the result for a file that storage, or the memory of this machine, kept from being
    read.
    """
    if isinstance(error, MemoryError):
        trouble, then = "not enough memory to read it", "free -m   # the next run looks at it again"
    else:
        trouble = (error.strerror or str(error)) + (
            f" ({errno.errorcode[error.errno]})" if error.errno else ""
        )
        then = f"ls -l {shlex.quote(shown(path))}   # the next run looks at it again"
    finding = Finding(
        kind="unread", subject=shown(path), detail=f"left out of this run: {trouble}", next=then
    )
    return Skipped(path, finding, trouble)


def _skip(file: SourceFile, kind: Any, detail: str, next: str) -> Skipped:
    return Skipped(
        file.path, Finding(kind=kind, subject=shown(file.path), detail=detail, next=next)
    )


def _judge(file: SourceFile, source: FilesSource, data: FileBytes) -> Verified | Unreadable:
    try:
        facts = inspector_of(source).inspect(file, source, data)
    except Broken as broken:
        reason, detail = broken.args
        return Unreadable(
            file.path, file.size, file.mtime_ns, reason, detail, data.head, data.sha256()
        )
    return Verified(file.path, file.size, file.mtime_ns, data.sha256(), **facts)
