"""What people see, as data: the numbers of a run card, and the page's ledger, summary and runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from tests.e2e.evening.facts import APPLIED, FATES

MARKS = (
    "AT WORK",
    "DIED",
    "FAILED",
    "UNFINISHED",
    "OVER LIMIT",
    "NOT CHECKED",
    "STOPPED EARLY",
    "IDLE",
    "OK",
)
_LAW = re.compile(r" records +([\d,]+) read = ((?:[\d,]+ \w+(?: \+ )?)+)")
_APPLIED = re.compile(r" applied +([\d,]+) inserted, ([\d,]+) updated, ([\d,]+) deleted")
_TOMBSTONED = re.compile(r" deleted, ([\d,]+) deletes? of keys that were not in the table")
_MOVED = re.compile(r"([\d,]+) files?, ([\d,]+) records? -> ([\d,]+) applied")
_MORE = re.compile(r"this run has ([\d,]+) batch(?:es)? by other starts: (.*? applied)")
_PUBLISHED = re.compile(r"published version (\d+)|version (\d+) stays published")


def number(text: str) -> int:
    """A count as people read it."""
    return int(text.replace(",", ""))


@dataclass(frozen=True)
class Card:
    """A run card. `rows`: fates, `records` and what applied consists of, of the start that it
    shows.

    `moved`: files, records, applied of its first line; `others`: batches, files, records, applied
    by other starts.
    """

    mark: str
    headline: str
    rows: dict[str, int]
    adds_up: bool
    moved: tuple[int, ...] | None
    others: tuple[int, ...] | None
    published: int | None
    text: str


def card(text: str) -> Card | None:
    """The last card in a text; None where there is none."""
    lines = text.splitlines()
    starts = [
        at for at, line in enumerate(lines) if line.startswith(tuple(f"{mark}  " for mark in MARKS))
    ]
    if not starts:
        return None
    shown = "\n".join(lines[starts[-1] :])
    flat = " ".join(shown.split())
    found = _rows(flat)
    headline = flat.partition(" run ")[0]
    more, moved = _MORE.search(flat), _MOVED.search(headline)
    return Card(
        mark=next(mark for mark in MARKS if flat.startswith(mark)),
        headline=headline,
        rows=found,
        adds_up="quarantined ✓" in flat and "DOES NOT ADD UP" not in flat,
        moved=None
        if moved is None or "before that" in headline
        else tuple(map(number, moved.groups())),
        others=None if more is None else (number(more[1]), *map(number, _moved(more[2]))),
        published=int("".join(found_[0])) if (found_ := _PUBLISHED.findall(flat)) else None,
        text=shown,
    )


def _rows(flat: str) -> dict[str, int]:
    """Fates, `records` and what applied consists of; none of a card without a batch."""
    law, applied = _LAW.search(flat), _APPLIED.search(flat)
    if law is None or applied is None:
        return {}
    fates = {name: number(value) for value, name in re.findall(r"([\d,]+) (\w+)", law[2])}
    beside = _TOMBSTONED.search(flat)
    done = (*map(number, applied.groups()), number(beside[1]) if beside else 0)
    return (
        dict.fromkeys(FATES, 0)
        | fates
        | {"records": number(law[1])}
        | dict(zip(APPLIED, done, strict=True))
    )


def _moved(text: str) -> tuple[str, ...]:
    found = _MOVED.search(text)
    assert found, text
    return found.groups()


@dataclass
class Page(HTMLParser):
    """The page of one pipeline with one flow. `runs`: headline, whether it is marked as bad, and
    card, by run id.
    """

    text: str
    ledger: list[dict[str, str]] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)
    runs: dict[str, tuple[str, bool, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self._cells, self._rows, self._data, self._bad, self._parts = (
            list[str](),
            list[list[str]](),
            "",
            False,
            [],
        )
        self._parts: list[str]
        self._in_ledger = False
        self.feed(self.text)
        names = list((self._rows or [[]])[0])
        self.ledger = [dict(zip(names, cells, strict=True)) for cells in self._rows[1:]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a cell, a row, a run or a table."""
        classes = dict(attrs).get("class") or ""
        if tag == "table":
            self._in_ledger = classes == "ledger"
        if tag == "tr":
            self._cells = []
        if tag == "details":
            self._parts, self._bad = [], False
        if tag == "span":
            self._bad |= bool({"failed", "over-limit", "died", "unfinished"} & set(classes.split()))
        if tag in ("td", "th", "span", "pre"):
            self._data = ""

    def handle_data(self, data: str) -> None:
        """Text of whatever was begun last."""
        self._data += data

    def handle_endtag(self, tag: str) -> None:
        """End a cell, a row, or a run."""
        if tag in ("td", "th"):
            self._cells.append(self._data.strip())
        if tag == "tr" and self._in_ledger:
            self._rows.append(self._cells)
        elif tag == "tr" and "/" in (self._cells or [""])[0]:
            self.summary = self._cells
        if tag in ("span", "pre"):
            self._parts.append(self._data)
        if tag == "details" and len(self._parts) == 5:
            mark, _, what, run_id, shown = self._parts
            self.runs[run_id] = (
                " ".join(f"{mark} {self.summary[0]} {what}".split()),
                self._bad,
                shown,
            )


def numbers(row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Some columns of a row of the page's ledger, as it would show them."""
    return tuple(
        f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in names
    )
