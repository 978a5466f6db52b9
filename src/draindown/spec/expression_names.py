"""Names of a SQL expression held against a contract without Spark: columns, functions, and words out of place.

Only what Spark is certain to refuse is a problem: a word that its grammar may read in another way is left to Spark,
which resolves every expression before a drain begins (`spark/contract/analysis.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from draindown.spec.expressions import TOKEN
from draindown.spec.names import near
from draindown.spec.sql_words import FUNCTIONS, KEYWORDS

_NESTED_TYPES = ("array", "map", "struct")
_ENDINGS = frozenset("'\"0123456789)]")
_DANGLING = frozenset("=<>+-/%&|^")


@dataclass(frozen=True)
class _Word:
    """One token. `name`: lower-cased text of an identifier, '' of anything else; `free`: no keyword."""

    text: str
    name: str
    free: bool
    start: int
    end: int


_NOTHING = _Word("", "", False, -1, -1)


def problems(expression: str, columns: Collection[str]) -> Iterator[str]:
    """What Spark is certain to refuse in an expression that `expressions.check_expression` let through.

    `columns`: the names it may use; case does not matter.
    """
    words = [_word(found) for found in TOKEN.finditer(expression)]
    known = {name.lower() for name in columns}
    yield from _syntax(words)
    local, types = _parameters(words), _types(words)
    for at, word in enumerate(words):
        if not word.free or at in types or _belongs_to_another(words, at):
            continue
        if _is_called(words, at):
            if _at(words, at + 1).text == "(" and word.name not in FUNCTIONS | KEYWORDS:
                yield f"Spark has no function {word.text!r}{near(word.text, FUNCTIONS)}"
        elif word.name not in known | local:
            yield f"there is no column {word.text!r}{_known(word.text, columns)}"


def _known(name: str, columns: Collection[str]) -> str:
    return near(name, columns) or f"; there are {', '.join(columns)}"


def _word(found: re.Match[str]) -> _Word:
    kind, text = found.lastgroup, found.group()
    name = found[kind].replace("``", "`") if kind in ("word", "quoted") else ""
    free = bool(name) and (kind == "quoted" or name.lower() not in KEYWORDS)
    return _Word(name or text, name.lower(), free, found.start(), found.end())


def _at(words: list[_Word], at: int) -> _Word:
    return words[at] if 0 <= at < len(words) else _NOTHING


def _syntax(words: list[_Word]) -> Iterator[str]:
    """Words that can't stand where they stand: an alias is the only word that follows an operand, and ends it."""
    types = _types(words)
    for at, word in enumerate(words):
        following = _at(words, at + 1).text
        alone = following in ("", ",", ")", "]")
        if word.free and at not in types and _is_operand(_at(words, at - 1)) and not alone:
            yield f"{word.text!r} can't stand there{near(word.text, ('and', 'or', 'in', 'like', 'between', 'is'))}"
            return  # what follows makes no sense before this does
    if words and words[-1].text in _DANGLING:
        yield f"ends with {words[-1].text!r}"


def _is_operand(word: _Word) -> bool:
    """Whether an expression may end with this token."""
    return word.free or word.text[:1] in _ENDINGS


def _belongs_to_another(words: list[_Word], at: int) -> bool:
    """Whether a word is a field, an alias, the prefix of a literal, a named argument, or another part of a form."""
    before, following = _at(words, at - 1), _at(words, at + 1)
    if before.text in (".", ":", "@", "$") or before.name in ("as", "collate") or _is_operand(before):
        return True
    if following.text[:1] in ("'", '"') or (following.text == "=" and _arrow(words, at + 1, "=")):
        return True
    return before.text == "(" and _at(words, at - 2).name == "extract"


def _is_called(words: list[_Word], at: int) -> bool:
    """Whether a word, with the parts that dots join to it, is the name of a function."""
    while _at(words, at + 1).text == "." and _at(words, at + 2).name:
        at += 2
    return _at(words, at + 1).text == "("


def _arrow(words: list[_Word], at: int, first: str) -> bool:
    """Whether the tokens from `at` on are `->` or `=>`."""
    shaft, head = _at(words, at), _at(words, at + 1)
    return (shaft.text, head.text) == (first, ">") and shaft.end == head.start


def _parameters(words: list[_Word]) -> set[str]:
    """Names that the expression's lambdas give to their arguments, wherever they stand."""
    found: set[str] = set()
    for at in range(1, len(words)):
        if not _arrow(words, at, "-"):
            continue
        back = at - 1
        found.add(words[back].name)
        while words[at - 1].text == ")" and back > 0 and words[back].text != "(":
            back -= 1
            found.add(words[back].name)
    return found


def _types(words: list[_Word]) -> set[int]:
    """Where the words of types stand: after `as` and `::`, with what their angle brackets hold."""
    found: set[int] = set()
    for at in range(1, len(words)):
        cast = words[at - 1].name == "as" or (words[at - 1].text == ":" == _at(words, at - 2).text)
        if not cast:
            continue
        found.add(at)
        depth, here = 0, at
        while words[at].name in _NESTED_TYPES and here + 1 < len(words):
            here += 1
            found.add(here)
            depth += {"<": 1, ">": -1}.get(words[here].text, 0)
            if depth <= 0:
                break
    return found
