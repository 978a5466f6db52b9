"""The lines of a run card: a label, and text beside it that fits the card's width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100
"""Characters of a line, but for commands and words that are longer."""
LABEL = 9
ROOM = WIDTH - LABEL - 1
_MORE = " ..."


def pieces(text: str, most: int | None = None, *, indent: str = "", width: int = ROOM) -> list[str]:
    """`text` in lines of at most `width`, parted at blanks only; whole words are left out after the `most`th line."""
    lines = _wrapped(text, width, indent)
    if most is None or len(lines) <= most:
        return lines
    # not by textwrap's own max_lines, which takes a word that passes the width for one that does not fit
    lines = _wrapped(text, width - len(_MORE), indent)[:most]
    return [*lines[:-1], lines[-1] + _MORE]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def labelled(label: str, lines: Sequence[str]) -> list[str]:
    """The lines beside a label, which stands before the first; those that are too long are wrapped."""
    fitting = [piece for line in lines for piece in (pieces(line, indent="  ") if len(line) > ROOM else [line])]
    return [f"{label if not i else '':<{LABEL}} {line}" for i, line in enumerate(fitting)]
