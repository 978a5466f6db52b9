"""Steps of a query that do not work within its keys, by the words that ask for them, each with what
does instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draindown.config.expression_names import Word, word_at
from draindown.config.generators import OF_ARRAYS

_JOINS = "join the two by all keys in its place"
_ONE_FLOW_EACH = "give each grouping a flow of its own"
_STEPS: Mapping[str, tuple[frozenset[str], str]] = {
    "lateral": (frozenset(("view", "(")), OF_ARRAYS),
    "pivot": (frozenset("("), "write an aggregate with FILTER (WHERE ...) for each value"),
    "unpivot": (
        frozenset(("(", "include", "exclude")),
        "write a UNION ALL with a SELECT for each column",
    ),
    "tablesample": (frozenset("("), "leave it out: another run would take other rows"),
    "intersect": (frozenset(("select", "all", "distinct", "(")), _JOINS),
    "except": (frozenset(("select", "all", "distinct")), _JOINS),
    "minus": (frozenset(("select", "all", "distinct")), _JOINS),
    "rollup": (frozenset("("), _ONE_FLOW_EACH),
    "cube": (frozenset("("), _ONE_FLOW_EACH),
    "grouping": (frozenset(("sets",)), _ONE_FLOW_EACH),
    "exists": (frozenset(("(select",)), _JOINS),
    "in": (frozenset(("(select",)), _JOINS),
}
"""Words with those of which one follows where they ask for a step, and what to write in the place
of the step.
"""


def problems(words: list[Word]) -> Iterator[str]:
    """Yield a problem for each step that every run would refuse."""
    for at, word in enumerate(words):
        follows, instead = _STEPS.get(word.name, (frozenset[str](), ""))
        first, second = word_at(words, at + 1), word_at(words, at + 2)
        found = {first.name or first.text, f"{first.text}{second.name}"}
        if found & follows and word_at(words, at - 1).text != ".":
            step = (
                f"{word.name} {first.name}".strip().upper()
                if first.name != "select"
                else word.name.upper()
            )
            yield f"has {step}, which does not work within the keys: {instead}"
