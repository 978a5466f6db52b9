"""The audit's reader of raw files: plain Python, independent of the drain.

A line ends at \\n, \\r\\n or \\r. A record's position is the number of its line in the file, from 1; the number of its
row in a columnar file.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from draindown.audit import written
from draindown.spec.models import FlowSpec
from draindown.spec.source import SourceSpec

CHUNK = 8 * 1024 * 1024
_TOKEN = re.compile(rb'"(?:[^"\\]+|\\.)*"|[\[\]{},]', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_OPENERS: tuple[tuple[bytes, Any], ...] = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))


# a cell may be as long as a record, which the spec bounds by `max_record_bytes`; Python's default is 128 KiB
csv.field_size_limit(2**31 - 1)


@dataclass(frozen=True)
class RawRecord:
    """One line of a file as bytes, without its line end; in multi-line CSV one record, which may span lines."""

    position: int
    raw: bytes


def sha256(path: str) -> str:
    """Return the SHA-256 of the file's bytes, not decompressed, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_raw(path: str) -> IO[bytes]:
    """Open a file and decompress it. The format is told by its first bytes, not by its name."""
    with Path(path).open("rb") as file:
        magic = file.read(8)
    for start, opener in _OPENERS:
        if magic.startswith(start):
            opened: IO[bytes] = opener(path, "rb")
            return opened
    return Path(path).open("rb")


def lines(stream: IO[bytes], chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of a stream without their line ends. `chunk`: bytes per read; a line may span chunks."""
    rest = stream.read(len(_BOM)).removeprefix(_BOM)
    while data := stream.read(chunk):
        parts = (rest + data).splitlines(keepends=True)
        # the last part is incomplete unless it ends with \n: a final \r may be the first half of \r\n
        rest = b"" if parts[-1].endswith(b"\n") else parts.pop()
        for part in parts:
            yield part.rstrip(b"\r\n")
    if rest:
        yield from rest.splitlines()


class TextFile:
    """The records of a text file, blank ones included.

    After one iteration `lines` and `blank` hold the number of physical lines and of blank ones. With a `source`, a line
    end inside a quoted cell belongs to the record.
    """

    def __init__(self, path: str, *, source: SourceSpec | None = None) -> None:
        self.lines = self.blank = 0
        self._path = path
        self._quotes = _Quotes(source.delimiter, source.max_record_bytes) if source else None

    def __iter__(self) -> Iterator[RawRecord]:
        with open_raw(self._path) as stream:
            physical = self._counted(lines(stream))
            for position, raw in enumerate(self._quotes.records(physical) if self._quotes else physical, 1):
                yield RawRecord(position, raw)

    def _counted(self, physical: Iterator[bytes]) -> Iterator[bytes]:
        for line in physical:
            self.lines += 1
            self.blank += not line.strip()
            yield line


class DocumentFile:
    """The records of a JSON file that is one array, or objects over several lines. A plain file is mapped, not read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[RawRecord]:
        if not Path(self._path).stat().st_size:
            return
        with open_raw(self._path) as stream:
            if isinstance(stream, io.BufferedReader):
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    yield from _items(text)
            else:
                yield from _items(stream.read())


def _items(text: bytes | mmap.mmap) -> Iterator[RawRecord]:
    """Yield the items of an array, or the objects: each ends where as many brackets were closed as were opened."""
    depth = at = position = 0
    outer = 1 if re.compile(rb"(?:\xef\xbb\xbf)?\s*\[").match(text) else 0
    begun: int | None = None
    for token in _TOKEN.finditer(text):
        kind = token.group()[:1]
        depth += 1 if kind in b"[{" else -1 if kind in b"]}" else 0
        over = (kind == b"," and depth == 1) or (kind == b"]" and depth == 0) if outer else kind == b"}" and depth == 0
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
    """Joins physical lines to CSV records. A quote opens a cell at its start and closes it at its end."""

    def __init__(self, delimiter: str, limit: int) -> None:
        mark = re.escape(delimiter.encode())
        # no possessive quantifiers: Python up to 3.11.4 matches them wrongly (python/cpython#106052)
        cell = rb'(?:"[^"]*(?:""[^"]*)*"|(?!")[^' + mark + rb"\n]*)"
        self._whole = re.compile(cell + rb"(?:" + mark + cell + rb")*")
        self._limit = limit

    def records(self, physical: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the records. A line whose quote does not close within the limit is a record of its own."""
        ahead: deque[bytes] = deque()
        while (line := ahead.popleft() if ahead else next(physical, None)) is not None:
            taken = 0 if self._whole.fullmatch(line) or line.count(b'"') % 2 == 0 else self._span(line, ahead, physical)
            yield b"\n".join([line, *(ahead.popleft() for _ in range(taken))])

    def _span(self, line: bytes, ahead: deque[bytes], physical: Iterator[bytes]) -> int:
        """Return how many of the next lines belong to the record of `line`; lines read ahead stay in `ahead`."""
        text, at = line, 0
        while len(text) <= self._limit:
            if at == len(ahead):
                more = next(physical, None)
                if more is None:
                    return 0
                ahead.append(more)
            text += b"\n" + ahead[at]
            at += 1
            if b'"' in ahead[at - 1] and self._whole.fullmatch(text):
                return at
        return 0


Fields = Callable[[bytes], list[str | None]]
"""Reads the fields of one raw record."""


class FieldReader:
    """Reads columns of a record as text that casts to their types; None if a field is missing or null."""

    def __init__(self, flow: FlowSpec, names: Sequence[str], header: Sequence[str]) -> None:
        fields = flow.fields
        self._fields = _FIELDS[flow.source.format](flow.source, [fields[name] for name in names], header)
        self._forms = {at: form for at, name in enumerate(names) if (form := written.reader_of(flow, name))}

    def __call__(self, raw: bytes) -> list[str | None]:
        """The columns. Raises ValueError where the record, or the form of a text, can't be read."""
        found = self._fields(raw)
        for at, form in self._forms.items():
            text = found[at]
            if text is not None and not isinstance(text, Number):
                found[at] = form(text)
        return found


class Number(str):
    """The text of a number that the record doesn't say as text."""


def _of_json(_: SourceSpec, names: Sequence[str], __: Sequence[str]) -> Fields:
    return lambda raw: json_fields(raw, names)


def _of_csv(source: SourceSpec, names: Sequence[str], header: Sequence[str]) -> Fields:
    at = [header.index(name) if name in header else -1 for name in names]

    def fields(raw: bytes) -> list[str | None]:
        cells = cells_of(raw, source.delimiter)
        return [cells[i] if 0 <= i < len(cells) else None for i in at]

    return fields


def _of_text(_: SourceSpec, names: Sequence[str], __: Sequence[str]) -> Fields:
    return lambda raw: [raw.decode("utf-8") for _ in names]


_FIELDS: dict[str, Callable[[SourceSpec, Sequence[str], Sequence[str]], Fields]] = {
    "json": _of_json,
    "csv": _of_csv,
    "text": _of_text,
}


def json_fields(raw: bytes | str, names: Sequence[str]) -> list[str | None]:
    """Return named fields of a JSON object as text; None if a field is missing or null.

    Raises ValueError if the record is not an object, or if a field is an object or array.
    """
    found = json.loads(raw, strict=False, parse_float=Number, parse_int=Number)
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return [_as_text(name, found.get(name)) for name in names]


def cells_of(raw: bytes, delimiter: str) -> list[str]:
    """Return the cells of one CSV record. Raises ValueError if it is not UTF-8 or not CSV."""
    text = raw.decode("utf-8")
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _as_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    raise ValueError(f"{name} is {'an object' if isinstance(value, dict) else 'an array'}, which is no plain value")
