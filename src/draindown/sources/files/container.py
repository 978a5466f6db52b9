"""The bytes of a file on disk and, of a text file, what they unpack to, within limits."""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

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
# endings by which Hadoop picks a codec on its own
_OTHER_CODECS = (".bz2", ".deflate", ".snappy", ".lz4", ".zst", ".lzo", ".xz", ".passthrough")


class Broken(Exception):
    """What makes a file unreadable as a whole: (reason, detail). `reason` is a stable name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may hold and how it is read, in bytes.

    `line`: of one line or value, beyond which its file is parked whole: each step of a plan keeps a
    row of its own, and a heap of 2 GB didn't hold two of 60 MB. `unpacked`: of a compressed file,
    which can't be split, so that one task would have to read it all. `times`: its size that a file
    may unpack to, once past `blown_up` (text packs 5 to 50 times, blank lines 1,000). `chunk`: read
    at once, after `head`.
    """

    line: int = 32 * 1024**2
    unpacked: int = 4 * 1024**3
    times: int = 250
    blown_up: int = 256 * 1024**2
    chunk: int = 1024 * 1024
    head: int = 64 * 1024


LIMITS = Limits()


class FileBytes:
    """The bytes on disk, hashed as they pass."""

    def __init__(self, handle: BinaryIO, limits: Limits) -> None:
        self.handle, self.limits = handle, limits
        self.head = handle.read(limits.head)
        self._hash = hashlib.sha256(self.head)

    def chunks(self) -> Iterator[bytes]:
        """All bytes, `limits.chunk` at a time after the head."""
        yield self.head
        while chunk := self.handle.read(self.limits.chunk):
            self._hash.update(chunk)
            yield chunk

    def sha256(self) -> str:
        """Of the whole file, whatever was read so far."""
        while chunk := self.handle.read(self.limits.chunk):
            self._hash.update(chunk)
        return self._hash.hexdigest()


def unpacked(path: str, size: int, data: FileBytes) -> Iterator[bytes]:
    """The content of a text file of `size` bytes, unpacked if its name ends in .gz.

    Raises Broken if name and content disagree, or the content is damaged or beyond the limits.
    """
    named = path.endswith(".gz")
    if path.endswith(_OTHER_CODECS):
        ending = path[path.rindex(".") :]
        raise Broken("unsupported-compression", f"ends in {ending}; deliver it plain or as .gz")
    if named and data.head and not data.head.startswith(_GZIP):
        raise Broken("not-gzip", "is named .gz, but does not begin like gzip")
    if not named and data.head.startswith(_GZIP):
        raise Broken(
            "gzip-not-named",
            "begins like gzip, but is not named .gz, by which the engine would know",
        )
    return _gunzip(data, size) if named else data.chunks()


def _gunzip(data: FileBytes, size: int) -> Iterator[bytes]:
    """The content of all members, at most a chunk at a time, however much a chunk unpacks to."""
    member, total, limits = None, 0, data.limits
    for packed in data.chunks():
        while packed:
            if member is None:
                if total and not _GZIP.startswith(packed[:2]):
                    raise Broken(
                        "trailing-garbage",
                        f"has bytes that are not gzip after {total} unpacked bytes",
                    )
                member = zlib.decompressobj(31)
            try:
                piece = member.decompress(packed, limits.chunk)
            except zlib.error as error:
                raise Broken(
                    "corrupt-gzip", f"is damaged after {total} unpacked bytes: {error}"
                ) from None
            total += len(piece)
            if total > limits.unpacked:
                raise Broken(
                    "too-large",
                    f"unpacks to more than {limits.unpacked} bytes; deliver smaller files",
                )
            if total > max(limits.blown_up, limits.times * size):
                raise Broken(
                    "too-large",
                    f"unpacks to more than {limits.times} times its size; deliver it plain",
                )
            yield piece
            packed = member.unconsumed_tail
            if member.eof:
                packed, member = member.unused_data, None
    if member is not None:
        raise Broken("truncated", f"ends in the middle, after {total} unpacked bytes")


def refuse_binary(start: bytes, format: str) -> None:
    """Raise Broken if the content, which begins with `start`, is no UTF-8 text but a container that
    is known.
    """
    for magic, name in _WIDE.items():
        if start.startswith(magic):
            raise Broken("not-utf-8", f"begins like {name}: iconv -f {name} -t UTF-8 FILE")
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            raise Broken("wrong-container", f"begins like {name}, not like {format}")
    if start.startswith(b"ORC") and b"\x00" in start[:64]:
        raise Broken("wrong-container", f"begins like ORC, not like {format}")
    if start[257:262] == b"ustar":
        raise Broken("wrong-container", f"is a tar archive, not {format}")
