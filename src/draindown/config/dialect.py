"""How the cells of a delimited record are written: as RFC 4180 says, or as one of its dialects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

BACKSLASH = "\\"
BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""The characters that are no part of a name at its ends."""


def header_cells(cells: Iterable[str | None]) -> list[str]:
    """Return the cells by which a header is known: without blanks around them, without empty ones
    at the end.
    """
    names = [(cell or "").strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    return names


@dataclass(frozen=True)
class Dialect:
    """The characters between, around and within cells.

    `quote`: None if cells are never quoted. `escape`: a backslash; None if a quote within a cell is
    doubled. `null`: what a cell without quotes is written as if it has no value.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str = ""

    @property
    def marks(self) -> list[str]:
        """The characters without which a record is only split at its delimiters."""
        return [mark for mark in (self.quote, self.escape) if mark is not None]

    def cell(self, *, possessive: bool = False) -> str:
        """Return the regular expression of one cell, with its quotes. A record is cells between
        delimiters.

        `possessive`: for Java, which otherwise recurses for each repetition of a group.
        """
        many = "*+" if possessive else "*"
        bare = f"[^{_class(self.delimiter, *self.marks)}\\r\\n]{many}"
        if self.escape and self.escape in self.null:
            bare = f"{re.escape(self.null)}|{bare}"
        return bare if self.quote is None else f"{self._quoted(self.quote, many)}|{bare}"

    def _quoted(self, quote: str, many: str) -> str:
        mark = re.escape(quote)
        plain = f"[^{_class(*self.marks)}]{many}"
        within = (
            mark + mark
            if self.escape is None
            else f"{re.escape(self.escape)}[{_class(*self.marks)}]"
        )
        return f"{mark}{plain}(?:{within}{plain}){many}{mark}"

    def cells(self, record: str) -> list[str | None] | None:
        """Return the cells of a record; None if it is none. A cell is None if it has no value."""
        mark = re.escape(self.delimiter)
        found = re.findall(f"{mark}({self.cell()})", self.delimiter + record)
        return (
            [self._value(cell) for cell in found] if self.delimiter.join(found) == record else None
        )

    def _value(self, cell: str) -> str | None:
        if self.quote is None or not cell.startswith(self.quote):
            return None if cell == self.null else cell
        inner = cell[1:-1]
        if self.escape is None:
            return inner.replace(self.quote * 2, self.quote)
        return re.sub(f"{re.escape(self.escape)}([{_class(*self.marks)}])", r"\1", inner)

    def open_quotes(self, text: bytes) -> bool:
        """Return whether lines hold an odd number of quotes that are not escaped: a cell may go on
        after them.
        """
        return self.quote is not None and bool(
            self.without_escapes(text).count(self.quote.encode()) & 1
        )

    def without_escapes(self, text: bytes) -> bytes:
        """Return lines without escaped quotes and escaped backslashes."""
        if self.quote is None or self.escape is None:
            return text
        escape = self.escape.encode()
        return text.replace(escape * 2, b"").replace(escape + self.quote.encode(), b"")


def _class(*marks: str) -> str:
    """Return characters as they are written within the brackets of a regular expression."""
    return "".join(map(re.escape, marks))
