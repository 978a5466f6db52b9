"""Read a file once before Spark does: is it readable as a whole, what is its hash, how many lines does it hold?

A file is accepted or parked as a whole. Errors *within* a readable container (NULs, broken UTF-8, bad rows) are not
checked here: bad rows are refused one by one later.
"""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from draindown.base.findings import Finding
from draindown.sources.files.columnar import Measured, Unsupported, digest, measured, shape_of
from draindown.sources.files.line_counter import LineCounter, LineTooLong
from draindown.sources.files.listing import SourceFile, shown
from draindown.spec.sources import FilesSource

_GZIP = b"\x1f\x8b"
_MAGIC = {
    _GZIP: "gzip",
    b"PAR1": "Parquet",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"Obj\x01": "Avro",
    b"SQLite format 3\x00": "SQLite",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"%PDF-": "PDF",
}
_WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


# suffixes by which Hadoop selects a codec
_OTHER_CODECS = (".bz2", ".deflate", ".snappy", ".lz4", ".zst", ".lzo", ".xz", ".passthrough")


@dataclass(frozen=True, slots=True)
class Verified:
    """A file that is readable as a whole. `raw_bytes` is its unpacked size; counts are None if the format has none.

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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is not readable as a whole. `reason` is a stable name; `head` holds its first bytes, up to 64 KiB."""

    path: str
    size: int
    mtime_ns: int
    reason: str
    detail: str
    head: bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be inspected this time. The next run tries again."""

    path: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a file's content, and how it is read; all in bytes but `times`.

    Attributes:
        line: longest line or value. A file with a longer one is parked: each operator of a plan holds a row of its own,
            and a heap of 2 GB did not hold two of 60 MB.
        unpacked: largest unpacked size of a compressed file. It can't be split, so one task reads all of it.
        times: largest ratio of unpacked to packed size, checked above `blown_up`. Text packs 5 to 50 times, blank lines
            1,000 times.
        blown_up: unpacked size from which `times` is checked.
        head: size of the first read.
        chunk: size of later reads.
    """

    line: int = 32 * 1024**2
    unpacked: int = 4 * 1024**3
    times: int = 250
    blown_up: int = 256 * 1024**2
    chunk: int = 1024 * 1024
    head: int = 64 * 1024


LIMITS = Limits()


class _Broken(Exception):
    """The reason why the container is unreadable: (reason, detail)."""


def verify(file: SourceFile, source: FilesSource, limits: Limits = LIMITS) -> Verified | Unreadable | Skipped:
    """Read the file once, in memory that does not depend on its size.

    The result is Skipped if the file can't be opened, or changed after it was listed or while it was read.
    """
    try:
        with Path(file.path).open("rb") as handle:
            result = _judge(file, source, _Bytes(handle, limits))
            found = Path(file.path).stat()
    except OSError as error:
        detail = f"can't be read: {error.strerror or error}"
        return _skip(file, "ignored", detail, "check that it is there, and its permissions")
    if (found.st_size, found.st_mtime_ns) != (file.size, file.mtime_ns):
        return _skip(file, "unsettled", "changed while it was read", "the next run takes it; `settle` makes runs wait")
    return result


def sha256_of(path: str) -> str:
    """Return the SHA-256 of the bytes on disk."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _skip(file: SourceFile, kind: Any, detail: str, next: str) -> Skipped:
    return Skipped(file.path, Finding(kind=kind, subject=shown(file.path), detail=detail, next=next))


class _Bytes:
    """The bytes on disk, hashed while they are read."""

    def __init__(self, handle: BinaryIO, limits: Limits) -> None:
        self.handle, self.limits = handle, limits
        self.head = handle.read(limits.head)
        self._hash = hashlib.sha256(self.head)

    def chunks(self) -> Iterator[bytes]:
        yield self.head
        while chunk := self.handle.read(self.limits.chunk):
            self._hash.update(chunk)
            yield chunk

    def sha256(self) -> str:
        """Return the hash of the whole file, however much of it was read before."""
        while chunk := self.handle.read(self.limits.chunk):
            self._hash.update(chunk)
        return self._hash.hexdigest()


def _judge(file: SourceFile, source: FilesSource, data: _Bytes) -> Verified | Unreadable:
    try:
        facts = _columnar(file, source, data) if source.format in ("parquet", "orc") else _text(file, source, data)
    except _Broken as broken:
        reason, detail = broken.args
        return Unreadable(file.path, file.size, file.mtime_ns, reason, detail, data.head, data.sha256())
    return Verified(file.path, file.size, file.mtime_ns, data.sha256(), **facts)


def _text(file: SourceFile, source: FilesSource, data: _Bytes) -> dict[str, Any]:
    csv = source.format == "csv"
    counter = LineCounter(
        limit=max(data.limits.line, source.max_record_bytes), quotes=csv, header=csv and source.header
    )
    first = True
    try:
        for chunk in _unpacked(file, data):
            if first and chunk:
                _refuse_binary(chunk, source.format)
                first = False
            counter.feed(chunk)
        counter.finish()
    except LineTooLong as error:
        raise _Broken("record-too-long", str(error)) from None
    header = counter.header.decode(errors="replace") if counter.header is not None else None
    return {
        "lines": counter.lines,
        "blank": counter.blank,
        "raw_bytes": counter.bytes,
        "header": header,
        "multiline": counter.multiline,
        "bom": counter.bom,
        "shape": digest(header or ""),
    }


def _refuse_binary(start: bytes, format: str) -> None:
    for magic, name in _WIDE.items():
        if start.startswith(magic):
            raise _Broken("not-utf-8", f"begins like {name}; deliver UTF-8")
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            raise _Broken("wrong-container", f"begins like {name}, not like {format}")
    if start.startswith(b"ORC") and b"\x00" in start[:64]:
        raise _Broken("wrong-container", f"begins like ORC, not like {format}")
    if start[257:262] == b"ustar":
        raise _Broken("wrong-container", f"is a tar archive, not {format}")


def _unpacked(file: SourceFile, data: _Bytes) -> Iterator[bytes]:
    named = file.path.endswith(".gz")
    if file.path.endswith(_OTHER_CODECS):
        ending = file.path[file.path.rindex(".") :]
        raise _Broken("unsupported-compression", f"ends in {ending}; deliver it plain or as .gz")
    if named and data.head and not data.head.startswith(_GZIP):
        raise _Broken("not-gzip", "is named .gz, but does not begin like gzip")
    if not named and data.head.startswith(_GZIP):
        raise _Broken("gzip-not-named", "begins like gzip, but is not named .gz, by which the engine would know")
    return _gunzip(data, file.size) if named else data.chunks()


def _gunzip(data: _Bytes, size: int) -> Iterator[bytes]:
    """Yield the content of all gzip members, at most one chunk at a time."""
    member, total, limits = None, 0, data.limits
    for packed in data.chunks():
        while packed:
            if member is None:
                if total and not _GZIP.startswith(packed[:2]):
                    raise _Broken("trailing-garbage", f"has bytes that are not gzip after {total} unpacked bytes")
                member = zlib.decompressobj(31)
            try:
                piece = member.decompress(packed, limits.chunk)
            except zlib.error as error:
                raise _Broken("corrupt-gzip", f"is damaged after {total} unpacked bytes: {error}") from None
            total += len(piece)
            if total > limits.unpacked:
                raise _Broken("too-large", f"unpacks to more than {limits.unpacked} bytes; deliver smaller files")
            if total > max(limits.blown_up, limits.times * size):
                raise _Broken("too-large", f"unpacks to more than {limits.times} times its size; deliver it plain")
            yield piece
            packed = member.unconsumed_tail
            if member.eof:
                packed, member = member.unused_data, None
    if member is not None:
        raise _Broken("truncated", f"ends in the middle, after {total} unpacked bytes")


def _columnar(file: SourceFile, source: FilesSource, data: _Bytes) -> dict[str, Any]:
    if not data.head:
        return {"records": 0, "raw_bytes": 0}
    magic = b"PAR1" if source.format == "parquet" else b"ORC"
    if not data.head.startswith(magic):
        raise _Broken("wrong-container", f"does not begin like {source.format}")
    found = Measured()
    try:
        for found in measured(file.path, source.format, data.limits.line):
            _refuse_bomb(file, found, data.limits)
        shape = digest(shape_of(file.path, source.format))
    except Unsupported as error:
        raise _Broken(error.reason, str(error)) from None
    except _Broken:
        raise
    except Exception as error:  # readers raise many types for a broken file
        raise _Broken(f"bad-{source.format}", f"{type(error).__name__}: {str(error)[:500]}") from error
    return {"records": found.rows, "raw_bytes": found.bytes, "shape": shape}


def _refuse_bomb(file: SourceFile, found: Measured, limits: Limits) -> None:
    if found.longest > limits.line:
        raise _Broken("record-too-long", f"holds a value of {found.longest} bytes; at most {limits.line}")
    if found.bytes > max(limits.unpacked, limits.times * file.size):
        raise _Broken("too-large", f"unpacks to more than {limits.times} times its size; deliver smaller files")
