"""Split a JSON document into its records, exactly as they are written, in memory of one record.

A document is one array, whose items are the records, or objects one after the other, each over as
many lines as it likes. What a record holds is not judged here: its end is where its brackets close.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from draindown.base.formatting import count
from draindown.sources.files.container import Broken

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\r\n]*")
_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(")?|[\[\]{},]', re.DOTALL)
_FLAT = re.compile(rb'\{[^{}\[\]"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^{}\[\]"]*)*\}', re.DOTALL)
"""An object that holds no other and no array: most records are one, and are found at the speed of
C.
"""
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
_QUOTE, _COMMA, _ARRAY, _OBJECT, _END = b'",[{]'
_SHOWN = 20


def records(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield the records of a document, of `limit` bytes at most. Raises Broken."""
    document = _Document(limit)
    for chunk in chunks:
        yield from document.feed(chunk)
    document.finish()


class _Document:
    """The state of a document up to the bytes that were fed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer, self._at, self._begun = (
            b"",
            0,
            -1,
        )  # where the next byte and the record's first one are
        self._open = bytearray()  # the closing bracket of each one that is open within the record
        self._in_text = False
        self._in_array: bool | None = None  # None: nothing but blanks so far
        self._wanted = "a record"
        self._seen = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the records that end in the next bytes."""
        if self._in_array is None:
            chunk, self._buffer = self._buffer + chunk, b""
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._buffer = chunk
                return
            chunk = chunk.removeprefix(_BOM) if not self._at else chunk
        self._buffer += chunk
        while (found := self._step()) is not None:
            if found:
                self._seen += 1
                yield found
        kept = self._at if self._begun < 0 else self._begun
        self._buffer, self._at = self._buffer[kept:], self._at - kept
        self._begun = -1 if self._begun < 0 else 0
        if self._begun == 0:
            self._refuse_long(len(self._buffer))

    def finish(self) -> None:
        """Refuse a document that is not complete."""
        if self._begun >= 0 or (self._in_array and self._wanted != "nothing"):
            raise Broken("truncated", f"ends in the middle, after {count(self._seen, 'record')}")
        if self._buffer.strip(b" \t\r\n") not in (b"", _BOM):
            raise self._broken(0)

    def _step(self) -> bytes | None:
        """Take the next token. Return a record that it ends, b"" if it ends none, None if more
        bytes are needed.
        """
        if self._in_text:
            return self._text()
        return self._between() if self._begun < 0 else self._within()

    def _text(self) -> bytes | None:
        found = _TEXT.match(self._buffer, self._at)
        assert found is not None
        self._at = found.end()
        if self._buffer[self._at : self._at + 1] != b'"':
            return None
        self._at, self._in_text = self._at + 1, False
        return b""

    def _between(self) -> bytes | None:
        """Go on to the next record."""
        found = _SPACE.match(self._buffer, self._at)
        assert found is not None
        self._at = found.end()
        if self._at == len(self._buffer):
            return None
        byte = self._buffer[self._at]
        if self._in_array is None and byte in (_ARRAY, _OBJECT):
            self._in_array = byte == _ARRAY
            self._wanted = "a record or the end" if self._in_array else "a record"
            self._at += self._in_array
        elif self._in_array and byte == _END and self._wanted in ("a record or the end", "a comma"):
            self._at, self._wanted = self._at + 1, "nothing"
        elif self._in_array and byte == _COMMA and self._wanted == "a comma":
            self._at, self._wanted = self._at + 1, "a record"
        elif not self._may_begin(byte):
            raise self._broken(self._at)
        else:
            self._begun = self._at
            if flat := _FLAT.match(self._buffer, self._at):
                self._at = flat.end()
                return self._ended(flat.end())
        return b""

    def _may_begin(self, byte: int) -> bool:
        """Return whether a record may begin here, with this byte."""
        if self._in_array is None or "record" not in self._wanted:
            return False
        return byte not in b",]}" if self._in_array else byte == _OBJECT

    def _within(self) -> bytes | None:
        """Go on to the end of the record."""
        while found := _MARK.search(self._buffer, self._at):
            self._at, byte = found.end(), self._buffer[found.start()]
            if byte == _QUOTE:
                if found[1] is None:
                    self._in_text = True
                    return b""
            elif byte in _CLOSING:
                self._open.append(_CLOSING[byte])
            elif self._open:
                if byte != _COMMA and (record := self._closed(byte, found.start())):
                    return record
            elif byte in (_COMMA, _END):  # the end of a record that is no object and no array
                self._at = found.start()
                return self._ended(found.start())
            else:
                raise self._broken(found.start())
        self._at = len(self._buffer)
        return None

    def _closed(self, byte: int, at: int) -> bytes:
        if self._open.pop() != byte:
            raise self._broken(at)
        return b"" if self._open else self._ended(at + 1)

    def _ended(self, at: int) -> bytes:
        found, self._begun = self._buffer[self._begun : at].rstrip(b" \t\r\n"), -1
        self._wanted = "a comma" if self._in_array else "a record"
        self._refuse_long(len(found))
        return found

    def _refuse_long(self, size: int) -> None:
        if size > self._limit:
            raise Broken(
                "record-too-long", f"record {self._seen + 1} is longer than {self._limit} bytes"
            )

    def _broken(self, at: int) -> Broken:
        shown = self._buffer[at : at + _SHOWN].decode(errors="replace")
        wanted = self._wanted if self._begun < 0 else "another bracket"
        wanted = "an array or an object" if self._in_array is None else wanted
        return Broken(
            "bad-json", f"{shown!r} follows record {self._seen}, where {wanted} is expected"
        )
