"""Rules for names: identifiers, columns, paths, and the annotated types that enforce them in a
spec.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import chain, count
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from draindown.config.expressions import check_expression, check_measure, check_query

RESERVED_COLUMNS = frozenset({"arrived_at"})
"""Names that rules can use besides the columns. Names that begin with an underscore are reserved
for draindown.
"""
START_AT, END_AT = "__START_AT", "__END_AT"
"""The columns of a history with the sequence from which a row is valid, and that at which it
ends.
"""
_IDENTIFIER = r"^[a-z][a-z0-9_]{0,62}$"
_COLUMN_NAME = r"^[^_\s,;{}()=.`\x00-\x1f][^\s,;{}()=.`\x00-\x1f]{0,254}$"
_DOTTED = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$"
_SUITE = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,126}$"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_LOWER = {"\u0130": "i"}  # Java's mapping of one character to one; Python's is of one to two
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _matches(pattern: str, meaning: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), text):
            raise ValueError(f"{text!r} is not {meaning}")
        return text

    return AfterValidator(check)


def check_column_name(name: str) -> str:
    """Return a name that a column of the contract may have. Raises ValueError for every other
    name.
    """
    if name.startswith("_"):
        raise ValueError(f"{name!r}: names that start with '_' are reserved for draindown")
    if name.lower() in RESERVED_COLUMNS:
        raise ValueError(
            f"{name!r} is reserved: rules use it for the time the row's file was first seen"
        )
    if not re.fullmatch(_COLUMN_NAME.removeprefix("^").removesuffix("$"), name):
        raise ValueError(
            f"{name!r} can't be a column: 1 to 255 characters, without blanks and ,;{{}}()=.`{renamed(name)}"
        )
    return name


def is_own(name: str) -> bool:
    """Return whether a column of a table is draindown's own record of a row, such as `_changed_at`,
    and no result.
    """
    return name.startswith("_") and name not in (START_AT, END_AT)


def caseless(name: str) -> str:
    """Return a key that is equal for names that Spark treats as the same column: those of Java's
    `equalsIgnoreCase`.

    That compares character by character: unlike `str.casefold` it tells `straße` from `strasse`,
    and unlike `str.lower` it takes the dotless i for an i.
    """
    return "".join(
        _LOWER.get(upper) or _one(upper.lower(), upper)
        for upper in (_one(c.upper(), c) for c in name)
    )


def _one(changed: str, character: str) -> str:
    return changed if len(changed) == 1 else character


def renamed(field: str, taken: Collection[str] = ()) -> str:
    """Return `; write NAME: {type: ..., from: FIELD}` for a field whose name no column can have, or
    "".

    `taken`: names that other columns have.
    """
    plain = re.sub(
        r"[^0-9a-z]+",
        "_",
        unicodedata.normalize("NFKD", field).encode("ascii", "ignore").decode().lower(),
    )
    name = plain.strip("_")[:60]
    if not name or not field.isprintable() or len(field) > 255:
        return ""
    name, held = (
        "f_" * name[0].isdecimal() + name,
        {caseless(one) for one in (*taken, *RESERVED_COLUMNS)},
    )
    free = next(
        one for one in chain([name], (f"{name}_{number}" for number in count(2))) if one not in held
    )
    return f"; write {free}: {{type: ..., from: {json.dumps(field, ensure_ascii=False)}}}"


def is_column_name(name: str) -> bool:
    """Return whether a name is valid for a column."""
    try:
        return bool(check_column_name(name))
    except ValueError:
        return False


def _text(pattern: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, **more})


Identifier = Annotated[
    str,
    _matches(_IDENTIFIER, "a name: lower-case letters, digits and _, a letter first, at most 63"),
    _text(_IDENTIFIER),
]
ColumnName = Annotated[str, AfterValidator(check_column_name), _text(_COLUMN_NAME)]
_SQL = WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 10_000})
Expression = Annotated[str, AfterValidator(check_expression), _SQL]
Measure = Annotated[str, AfterValidator(check_measure), _SQL]
QueryText = Annotated[str, AfterValidator(check_query), _SQL]
Dotted = Annotated[
    str, _matches(_DOTTED, "module.function, a function of jobs/transforms/"), _text(_DOTTED)
]
DottedClass = Annotated[
    str, _matches(_DOTTED, "module.Class, a class of jobs/processors/"), _text(_DOTTED)
]
SuiteName = Annotated[
    str, _matches(_SUITE, "the name of a suite: expectations/<name>.json"), _text(_SUITE)
]


def local_path(value: str) -> str:
    """Return a glob on a local file system, without `file://`. Raises ValueError for every other
    scheme.
    """
    return _without_scheme(value, "write a glob such as landing/*.json")


def lake_root(value: str) -> str:
    """Return the root of a lake on a local file system, without `file://` or a trailing slash.

    Raises ValueError for every other scheme: lease and state in the lake need the guarantees of a
    file system.
    """
    path = _without_scheme(value, "write where the tables go, such as `lake`")
    if ".." in path.split("/"):
        raise ValueError(f"{value!r} contains '..'; write the path it means")
    root = path.rstrip("/")
    if not root:
        raise ValueError(f"{value!r} is the root of the file system; name a directory of its own")
    return root


def _without_scheme(value: str, what: str) -> str:
    _check_path(value, what)
    found = _SCHEME.match(value)
    if not found:
        return value
    if found[1].lower() != "file":
        raise ValueError(
            f"{found[1]}:// is no directory of this machine: only local paths (or file://) can be used. "
            "Mount it, or sync to a directory this machine sees"
        )
    path = re.sub(r"^[A-Za-z]+:(?://(?:localhost)?(?=/))?", "", value)
    if path.startswith("//"):
        raise ValueError(f"{value!r} names a host; write file:///path")
    return path


def _check_path(path: str, what: str) -> None:
    if not path.strip():
        raise ValueError(f"is empty; {what}")
    if path != path.strip() or _CONTROL.search(path):
        raise ValueError(f"{path!r} starts or ends with a blank or contains a control character")
    if "${" in path:
        raise ValueError(f"{path!r}: a path can't hold a secret")


def near(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the closest of the `known` names, or "" if none is close."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def unlike(name: str, known: Collection[str]) -> str:
    """Return the closest of the `known` names as `near` does, or a list of all if none is close."""
    return near(name, known) or f"; there are {', '.join(known)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the closest of the `known` names, whatever their case; None if none is close."""
    by_lower = {other.lower(): other for other in known}
    return next((by_lower[close] for close in get_close_matches(name.lower(), by_lower, 1)), None)


LISTED_FORM, RENAMED_FORM = "[listed]", "[renamed]"
"""Tags of the two forms of chosen columns. Errors have them in their path, where the file has
nothing.
"""


def chosen_form(value: object) -> str | None:
    """Return the tag of the form in which columns are chosen: a list, or a mapping to other
    names.
    """
    if isinstance(value, dict):
        return RENAMED_FORM
    return LISTED_FORM if isinstance(value, list) else None
