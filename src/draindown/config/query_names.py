"""Check a query against its source tables without Spark: tables, columns, functions, keys; LIMIT
and ORDER BY.

As in `expression_names`, only what is certain to be refused is a problem. All else is left to the
drain, which resolves the query with Spark before it reads (`spark/derived/resolve.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from draindown.config import query_steps
from draindown.config.expression_names import (
    Word,
    belongs_to_another,
    is_called,
    is_operand,
    parameters,
    types_in,
    word_at,
    word_of,
)
from draindown.config.expressions import TOKEN
from draindown.config.names import near, unlike
from draindown.config.sql_words import FUNCTIONS, KEYWORDS

Columns = Collection[str] | None
"""Columns of a table; None if only a run shows them."""
_EXPECTING = frozenset(
    {"select", "distinct", "all", "where", "and", "or", "not", "on", "by", "having", "when", "then"}
)
_EXPECTING |= {
    "else",
    "case",
    "between",
    "in",
    "like",
    "ilike",
    "rlike",
    "regexp",
    "div",
    "from",
    "join",
    "using",
}
_NAMING = ("as", "over", "window")
_ORDERED = ("order", "sort", "cluster", "distribute")


def problems(query: str, keys: Sequence[str], tables: Mapping[str, Columns]) -> Iterator[str]:
    """Yield what the drain is certain to refuse in a query that passed `expressions.check_query`.

    `tables`: the sources, by the names that the query uses. Names are compared without case.
    """
    words = [word_of(found) for found in TOKEN.finditer(query)]
    levels = [at for at, is_level in enumerate(_levels(words)) if is_level]
    yield from _table_problems(
        words, levels, [table.lower() for table in tables], ", ".join(tables)
    )
    yield from _order_problems(words, levels)
    yield from query_steps.problems(words)
    used = {word.name for word in words}
    if not any(
        word.text == "*" and word_at(words, at - 1).text.lower() in _BEFORE_ALL
        for at, word in enumerate(words)
    ):
        missing = ", ".join(key for key in keys if key.lower() not in used)
        yield from (
            [f"does not return key {missing} of the source under its name"] if missing else []
        )
    yield from _name_problems(words, tables)


_BEFORE_ALL = ("select", "distinct", "all", ",", ".")


def _levels(words: list[Word]) -> Iterator[bool]:
    """Yield of each word whether it is directly within a query, not within parentheses of an
    expression in it.
    """
    within = [True]
    for at, word in enumerate(words):
        if word.text == ")" and len(within) > 1:
            within.pop()
        yield within[-1]
        if word.text == "(":
            within.append(word_at(words, at + 1).name in ("select", "with"))


def _table_problems(
    words: list[Word], levels: Sequence[int], known: Sequence[str], listed: str
) -> Iterator[str]:
    for at in levels:
        after_distinct = word_at(words, at - 1).name == "distinct"  # `is distinct from`
        following = word_at(words, at + 1)
        is_function = following.name in FUNCTIONS and is_called(words, at + 1)
        if (
            words[at].name not in ("from", "join")
            or after_distinct
            or not (following.free or is_function)
        ):
            continue
        parts = [words[at + 1]]
        while (
            word_at(words, at + 2 * len(parts)).text == "."
            and word_at(words, at + 2 * len(parts) + 1).name
        ):
            parts.append(words[at + 2 * len(parts) + 1])
        name = ".".join(part.text for part in parts)
        what = "the source is" if len(known) == 1 else "the sources are"
        if is_called(words, at + 1):
            yield f"reads the function {name}(): {what} {listed}"
        elif name.lower() not in known:
            yield f"reads {name}: {what} {listed}{near(name, known)}"
    named = {word.name for word in words}
    if unread := [table for table in known if table not in named]:
        yield f"does not read {', '.join(unread)}: leave it out of the source"


def _order_problems(words: list[Word], levels: Sequence[int]) -> Iterator[str]:
    for at in levels:
        word, following = words[at], word_at(words, at + 1)
        if (
            word.name in ("limit", "offset")
            and following.text[:1].isdigit()
            and is_operand(word_at(words, at - 1))
        ):
            instead = "row_number() over (partition by the keys order by ...) in a subquery"
            yield f"has a {word.name.upper()}, which counts rows of all keys together; use {instead}"
        if word.name in _ORDERED and following.name == "by":
            yield f"has {word.name.upper()} BY, which no table keeps: leave it out"


def _name_problems(words: list[Word], tables: Mapping[str, Columns]) -> Iterator[str]:
    types, made = types_in(words), _made(words)
    columns = [found for found in tables.values() if found is not None]
    known = (
        {name.lower() for found in columns for name in found}
        | made
        | {table.lower() for table in tables}
    )
    told = set[str]()
    for at, word in enumerate(words):
        if not word.free or at in types or belongs_to_another(words, at) or word.name in told:
            continue
        if is_called(words, at):
            if word_at(words, at + 1).text == "(" and word.name not in FUNCTIONS | KEYWORDS | made:
                told.add(word.name)
                yield f"Spark has no function {word.text!r}{near(word.text, FUNCTIONS)}"
        elif len(columns) == len(tables) and word.name not in known and not _is_table(words, at):
            told.add(word.name)
            yield f"there is no column {word.text!r}{unlike(word.text, [name for found in columns for name in found])}"


def _is_table(words: list[Word], at: int) -> bool:
    """Return whether a word follows FROM or JOIN, or is one of draindown's own columns."""
    return word_at(words, at - 1).name in ("from", "join") or words[at].name.startswith("_")


def _made(words: list[Word]) -> set[str]:
    """Return the names that the query makes: aliases, columns that they name, windows, parameters
    of lambdas.
    """
    found = parameters(words)
    for at, word in enumerate(words):
        before = word_at(words, at - 1)
        if not word.name or not (
            before.name in _NAMING or (word.free and _may_precede_alias(before))
        ):
            continue
        found.add(word.name)
        here = at + 2 if word_at(words, at + 1).text == "(" else len(words)
        while here < len(words) and (words[here].name or words[here].text == ","):
            found.add(words[here].name)
            here += 1
    return found


def _may_precede_alias(word: Word) -> bool:
    """Return whether an alias may follow: also after END, NULL or a type, which are keywords."""
    return is_operand(word) or bool(word.name and word.name not in _EXPECTING)
