"""Conditions whose meaning is certain: other engines than Spark decide them alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from draindown.lake.table import identifier

_NAME = r"([^\W\d]\w*|`[^`]+`)"
_TEXT = r"'[^'\\]*'"
_IS_TEXT = re.compile(rf"\s*{_NAME}\s*=\s*({_TEXT})\s*")
_IN_TEXTS = re.compile(
    rf"\s*{_NAME}\s+in\s*\(\s*({_TEXT}(?:\s*,\s*{_TEXT})*)\s*\)\s*", re.IGNORECASE
)
_IS_TRUE = re.compile(rf"\s*{_NAME}(?:\s+is\s+true|\s*=\s*true)?\s*", re.IGNORECASE)


def condition(text: str, types: Mapping[str, str]) -> str | None:
    """Return a condition in DuckDB's SQL; None if it has no form of certain meaning."""
    found = deciding(text, types)
    if found is None:
        return None
    column, values = found
    literals = ("true" if one is True else f"'{one}'" for one in values)
    return f"{identifier(column)} in ({', '.join(literals)})"


def deciding(text: str, types: Mapping[str, str]) -> tuple[str, Sequence[str | bool]] | None:
    """Return a column and the values of it for which a condition holds; None if it has no form of
    certain meaning.
    """
    for form, kind in ((_IS_TEXT, "string"), (_IN_TEXTS, "string"), (_IS_TRUE, "boolean")):
        found = form.fullmatch(text)
        name = found and found[1].strip("`")
        column = next((column for column in types if name and column.lower() == name.lower()), None)
        if found is None or column is None or str(types[column]) != kind:
            continue
        return column, [one[1:-1] for one in re.findall(_TEXT, found[2])] if kind == "string" else [
            True
        ]
    return None
