"""The audit's reader of raw files: plain Python, independent of the drain.

A line ends at \\n, \\r\\n or \\r. A record's position is the number of its line in the file, from
1; the number of its row in a columnar file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from draindown.audit import written
from draindown.audit.values import Number
from draindown.config.landing import FlowSpec
from draindown.config.source import SourceSpec
from draindown.sources import objects

CHUNK = 8 * 1024 * 1024
_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*"|[\[\]{},]', re.DOTALL)
_BOM, _ENDS = b"\xef\xbb\xbf", b"\r\n"
_OPENERS: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)


@dataclass(frozen=True)
class RawRecord:
    """One line of a file as bytes, without its line end; in multi-line CSV one record, which may
    span lines.
    """

    position: int
    raw: bytes


def open_raw(path: str) -> IO[bytes]:
    """Open a file and decompress it. The format is told by its first bytes, not by its name."""
    with objects.opened(path) as file:
        magic = file.read(8)
    for start, opener in _OPENERS:
        if magic.startswith(start):
            opened: IO[bytes] = opener(path, "rb")
            return opened
    return objects.opened(path)


def lines(stream: IO[bytes], chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of a stream without their line ends. `chunk`: bytes per read; a line may span
    chunks.
    """
    return (line.rstrip(_ENDS) for line in _whole_lines(stream, chunk))


def _whole_lines(stream: IO[bytes], chunk: int = CHUNK) -> Iterator[bytes]:
    rest = stream.read(len(_BOM)).removeprefix(_BOM)
    while data := stream.read(chunk):
        parts = (rest + data).splitlines(keepends=True)
        # the last part is incomplete unless it ends with \n: a final \r may be the first half of
        # \r\n
        rest = b"" if parts[-1].endswith(b"\n") else parts.pop()
        yield from parts
    if rest:
        yield from rest.splitlines(keepends=True)


class TextFile:
    """The records of a text file, blank ones included.

    After one iteration `lines` and `blank` hold the number of physical lines and of blank ones.
    With a `source`, a line end inside a quoted cell belongs to the record.
    """

    def __init__(self, path: str, *, source: SourceSpec | None = None) -> None:
        self.lines = self.blank = 0
        self._path = path
        self._quotes = _Quotes(source) if source and source.quote != "none" else None

    def __iter__(self) -> Iterator[RawRecord]:
        with open_raw(self._path) as stream:
            physical = self._counted(_whole_lines(stream))
            for position, raw in enumerate(
                self._quotes.records(physical) if self._quotes else physical, 1
            ):
                yield RawRecord(position, raw.rstrip(_ENDS))

    def _counted(self, physical: Iterator[bytes]) -> Iterator[bytes]:
        for line in physical:
            self.lines += 1
            self.blank += not line.strip()
            yield line


class DocumentFile:
    """The records of a JSON file that is one array, or objects over several lines. A plain file is
    mapped, not read.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[RawRecord]:
        if not objects.look(self._path).size:
            return
        with open_raw(self._path) as stream:
            if isinstance(stream, io.BufferedReader):
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    yield from _items(text)
            else:
                yield from _items(stream.read())


def _items(text: bytes | mmap.mmap) -> Iterator[RawRecord]:
    """Yield the items of an array, or the objects: each ends where as many brackets were closed as
    were opened.
    """
    depth = at = position = 0
    outer = 1 if re.compile(rb"(?:\xef\xbb\xbf)?\s*\[").match(text) else 0
    begun: int | None = None
    for token in _TOKEN.finditer(text):
        kind = token.group()[:1]
        depth += 1 if kind in b"[{" else -1 if kind in b"]}" else 0
        over = (
            (kind == b"," and depth == 1) or (kind == b"]" and depth == 0)
            if outer
            else kind == b"}" and depth == 0
        )
        if outer and begun is None:
            begun, at = token.end(), token.end()
            continue
        if over:
            raw = text[at : token.start() if outer else token.end()].strip(b" \t\r\n")
            at = token.end()
            if raw.removeprefix(_BOM):
                position += 1
                yield RawRecord(position, raw.removeprefix(_BOM).lstrip(b" \t\r\n"))


class _Quotes:
    """Joins lines, with their ends, to CSV records. A quote opens a cell at its start and closes it
    at its end.
    """

    def __init__(self, source: SourceSpec) -> None:
        mark, quote = re.escape(source.delimiter.encode()), re.escape(source.quote.encode())
        # no possessive quantifiers: Python up to 3.11.4 matches them wrongly
        # (python/cpython#106052)
        within = rb"[^" + quote + rb"]*"
        inner = within + rb"(?:" + quote * 2 + within + rb")*"
        if source.escape:
            inner = rb"(?:[^\\" + quote + rb"]|\\.)*"
        cell = rb"(?:" + quote + inner + quote + rb"|(?!" + quote + rb")[^" + mark + rb"\r\n]*)"
        self._whole = re.compile(cell + rb"(?:" + mark + cell + rb")*(?:\r\n|\r|\n)?", re.DOTALL)
        self._quote, self._limit, self._escaped = (
            source.quote.encode(),
            source.max_record_bytes,
            bool(source.escape),
        )

    def records(self, physical: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the records. A line whose quote does not close within the limit is a record of its
        own.
        """
        ahead: deque[bytes] = deque()
        while (line := ahead.popleft() if ahead else next(physical, None)) is not None:
            whole = self._quote not in line or self._whole.fullmatch(line) or self._is_even(line)
            taken = 0 if whole else self._span(line, ahead, physical)
            yield b"".join([line, *(ahead.popleft() for _ in range(taken))])

    def _is_even(self, line: bytes) -> bool:
        """Whether no quote is left open, in a line that need not be a record."""
        bare = (
            re.sub(rb"\\[\\" + re.escape(self._quote) + rb"]", b"", line) if self._escaped else line
        )
        return bare.count(self._quote) % 2 == 0

    def _span(self, line: bytes, ahead: deque[bytes], physical: Iterator[bytes]) -> int:
        """Return how many of the next lines belong to the record of `line`; lines read ahead stay
        in `ahead`.
        """
        text, at = line, 0
        while len(text) <= self._limit:
            if at == len(ahead):
                more = next(physical, None)
                if more is None:
                    return 0
                ahead.append(more)
            text += ahead[at]
            at += 1
            if self._quote in ahead[at - 1] and self._whole.fullmatch(text):
                return at
        return 0


Fields = Callable[[bytes], list[str | None]]
"""Reads the fields of one raw record."""


class FieldReader:
    """Reads columns of a record as text that casts to their types; None if a field is missing or
    null.

    `suspects` returns whether a record may be unreadable, from its bytes alone.
    """

    def __init__(self, flow: FlowSpec, names: Sequence[str], header: Sequence[str]) -> None:
        fields = [flow.fields[name] for name in names]
        self._fields, self.suspects = _FIELDS[flow.source.format](flow.source, fields, header)
        self._forms = {
            at: form for at, name in enumerate(names) if (form := written.reader_of(flow, name))
        }

    def __call__(self, raw: bytes) -> list[str | None]:
        """The columns. Raises ValueError where the record, or the form of a text, can't be read, or
        is not Unicode.
        """
        found = self._fields(raw)
        for at, form in self._forms.items():
            text = found[at]
            if text is not None and not isinstance(text, Number):
                found[at] = form(text)
        return found


_Reader = tuple[Fields, Callable[[bytes], bool]]


def _of_json(_: SourceSpec, names: Sequence[str], __: Sequence[str]) -> _Reader:
    return lambda raw: json_fields(raw, names), lambda raw: b"\\ud" in raw or b"\\uD" in raw


def _of_csv(source: SourceSpec, names: Sequence[str], header: Sequence[str]) -> _Reader:
    at = [header.index(name) if name in header else -1 for name in names]
    mark, width = source.delimiter.encode(), len(header)
    odd = [text.encode() for text in (source.quote, source.escape) if text]

    def fields(raw: bytes) -> list[str | None]:
        cells = cells_of(raw, source)
        if len(cells) < width or any(cells[width:]):
            raise ValueError(f"{len(cells)} cells under a header of {width}")
        return [cells[i] if i >= 0 else None for i in at]

    return fields, lambda raw: raw.count(mark) != width - 1 or any(one in raw for one in odd)


def _of_text(_: SourceSpec, names: Sequence[str], __: Sequence[str]) -> _Reader:
    return lambda raw: [raw.decode("utf-8")] * len(names), lambda raw: not raw.isascii()


_FIELDS: dict[str, Callable[[SourceSpec, Sequence[str], Sequence[str]], _Reader]] = {
    "json": _of_json,
    "csv": _of_csv,
    "text": _of_text,
}


def json_fields(raw: bytes | str, names: Sequence[str]) -> list[str | None]:
    """Return named fields of a JSON object as text; None if a field is missing or null.

    Raises ValueError if the record is not an object, if a field is an object or array, or if
    anything in the record is no Unicode text, such as half of a surrogate pair.
    """
    text = raw if isinstance(raw, str) else raw.decode("utf-8")
    found = json.loads(text, strict=False, parse_float=Number, parse_int=Number)
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    if "\\u" in text:
        # of half a pair: UnicodeEncodeError, a ValueError
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    return [_as_text(name, found.get(name)) for name in names]


def cells_of(raw: bytes, source: SourceSpec) -> list[str | None]:
    """Return the cells of one CSV record; None for a cell without a value. Raises ValueError if it
    is none.
    """
    text, mark = raw.decode("utf-8"), source.delimiter
    quote, null = "" if source.quote == "none" else source.quote, source.null_marker or ""
    cells: list[str | None] = []
    at = 0
    while True:
        if quote and text.startswith(quote, at):
            value, at = _quoted(text, at + 1, quote, source.escape)
            cells.append(value)
        else:
            end = text.find(mark, at)
            value, at = text[at : None if end < 0 else end], len(text) if end < 0 else end
            odd = [
                one
                for one in (quote, source.escape, "\r", "\n")
                if one and one in value and value != null
            ]
            if odd:
                raise ValueError(f"{odd[0]!r} in a cell without quotes")
            cells.append(None if value == null else value)
        if at == len(text):
            return cells
        if not text.startswith(mark, at):
            raise ValueError(f"text behind a closing quote, at {at}")
        at += len(mark)


def _quoted(text: str, at: int, quote: str, escape: str | None) -> tuple[str, int]:
    """Return the value of a quoted cell of which the text begins at `at`, and the place after its
    closing quote.
    """
    value: list[str] = []
    while (end := text.find(quote, at)) >= 0:
        back = text.find(escape, at, end) if escape else -1
        if back >= 0:
            if (escaped := text[back + 1]) not in (quote, escape):
                raise ValueError(f"{escape}{escaped} in a quoted cell")
            value += [text[at:back], escaped]
            at = back + 2
        elif not escape and text.startswith(quote, end + 1):
            value.append(text[at : end + 1])
            at = end + 2
        else:
            return "".join([*value, text[at:end]]), end + 1
    raise ValueError("a quote is not closed")


def _as_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    raise ValueError(
        f"{name} is {'an object' if isinstance(value, dict) else 'an array'}, which is no plain value"
    )
