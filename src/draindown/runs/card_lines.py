"""Lay out the lines of a run card: a label, and beside it text that is wrapped to the width of the
card.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from draindown.base.formatting import count

WIDTH = 110
"""Maximum length of a line, in characters. Commands and longer words exceed it."""
LABEL = 12
ROOM = WIDTH - LABEL - 1
_MORE = " ..."


def pieces(text: str, most: int | None = None, *, indent: str = "", width: int = ROOM) -> list[str]:
    """Wrap `text` at blanks into lines of at most `width` characters. With `most`, the result has
    at most that many.

    Words are never cut. Omitted text is marked with ` ...`.
    """
    lines = _wrapped(text, width, indent)
    if most is None or len(lines) <= most:
        return lines
    # textwrap's max_lines drops a word that is longer than the width
    lines = _wrapped(text, width - len(_MORE), indent)[:most]
    return [*lines[:-1], lines[-1] + _MORE]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def labelled(label: str, lines: Sequence[str]) -> list[str]:
    """Prefix the first line with the label and indent the others. Lines that are too long are
    wrapped.
    """
    fitting = [
        piece
        for line in lines
        for piece in (pieces(line, indent="  ") if len(line) > ROOM else [line])
    ]
    return [f"{label if not i else '':<{LABEL}} {line}" for i, line in enumerate(fitting)]


def law(
    sums: Mapping[str, int], whole: str, done: str, parts: Sequence[str], *, adds_up: bool
) -> str:
    """Return a sum as one line, with a check mark if it adds up: `9 read = 6 used + 3 unused  ✓`.

    `done`: the word for the whole. A part `late` is left out if there is none.
    """
    shown = [name for name in parts if name != "late" or sums.get(name)]
    told = " + ".join(f"{count(sums.get(name, 0))} {name}" for name in shown)
    return f"{count(sums.get(whole, 0))} {done} = {told}{'  ✓' if adds_up else ''}"
