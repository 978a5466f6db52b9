"""Pydantic's errors as problems of a pipeline file, with their position and in the words of the
documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from draindown.config import renamed
from draindown.config.airflow_settings import REFUSED
from draindown.config.derived import KINDS, DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.merged_keys import merged_keys
from draindown.config.models import DERIVED_FORM, LANDING_FORM, PipelineSpec
from draindown.config.names import LISTED_FORM, RENAMED_FORM, near
from draindown.config.source import SourceSpec
from draindown.config.sources import SOURCES, kind_of
from draindown.config.yaml_document import Document, Problem

_KEY = "[key]"  # pydantic's mark for "the key, not its value"
_FORMS = {LANDING_FORM: FlowSpec, DERIVED_FORM: DerivedFlow}
_TAGS = {_KEY, *_FORMS, LISTED_FORM, RENAMED_FORM}
"""What pydantic has in paths, and the file has not."""
_LATER = frozenset(("changes", "cluster_by", "engine"))


def explain(
    error: ValidationError, document: Document, root: type[BaseModel] = PipelineSpec
) -> Iterator[Problem]:
    """Yield one problem for each error. A value that already has a problem of its own yields no
    further one.

    `root`: the model of the document.
    """
    known = {
        p.path
        for p in document.problems
        if p.path and (p.variable or p.mark == document.values.get(p.path))
    }
    for path, message, silent in renamed.problems(document.value):
        yield Problem(document.key_mark(path), path, message)
        known |= {*silent}
    for details in _details(error):
        for problem in _problems(details, document, root):
            if not any(problem.path[: len(path)] == path for path in known):
                yield problem


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Yield the errors, those of a source as if the pipeline's model had found them."""
    for details in error.errors(include_url=False):
        if details["type"] == "source":
            inner = _details(details["ctx"]["error"])
            for one in inner:
                one["loc"] = (*details["loc"], *one["loc"])
                yield one
        else:
            yield details


def _problems(
    details: ErrorDetails, document: Document, root: type[BaseModel]
) -> Iterator[Problem]:
    path = tuple(str(part) for part in details["loc"] if part not in _TAGS)
    kind = details["type"]
    if kind == "combination":
        for inner, message in details["ctx"]["problems"]:
            whole = (*path, *inner)
            yield Problem(document.key_mark(whole), whole, message)
    elif kind == "extra_forbidden":
        message = _unknown_key(details["loc"], document.value, root)
        yield Problem(document.key_mark(path), path, message)
    elif kind == "missing" or _KEY in details["loc"]:
        yield Problem(document.key_mark(path), path, _message(details))
    else:
        yield Problem(document.value_mark(path), path, _message(details))


def _unknown_key(location: tuple[int | str, ...], value: object, root: type[BaseModel]) -> str:
    *path, key = (str(part) for part in location)
    allowed = _keys_at(path, value, root)
    hint = near(key, allowed)
    if key in KINDS and path[-1:] == [LANDING_FORM]:
        return "derives a table from another one: it needs `source: {table: NAME}` in the place of files"
    if key in REFUSED:
        return f"not supported: {REFUSED[key]}"
    if sentence := renamed.of_other_tools(key):
        return sentence
    if not hint and key in _LATER:
        return f"not supported yet; allowed: {', '.join(allowed)}"
    return f"unknown key; allowed: {', '.join(allowed)}{hint}"


def _keys_at(path: Iterable[str], value: Any, root: type[BaseModel]) -> list[str]:
    """Return the keys that the model at a path accepts. The path has the form of each flow.

    `value`: the document, which says of which kind a source is.
    """
    kind: object = root
    for part in path:
        if part in _FORMS:
            kind = _FORMS[part]
            continue
        value = value.get(part) if isinstance(value, dict) else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = _given(kind.model_fields[part].annotation)
        else:  # a value of a dict
            kind = get_args(kind)[-1]
        if kind is SourceSpec:
            kind = SOURCES.get(kind_of(value) or "", kind)
    if not isinstance(kind, type) or not issubclass(kind, BaseModel):
        return []
    names = [field.alias or name for name, field in kind.model_fields.items()]
    return [*merged_keys(kind), *names]


def _given(kind: object) -> object:
    """Return the type of a field that may be left out, without None."""
    given = [one for one in get_args(kind) if one is not type(None)]
    return given[0] if isinstance(kind, UnionType) and len(given) == 1 else kind


def _message(details: ErrorDetails) -> str:
    value = details["input"]
    kind = details["type"]
    message = details["msg"][:1].lower() + details["msg"][1:]
    if kind == "missing":
        message = "is required"
    elif kind == "value_error":
        message = str(details["ctx"]["error"])
    elif isinstance(value, str) and _is_source(details["loc"]):
        ways = f"of files `{{files: ..., format: ...}}`, of a table `{{table: {value}}}`"
        message = f"must be keys and values: {ways}"
    elif value is None:
        message = f"is empty; write {_WANTED.get(kind, 'a value')}, or leave the key out"
    elif kind == "string_type" and not isinstance(value, list | dict):
        message = f"must be text, not {_spelled(value)}: put it in quotes"
    elif kind in _WANTED:
        message = f"must be {_WANTED[kind]}, not {_spelled(value)}"
    elif kind in _TEXTS:
        message = _TEXTS[kind](details["ctx"], value)
    return message


def _is_source(location: tuple[int | str, ...]) -> bool:
    """Return whether an error is about the source of a flow as a whole."""
    names = [part for part in location if part not in _TAGS]
    return names[:1] == ["flows"] and names[2:] == ["source"]


def _spelled(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            shown = repr(value)
            return shown if len(shown) <= 80 else shown[:77] + "..."


_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list, such as [name]",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "union_tag_not_found": "a list, such as [name], or keys and values",
}


def _no_choice(ctx: dict[str, Any], value: Any) -> str:
    choices = re.findall(r"'([^']*)'", ctx["expected"])
    return f"must be {ctx['expected']}, not {_spelled(value)}{near(str(value), choices)}"


_TEXTS: dict[str, Callable[[dict[str, Any], Any], str]] = {
    "literal_error": _no_choice,
    "too_short": lambda ctx, _: f"is empty; it needs at least {ctx['min_length']}",
    "string_too_short": lambda ctx, _: f"is empty; it needs at least {ctx['min_length']} character",
    "string_too_long": lambda ctx, _: f"may have at most {ctx['max_length']} characters",
    "greater_than_equal": lambda ctx, value: f"must be at least {ctx['ge']}, not {_spelled(value)}",
    "less_than_equal": lambda ctx, value: f"must be at most {ctx['le']}, not {_spelled(value)}",
}
