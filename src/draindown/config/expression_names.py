"""Check the names of a SQL expression against a contract without Spark: columns, functions,
misplaced words.

Only what Spark is certain to refuse is a problem. A word that its grammar may read in another way
is left to Spark, which resolves every expression before a drain begins
(`spark/contract/analysis.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from draindown.config.expressions import TOKEN
from draindown.config.names import near, unlike
from draindown.config.sql_words import FUNCTIONS, KEYWORDS, OPERATORS

_NESTED_TYPES = ("array", "map", "struct")
_ENDINGS = frozenset("'\"0123456789)]")
_JOINING = (
    frozenset({"and", "or", "not", "in", "like", "ilike", "between", "is", "div"}) | OPERATORS
)
_DANGLING = frozenset("=<>+-/%&|^")


@dataclass(frozen=True)
class Word:
    """One token.

    `name` is the lower-cased text of an identifier, '' for any other token; `free` means not a
    keyword.
    """

    text: str
    name: str
    free: bool
    start: int
    end: int


NOTHING = Word("", "", False, -1, -1)


def problems(expression: str, columns: Collection[str] | None) -> Iterator[str]:
    """Yield what Spark is certain to refuse in an expression that passed
    `expressions.check_expression`.

    `columns` are the names that the expression may use, compared without case; None if they are not
    known.
    """
    words = [word_of(found) for found in TOKEN.finditer(expression)]
    known = {name.lower() for name in columns or ()}
    yield from _syntax(words)
    local, types = parameters(words), types_in(words)
    for at, word in enumerate(words):
        if not word.free or at in types or belongs_to_another(words, at):
            continue
        if is_called(words, at):
            if word_at(words, at + 1).text == "(" and word.name not in FUNCTIONS | KEYWORDS:
                yield f"Spark has no function {word.text!r}{near(word.text, FUNCTIONS)}"
        elif columns is not None and word.name not in known | local:
            yield f"there is no column {word.text!r}{unlike(word.text, columns)}"


def word_of(found: re.Match[str]) -> Word:
    """Return a token as a word."""
    kind, text = found.lastgroup, found.group()
    name = found[kind].replace("``", "`") if kind in ("word", "quoted") else ""
    free = bool(name) and (kind == "quoted" or name.lower() not in KEYWORDS | OPERATORS)
    return Word(name or text, name.lower(), free, found.start(), found.end())


def word_at(words: list[Word], at: int) -> Word:
    """Return the word at a position; beyond both ends, one that is nothing."""
    return words[at] if 0 <= at < len(words) else NOTHING


def _syntax(words: list[Word]) -> Iterator[str]:
    """Yield the words that can't stand in their place.

    After an operand only an alias can follow. One at the end would name the result of a condition,
    which nobody reads: Spark accepts it, and half of a condition is lost.
    """
    types = types_in(words)
    for at, word in enumerate(words):
        following = word_at(words, at + 1).text
        alone = following != "" and following in ",)]"
        if word.free and at not in types and is_operand(word_at(words, at - 1)) and not alone:
            yield f"{word.text!r} can't stand there{near(word.text, _JOINING)}"
            return  # later problems are likely consequences of this one
    if words and (
        words[-1].text in _DANGLING or (not words[-1].free and words[-1].name in _JOINING)
    ):
        yield f"ends with {words[-1].text!r}"


def is_operand(word: Word) -> bool:
    """Return whether an expression may end with this token."""
    return word.free or word.text[:1] in _ENDINGS


def belongs_to_another(words: list[Word], at: int) -> bool:
    """Return whether a word is a field, an alias, a literal's prefix, a named argument, or part of
    a special form.
    """
    before, following = word_at(words, at - 1), word_at(words, at + 1)
    if (
        before.text in (".", ":", "@", "$")
        or before.name in ("as", "collate")
        or is_operand(before)
    ):
        return True
    if following.text[:1] in ("'", '"') or (following.text == "=" and _arrow(words, at + 1, "=")):
        return True
    return before.text == "(" and word_at(words, at - 2).name == "extract"


def is_called(words: list[Word], at: int) -> bool:
    """Return whether a word, joined with its dotted parts, is the name of a function."""
    while word_at(words, at + 1).text == "." and word_at(words, at + 2).name:
        at += 2
    return word_at(words, at + 1).text == "("


def _arrow(words: list[Word], at: int, first: str) -> bool:
    """Return whether the tokens from `at` on are `->` or `=>`."""
    shaft, head = word_at(words, at), word_at(words, at + 1)
    return (shaft.text, head.text) == (first, ">") and shaft.end == head.start


def parameters(words: list[Word]) -> set[str]:
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


def types_in(words: list[Word]) -> set[int]:
    """Return the positions of words in types: after `as` and `::`, and within the angle brackets
    that follow.
    """
    found: set[int] = set()
    for at in range(1, len(words)):
        cast = words[at - 1].name == "as" or (
            words[at - 1].text == ":" == word_at(words, at - 2).text
        )
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
