"""Formatting of numbers, sizes, ages and untrusted text for terminals, task logs and files."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


# Unicode categories written as \xNN or \uNNNN: control, format (bidirectional marks hide text),
# surrogates, private use, unassigned, line and paragraph separators.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_QUOTED = re.compile("""'([^']*)'|"'\"""")  # of a word of `shlex.quote`, which writes ' as '"'"'


def count(number: int, noun: str = "", plural: str = "") -> str:
    """Format a number: `1,003,210`, or with a noun `1 file`, `2 files`."""
    text = f"{number:,}"
    return f"{text} {noun if number == 1 else plural or noun + 's'}" if noun else text


def size(number: float) -> str:
    """Format a number of bytes, rounded, in powers of 1024: `0 B`, `31.2 MB`."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return (
        f"{number:.0f} {_UNITS[unit]}"
        if unit == 0 or number >= 100
        else f"{number:.1f} {_UNITS[unit]}"
    )


def percent(share: float) -> str:
    """Format a share of 1: `100%`, `0.1%`. A share below 1 never rounds to 100%, one above 0 never
    to 0%.
    """
    if 0 < share < 0.0005:
        return "<0.1%"
    shown = f"{100 * share:.1f}".removesuffix(".0")
    return "99.9%" if shown == "100" and share < 1 else f"{shown}%"


def age(seconds: float) -> str:
    """Format seconds, rounded to two units: `0.4 s`, `48 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4
    h`.
    """
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    for width, name, below, below_name in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= width:
            rest = whole % width // below
            return f"{whole // width} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def printable(text: str, limit: int | None = None) -> str:
    """Return `text` on one line, control characters and escapes encoded, truncated to `limit`
    characters.
    """
    shown = "".join(_encoded(c) if _is_hidden(c) else c for c in text[: (limit or len(text)) + 1])
    if limit is not None and (len(shown) > limit or len(text) > limit):
        return shown[: max(limit - 3, 0)] + "..."
    return shown


def for_bash(command: str) -> str:
    """Return a command whose quoted words hold no character that `printable` encodes, and mean the
    same to bash.

    A word of `shlex.quote` with such a character becomes one in `$'...'`.
    """
    return _QUOTED.sub(
        lambda word: _ansi_c(word[1]) if any(map(_is_hidden, word[1] or "")) else word[0], command
    )


def value_text(value: Any) -> str:
    """Return a value as text: a text as it is, everything else as JSON. Decimals have all their
    digits.
    """
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    match value:
        case Decimal():
            return format(value, "f")  # str() has an exponent where there are many zeros
        case Mapping():
            pairs = (
                f"{json.dumps(str(key), ensure_ascii=False)}: {_as_json(one)}"
                for key, one in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_as_json, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def shortened(text: str, limit: int = 600) -> str:
    """Return the first words of `text` on one line of at most `limit` characters. A longer first
    word stays whole.
    """
    words = text.split()
    kept = textwrap.shorten(text, limit, placeholder=" ...")
    return (
        kept
        if kept != "..." and kept.strip()
        else " ".join(words[:1]) + (" ..." if len(words) > 1 else "")
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines as `printable` does, with its line ends kept."""
    return "\n".join(printable(line) for line in text.split("\n"))


def columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Return the rows as aligned lines, cells two spaces apart. Cells of the columns in `right` are
    right-aligned.
    """
    if not rows:
        return []
    flush, width = set(right), [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = (
        [c.rjust(width[i]) if i in flush else c.ljust(width[i]) for i, c in enumerate(row)]
        for row in rows
    )
    return ["  ".join(line).rstrip() for line in cells]


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN


def _ansi_c(word: str) -> str:
    """Return a text without single quotes as bash's `$'...'`."""
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    point = ord(character)
    if 0xDC80 <= point <= 0xDCFF:  # a byte that is no UTF-8, as `os.fsdecode` has it
        return f"\\x{point - 0xDC00:02x}"
    if 0x80 <= point <= 0xFF and _is_hidden(character):  # for bash \x is a byte
        return f"\\u{point:04x}"
    return _encoded(character) if _is_hidden(character) else character.replace("\\", "\\\\")


def _encoded(character: str) -> str:
    simple = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if character in simple:
        return simple[character]
    point = ord(character)
    return (
        f"\\x{point:02x}"
        if point < 0x100
        else f"\\u{point:04x}"
        if point < 0x10000
        else f"\\U{point:08x}"
    )
