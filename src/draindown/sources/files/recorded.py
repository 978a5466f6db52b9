"""Compare files with what the intake recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from draindown.base.findings import Finding
from draindown.config.sources import FilesSource
from draindown.sources import objects
from draindown.sources.files.listing import shown
from draindown.sources.slices import Unit

REDELIVER = "deliver the new content under another name; it is read then"


class Recorded(Protocol):
    """A file as intake recorded it: a row of the intake table, or a `Verified`."""

    @property
    def path(self) -> str:
        """Absolute path."""

    @property
    def size(self) -> int:
        """Bytes on disk."""

    @property
    def mtime_ns(self) -> int:
        """Modification time, as `listing.mtime_ns` gives it."""

    @property
    def sha256(self) -> str:
        """Hash of the bytes on disk."""


@dataclass(frozen=True)
class PinnedFile:
    """A file that a slice pins."""

    path: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, unit: Unit) -> PinnedFile:
        """Return the file that a unit names."""
        return cls(unit.name, unit.bytes, unit.row["mtime_ns"], unit.row["sha256"])


def other_form(unit: Unit, source: FilesSource) -> str:
    """Return in words how a file was taken in, if what was counted then is not what `source` reads
    by; else "".

    Lines, records and header are counted once, by the source as it is then. A file that was taken
    in under a header is read without one as it is: the header is its first line.
    """
    row, by_line = unit.row, not (source.documents or source.form.columnar)
    if (row["lines"] is not None) != by_line:
        return "as documents or columns" if by_line else "line by line"
    return (
        "without a header"
        if source.has_header and row["header"] is None and row["lines"] > row["blank"]
        else ""
    )


def differences(files: Iterable[Recorded], place: Callable[[str], str] = str) -> dict[str, Finding]:
    """Return the files that differ from what intake recorded, by path, with findings `changed` or
    `vanished`.

    Compares size and mtime, and hashes a file only if its mtime alone differs. `place`: where a
    recorded path is now.
    """
    return {file.path: found for file in files if (found := difference(file, place(file.path)))}


def difference(file: Recorded, place: str = "") -> Finding | None:
    """Return the finding about one file, as `differences` does; None if it does not differ."""
    path = place or file.path
    try:
        found = objects.look(path)
        if found.size != file.size:
            detail = f"was taken in with {file.size} bytes, now has {found.size}"
            return finding("changed", path, detail, "restore its first content; " + REDELIVER)
        if found.mtime_ns != file.mtime_ns and objects.sha256_of(path) != file.sha256:
            detail = "was taken in with other bytes of the same size"
            return finding("changed", path, detail, "restore its first content; " + REDELIVER)
    except OSError as error:
        detail = f"was taken in, now can't be read: {error.strerror}"
        return finding("vanished", path, detail, "put it back where it was")
    return None


def finding(kind: str, path: str, detail: str, next: str) -> Finding:
    """Return a finding about a file."""
    return Finding(kind=kind, subject=shown(path), detail=detail, next=next)  # type: ignore[arg-type]
