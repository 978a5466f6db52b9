"""Check the names of a SQL expression against a contract without Spark: columns, functions, misplaced words.

Only what Spark is certain to refuse is a problem. A word that its grammar may read in another way is left to Spark,
which resolves every expression before a drain begins (`spark/contract/analysis.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from draindown.spec.expressions import TOKEN
from draindown.spec.names import near, unlike
from draindown.spec.sql_words import FUNCTIONS, KEYWORDS, OPERATORS

_NESTED_TYPES = ("array", "map", "struct")
_ENDINGS = frozenset("'\"0123456789)]")
_JOINING = frozenset({"and", "or", "not", "in", "like", "ilike", "between", "is", "div"}) | OPERATORS
_DANGLING = frozenset("=<>+-/%&|^")


@dataclass(frozen=True)
class _Word:
    """One token.

    `name` is the lower-cased text of an identifier, '' for any other token; `free` means not a keyword.
    """

    text: str
    name: str
    free: bool
    start: int
    end: int


_NOTHING = _Word("", "", False, -1, -1)


def problems(expression: str, columns: Collection[str]) -> Iterator[str]:
    """Yield what Spark is certain to refuse in an expression that passed `expressions.check_expression`.

    `columns` are the names that the expression may use, compared without case.
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
            yield f"there is no column {word.text!r}{unlike(word.text, columns)}"


def _word(found: re.Match[str]) -> _Word:
    kind, text = found.lastgroup, found.group()
    name = found[kind].replace("``", "`") if kind in ("word", "quoted") else ""
    free = bool(name) and (kind == "quoted" or name.lower() not in KEYWORDS | OPERATORS)
    return _Word(name or text, name.lower(), free, found.start(), found.end())


def _at(words: list[_Word], at: int) -> _Word:
    return words[at] if 0 <= at < len(words) else _NOTHING


def _syntax(words: list[_Word]) -> Iterator[str]:
    """Yield the words that can't stand in their place.

    After an operand only an alias can follow. One at the end would name the result of a condition, which nobody reads:
    Spark accepts it, and half of a condition is lost.
    """
    types = _types(words)
    for at, word in enumerate(words):
        following = _at(words, at + 1).text
        alone = following != "" and following in ",)]"
        if word.free and at not in types and _is_operand(_at(words, at - 1)) and not alone:
            yield f"{word.text!r} can't stand there{near(word.text, _JOINING)}"
            return  # later problems are likely consequences of this one
    if words and (words[-1].text in _DANGLING or (not words[-1].free and words[-1].name in _JOINING)):
        yield f"ends with {words[-1].text!r}"


def _is_operand(word: _Word) -> bool:
    """Return whether an expression may end with this token."""
    return word.free or word.text[:1] in _ENDINGS


def _belongs_to_another(words: list[_Word], at: int) -> bool:
    """Return whether a word is a field, an alias, a literal's prefix, a named argument, or part of a special form."""
    before, following = _at(words, at - 1), _at(words, at + 1)
    if before.text in (".", ":", "@", "$") or before.name in ("as", "collate") or _is_operand(before):
        return True
    if following.text[:1] in ("'", '"') or (following.text == "=" and _arrow(words, at + 1, "=")):
        return True
    return before.text == "(" and _at(words, at - 2).name == "extract"


def _is_called(words: list[_Word], at: int) -> bool:
    """Return whether a word, joined with its dotted parts, is the name of a function."""
    while _at(words, at + 1).text == "." and _at(words, at + 2).name:
        at += 2
    return _at(words, at + 1).text == "("


def _arrow(words: list[_Word], at: int, first: str) -> bool:
    """Return whether the tokens from `at` on are `->` or `=>`."""
    shaft, head = _at(words, at), _at(words, at + 1)
    return (shaft.text, head.text) == (first, ">") and shaft.end == head.start


def _parameters(words: list[_Word]) -> set[str]:
    """Return the names of the parameters of all lambdas in the expression."""
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
    """Return the positions of words in types: after `as` and `::`, and within the angle brackets that follow."""
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
