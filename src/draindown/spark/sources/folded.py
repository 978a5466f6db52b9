"""Split the lines of a delimited file into records where quoted cells hold line ends, which are
kept as they are.
"""

from __future__ import annotations

import gzip
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from draindown.config.dialect import Dialect

_ENDS = "\r\n"
_RFC = Dialect()


def lines_of(path: str) -> Iterator[str]:
    """Yield the lines of a file with their ends, decoded as Latin-1 so that every byte survives.

    A UTF-8 byte order mark is removed.
    """
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="latin-1", newline="") as text:
        for number, line in enumerate(text):
            yield line if number else line.removeprefix("\xef\xbb\xbf")


def split_records(
    lines: Iterable[str], dialect: Dialect = _RFC, limit: int = 8 * 1024**2
) -> Iterator[str]:
    """Yield records without their line end, from lines with theirs, decoded as Latin-1.

    If an opening quote is not properly closed within `limit` characters, its line becomes a record
    of its own, and the lines after it are split as usual.
    """
    waiting: deque[str] = deque()
    source, scanner = iter(lines), _Scanner(dialect)

    def take() -> str | None:
        return waiting.popleft() if waiting else next(source, None)

    while (line := take()) is not None:
        if not scanner.may_open(line) or not scanner.is_open_after(line, False):
            yield line.rstrip(_ENDS)
            continue
        held, closed = _until_closed(line, take, scanner, limit)
        if closed:
            yield "".join(held).rstrip(_ENDS)
        else:
            waiting.extendleft(reversed(held[1:]))
            yield line.rstrip(_ENDS)


def _until_closed(
    line: str, take: Callable[[], str | None], scanner: _Scanner, limit: int
) -> tuple[list[str], bool]:
    """Return the line plus the lines up to the one that closes its quote, and whether the quote
    closes properly.
    """
    held, size = [line], len(line)
    while size <= limit and (more := take()) is not None:
        held.append(more)
        size += len(more)
        after = scanner.is_open_after(more, True)
        if not after:
            return held, after is False
    return held, False


class _Scanner:
    """Finds whether a quoted cell goes on after a line."""

    def __init__(self, dialect: Dialect) -> None:
        assert dialect.quote is not None, "without quotes no record spans lines"
        self._dialect, self._quote, self._escape = dialect, dialect.quote, dialect.escape
        self._delimiter = dialect.delimiter.encode().decode("latin-1")

    def may_open(self, line: str) -> bool:
        """Return whether the line has an odd number of quotes."""
        return self._quote in line and self._dialect.open_quotes(line.encode("latin-1"))

    def is_open_after(self, line: str, inside: bool) -> bool | None:
        """Return whether a quoted cell is open at the line's end; None if text follows a closing
        quote in its cell.
        """
        at, end = 0, len(line.rstrip(_ENDS))
        if not inside and line.startswith(self._quote):
            at, inside = 1, True
        while True:
            if inside:
                at = self._after_closing(line, at)
                if at < 0:
                    return True
                inside = False
                if at < end and not line.startswith(self._delimiter, at):
                    return None
            else:
                at = line.find(self._delimiter, at)
            if at < 0 or at >= end:
                return False
            at += len(self._delimiter)
            inside = line.startswith(self._quote, at)
            at += inside

    def _after_closing(self, line: str, at: int) -> int:
        """Return the place after the quote that closes a cell of which the text goes on at `at`; -1
        if none does.
        """
        while (found := line.find(self._quote, at)) >= 0:
            escaped = -1 if self._escape is None else line.find(self._escape, at, found)
            if escaped >= 0:
                at = escaped + 2
            elif self._escape is None and line.startswith(self._quote, found + 1):
                at = found + 2
            else:
                return found + 1
        return -1
