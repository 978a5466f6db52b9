"""Lines of delimited files at random, and what Python's strict reader reads of them."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from typing import Any

from draindown.config.dialect import Dialect
from draindown.config.sources import FilesSource

SOURCES = {
    "rfc": FilesSource(files="x", format="csv"),
    "backslash": FilesSource(files="x", format="csv", escape="\\"),
    "single": FilesSource(files="x", format="csv", quote="'", delimiter="|", null_marker="NULL"),
    "mysql": FilesSource(files="x", format="csv", escape="\\", delimiter="\t", null_marker="\\N"),
    "wide": FilesSource(files="x", format="csv", delimiter="§"),
    "none": FilesSource(files="x", format="csv", quote="none", null_marker="-"),
}


def random_lines(seed: int, number: int, dialect: Dialect, *more: str) -> Iterator[str]:
    chance = random.Random(seed)
    quote = dialect.quote or '"'
    parts = [
        quote,
        quote,
        quote * 2,
        dialect.delimiter,
        dialect.delimiter,
        "a",
        "é",
        " ",
        "\\",
        "\\" + quote,
        "\\\\",
    ]
    parts += [dialect.null or "x", "\x00", "\ufeff", *more]
    for _ in range(number):
        if chance.random() < 0.4:  # a record, nearly
            cells = ["".join(chance.choices(parts, k=chance.randrange(4))) for _ in range(3)]
            doubled = (f"{quote}{cell.replace(quote, quote * 2)}{quote}" for cell in cells)
            yield dialect.delimiter.join(
                chance.choice(two) for two in zip(cells, doubled, strict=True)
            )
        else:
            yield "".join(chance.choices(parts, k=chance.randrange(14)))


def strict(line: str, dialect: Dialect) -> list[str] | None:
    """What Python's strict reader reads; None if it reads none, or more than one record."""
    marks: dict[str, Any] = (
        {"quoting": csv.QUOTE_NONE} if dialect.quote is None else {"quotechar": dialect.quote}
    )
    if dialect.escape:
        marks |= {"escapechar": dialect.escape, "doublequote": False}
    text = io.StringIO(line, newline="")
    try:
        rows = list(csv.reader(text, delimiter=dialect.delimiter, strict=True, **marks))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None
