"""Patterns of dates and times in a pipeline file, such as `d.M.yyyy HH:mm`: the part of Java's
patterns that is exact.

    pattern := part*      part := letters | 'text' | '' | character that is no letter
    yyyy    four digits                     yy      two digits, of a year from 2000 on
    M d H h m s   one digit or two          MM dd HH hh mm ss   two digits
    MMM     Jan to Dec, in English          S to SSSSSSSSS      as many digits of a second's fraction
    a       AM or PM, in any case           X XX XXX   Z, or +01, +0100, +01:00      Z   +0100

Nothing depends on a language or a locale, and nothing is optional.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

_TOKEN = re.compile(
    r"(?P<field>([A-Za-z])\2*)|'(?P<text>(?:[^']|'')*)'|(?P<bare>[^A-Za-z'])|(?P<open>')"
)
_WIDTHS = {
    "y": (2, 4),
    "M": (1, 2, 3),
    "S": tuple(range(1, 10)),
    "a": (1,),
    "X": (1, 2, 3),
    "Z": (1,),
}
_WIDTHS |= dict.fromkeys("dHhms", (1, 2))
_DAY, _CLOCK, _OFFSET = "yMd", "HhmsSa", "XZ"
_NEEDS = {"m": "H", "s": "m", "S": "s", "h": "a", "a": "h"}
_INSTEAD = {
    "Y": "yyyy",
    "u": "yyyy",
    "D": "d",
    "n": "S",
    "K": "h",
    "k": "H",
    "x": "X",
    "E": "",
    "z": "X",
    "V": "X",
}
_OPTIONAL = frozenset("[]{}#")


@dataclass(frozen=True)
class Part:
    """One part of a pattern: `width` letters `letter`, or the text `text`, whose letter is ''."""

    letter: str
    width: int
    text: str = ""

    @property
    def open_ended(self) -> bool:
        """Whether it matches one digit or two."""
        return self.letter in tuple("MdHhms") and self.width == 1


def check(pattern: str, kind: str) -> str:
    """Return the pattern unchanged if it reads values of the type `kind`. Raises ValueError with
    the reason.
    """
    parts = parse(pattern)
    letters = [part.letter for part in parts if part.letter]
    if twice := next((letter for letter in letters if letters.count(letter) > 1), None):
        raise ValueError(f"format {pattern!r} has {twice} twice")
    if lacking := [wanted for wanted in _DAY if wanted not in letters]:
        raise ValueError(
            f"format {pattern!r} lacks {' and '.join(lacking)}: year, month and day are needed"
        )
    for letter, needed in _NEEDS.items():
        if letter in letters and needed not in letters and not (needed == "H" and "h" in letters):
            raise ValueError(f"format {pattern!r} has {letter} without {needed}")
    if {"H", "h"} <= set(letters) or {"X", "Z"} <= set(letters):
        raise ValueError(f"format {pattern!r} says the same twice: keep H or h and a, X or Z")
    offset = next((letter for letter in letters if letter in _OFFSET), None)
    if offset and kind != "timestamp":
        raise ValueError(
            f"format {pattern!r} has an offset ({offset}), which a {kind} doesn't: declare timestamp"
        )
    if offset and not {"H", "h"} & set(letters):
        raise ValueError(f"format {pattern!r} has an offset ({offset}) without a time of day")
    for before, after in pairwise(parts):
        if before.open_ended and _starts_with_digit(after):
            raise ValueError(
                f"format {pattern!r}: where {before.letter} ends can't be seen; write {before.letter * 2}"
            )
    return pattern


def _starts_with_digit(part: Part) -> bool:
    if not part.letter:
        return part.text[:1].isdecimal()
    return part.letter not in (*_OFFSET, "a") and not (part.letter == "M" and part.width == 3)


def parse(pattern: str) -> tuple[Part, ...]:
    """Return the parts of a pattern. Raises ValueError if one is not known."""
    if not pattern.strip() or len(pattern) > 100:
        raise ValueError(
            "format is empty, or longer than 100 characters; write one such as 'yyyy/MM/dd'"
        )
    if not pattern.isprintable():
        raise ValueError(f"format {pattern!r} has a character that can't be seen")
    if pattern != pattern.strip():
        raise ValueError(
            f"format {pattern!r} begins or ends with a blank: blanks around a value are ignored"
        )
    return tuple(_part(found, pattern) for found in _TOKEN.finditer(pattern))


def _likely(found: re.Match[str]) -> str:
    """Return a token of a pattern with the letter that its own is taken for elsewhere."""
    text = found.group()
    letter = _INSTEAD.get(text[0])
    if found["field"] is None or not letter:
        return text
    same = letter[0] * len(text)
    return same if len(text) in _WIDTHS[letter[0]] else letter


def _part(found: re.Match[str], pattern: str) -> Part:
    if found["open"]:
        raise ValueError(f"format {pattern!r} has an unclosed '")
    if found["field"] is None:
        text = found["bare"] or found["text"].replace("''", "'") or "'"
        if text in _OPTIONAL and found["bare"]:
            raise ValueError(
                f"format {pattern!r}: {text} is not supported; nothing in a format is optional"
            )
        return Part("", 0, text)
    letter, width = found["field"][0], len(found["field"])
    if width in _WIDTHS.get(letter, ()):
        return Part(letter, width)
    if letter in _WIDTHS:
        known = " or ".join(letter * number for number in _WIDTHS[letter])
        raise ValueError(f"format {pattern!r}: {found['field']} is not supported; write {known}")
    instead = (
        f"; did you mean {''.join(map(_likely, _TOKEN.finditer(pattern)))!r}?"
        if _INSTEAD.get(letter)
        else ""
    )
    allowed = "y M d H h m s S a X Z, and text in single quotes"
    raise ValueError(
        f"format {pattern!r}: {found['field']} is not supported{instead or f'; allowed: {allowed}'}"
    )
