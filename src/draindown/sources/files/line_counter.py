"""Count the lines of a byte stream exactly, at the speed of C, in constant memory.

A line ends at `\\n`, `\\r\\n` or `\\r`; a last line without an end counts. A line is blank if it
holds only ASCII white space. A byte order mark before the first line is not part of it.
"""

from __future__ import annotations

import codecs
import re

from draindown.config.dialect import Dialect

# begins with a literal byte, so that the search uses memchr
_BLANK = re.compile(rb"\n[\t\x0b\f ]*(?=\n)")
_FILLED = re.compile(rb"[^\t\n\x0b\f ][^\n]*")
_SPACE = b"\t\n\x0b\f\r "
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r)")
_HEADER_LIMIT = 1024 * 1024


class LineTooLong(Exception):
    """A line, without its end, exceeds the limit. `line` counts from 1."""

    def __init__(self, line: int, limit: int) -> None:
        super().__init__(f"line {line} is longer than {limit} bytes")
        self.line = line


class LineCounter:
    """Call `feed` with chunks in order, then `finish`. After that the counts are exact.

    Attributes:
        lines: all lines, blank ones included.
        blank: lines that are empty or hold only white space.
        bytes: all bytes fed.
        bom: whether the first three bytes are a UTF-8 byte order mark.
        multiline: with `dialect`, whether a line holds an odd number of quotes: a record may span
        lines. header: with `header`, the first record that isn't blank, without its end; None if
        there is none.
    """

    def __init__(self, *, limit: int, dialect: Dialect | None = None, header: bool = False) -> None:
        self.lines = self.blank = self.bytes = 0
        self.bom = self.multiline = False
        self.header: bytes | None = None
        self._limit = limit
        self._dialect = dialect
        self._quote = dialect.quote.encode() if dialect and dialect.quote else None
        self._wants_header = header
        self._after_header = b""
        self._start: bytes | None = (
            b""  # first bytes, until there are enough to detect a byte order mark
        )
        self._open: list[bytes] = []  # pieces of the unfinished line
        self._open_size = 0
        self._held = b""  # a final `\r`, which may be half of `\r\n`

    def feed(self, chunk: bytes) -> None:
        """Count the next bytes. Raises LineTooLong once the unfinished line exceeds the limit."""
        self.bytes += len(chunk)
        if self._start is not None:
            chunk = self._begin(self._start + chunk)
        if not chunk:
            return
        chunk, self._held = self._held + chunk, b""
        if chunk.endswith(b"\r"):
            chunk, self._held = chunk[:-1], b"\r"
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            self._count(b"".join((*self._open, chunk[:end])))
            self._open, self._open_size = [], 0
        self._open.append(chunk[end:])
        self._open_size += len(chunk) - end
        if self._open_size > self._limit:
            raise LineTooLong(self.lines + 1, self._limit)

    def finish(self) -> None:
        """Count the last line, at the end of the input."""
        rest = b"".join((self._start or b"", *self._open, self._held))
        self._start, self._open, self._open_size, self._held = None, [], 0, b""
        if rest:
            self._count(rest if rest.endswith((b"\n", b"\r")) else rest + b"\n")

    def _begin(self, first: bytes) -> bytes:
        if len(first) < len(codecs.BOM_UTF8):
            self._start = first
            return b""
        self._start = None
        self.bom = first.startswith(codecs.BOM_UTF8)
        return first[len(codecs.BOM_UTF8) :] if self.bom else first

    def _count(self, block: bytes) -> None:
        """Count a block of whole lines."""
        if self._wants_header:
            self._look_for_header(block)
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = block.count(b"\n")
        self.lines += lines
        # count the rarer kind, so that a file of blank lines takes no longer than others
        mostly_blank = lines * 2 > len(block)
        if mostly_blank:
            self.blank += lines - len(_FILLED.findall(block))
        else:
            self.blank += len(_BLANK.findall(b"\n" + block))
        if self._dialect and self._quote and not self.multiline and self._quote in block:
            quote = self._quote
            bare = self._dialect.without_escapes(block)
            self.multiline = any(line.count(quote) % 2 == 1 for line in bare.split(b"\n"))

    def _look_for_header(self, block: bytes) -> None:
        for line, end in _LINE.findall(block):
            if self.header is None and not line.strip(_SPACE):
                continue
            self.header = line if self.header is None else self.header + self._after_header + line
            self._after_header = end  # part of the header if a quoted name goes on after it
            is_open = self._dialect is not None and self._dialect.open_quotes(self.header)
            if not is_open or len(self.header) > _HEADER_LIMIT:
                self._wants_header = False
                return
