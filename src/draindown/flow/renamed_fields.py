"""Whether a field that the contract does not name is one of its columns under a new name. No
decision depends on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from difflib import SequenceMatcher

from draindown.config.column_types import TIMES, Column
from draindown.config.landing import FlowSpec
from draindown.config.names import caseless
from draindown.config.source import FIELD

_ALIKE = 0.75
"""Least similarity of two names that are taken for one; `difflib` calls 0.6 a close match, as
`total` and `to` are.
"""
_NUMBERS = ("int", "bigint", "double")
_NESTED = ("json", "struct<...>", "array<...>")


@dataclass(frozen=True)
class Renamed:
    """A column that a field may be. `alike`: whether the names are; if not, the field may as well
    be another one.
    """

    column: str
    alike: bool


def renamed(
    flow: FlowSpec, field: str, kind: str, gone: Collection[str], beside: Collection[str]
) -> Renamed | None:
    """Return the column that a new field likely is: one that the unit lacks, whose type takes the
    field's values.

    Names decide. Where they say nothing, a column counts if it alone is gone and the field alone is
    new.

    `kind`: the type that the values look like; "" if they are unknown. `gone`: fields of the
    columns that the unit lacks. `beside`: other fields that are new in the unit.
    """
    lacking = [name for name, held in flow.fields.items() if held in gone]
    fitting = [name for name in lacking if _takes(flow, name, kind)]
    alike = [name for name in fitting if _same(field, flow.fields[name]) or _same(field, name)]
    if len(alike) == 1 and not any(_same(other, flow.fields[alike[0]]) for other in beside):
        return Renamed(alike[0], True)
    if len(lacking) == 1 and fitting and not beside:
        return Renamed(fitting[0], False)
    return None


def entry(flow: FlowSpec, column: str, field: str) -> str:
    """Return the line of a pipeline file that takes a column from another field, with all else that
    it says.
    """
    place = f"{FIELD}{field}" if flow.source.PLACES else field
    said = flow.columns[column].model_copy(update={"taken_from": place}).model_dump()
    parts = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in said.items())
    return f"{column}: {{{', '.join(parts)}}}"


def _same(field: str, other: str) -> bool:
    """Return whether two names are alike: in all but case and marks, one in words of the other, or
    nearly the same.
    """
    words, others = _words(field), _words(other)
    if not words or not others:
        return False
    if "".join(words) == "".join(others) or set(words) <= set(others) or set(others) <= set(words):
        return True
    return SequenceMatcher(None, "".join(words), "".join(others)).ratio() >= _ALIKE


def _words(name: str) -> list[str]:
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)  # camelCase
    return re.findall(r"[^\W_]+", caseless(split))


def _takes(flow: FlowSpec, name: str, kind: str) -> bool:
    """Return whether a column's type takes values that look like `kind`."""
    column: Column = flow.columns[name]
    if not kind or column.type == "json" or flow.written(name) is not None:
        return True
    if column.is_nested or kind in _NESTED:
        return column.is_nested and kind in _NESTED
    if column.is_number:
        return kind in _NUMBERS
    if column.type in TIMES:
        return kind in ("date", "timestamp")
    return column.type != "boolean" or kind == "boolean"
