"""The arguments of each kind of expectation, read from the source of GX: importing GX would take
seconds.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draindown.config.names import near
from draindown.gate.suite import SEVERITIES

CONFIGURATION = (
    *("type", "expectation_type", "kwargs", "meta", "id", "notes", "description", "severity"),
    *("expectation_context", "rendered_content", "success_on_last_run"),
)
"""Keys of one expectation in a suite, as GX's ExpectationConfiguration has them, with the older
`expectation_type`.
"""
_BASES = "expectation"
_NOT_ARGUMENTS = (
    "library_metadata"  # of some kinds it is a field, where others declare it as ClassVar
)


@dataclass(frozen=True)
class Arguments:
    """The arguments that a kind of expectation takes, and those among them that it can't do
    without.
    """

    allowed: frozenset[str]
    required: frozenset[str]


def problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the keys and arguments of one expectation, whatever the rows are."""
    for key in config.keys() - set(CONFIGURATION):
        yield f"there is no key {key!r}{near(key, CONFIGURATION)}"
    if config.get("severity") not in (None, *SEVERITIES):
        yield f"severity is {config['severity']!r}; write {', '.join(SEVERITIES[:-1])} or {SEVERITIES[-1]}"
    known, given = arguments(config["type"]), config.get("kwargs") or {}
    if known is None:
        return
    unknown = sorted(given.keys() - known.allowed)
    for name in unknown:
        yield f"there is no argument {name!r}{near(name, known.allowed)}"
    # the one that lacks may be the one that is misspelt
    if not unknown and config.keys() <= set(CONFIGURATION):
        for name in sorted(known.required - given.keys()):
            yield f"the argument {name!r} is required"


@cache
def arguments(kind: str) -> Arguments | None:
    """Return the arguments of a kind of expectation; None if GX has no such kind, or lays out its
    source otherwise.
    """
    module = _classes(f"core/{kind}")
    name = next((name for name in module if name.lower() == kind.replace("_", "")), None)
    if name is None:
        return None
    fields = dict(_fields(name, module))
    return Arguments(
        frozenset(fields), frozenset(field for field, required in fields.items() if required)
    )


def _fields(name: str, module: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, bool]]:
    """Yield the fields of a pydantic model and whether each is required, those of its bases
    first.
    """
    found = module.get(name) or _classes(_BASES).get(name)
    for base in found.bases if found else ():
        if isinstance(base, ast.Name):
            yield from _fields(base.id, module)
    for part in found.body if found else ():
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            kind = ast.unparse(part.annotation)
            if (
                not part.target.id.startswith("_")
                and part.target.id != _NOT_ARGUMENTS
                and "ClassVar" not in kind
            ):
                is_optional = "None" in kind or "Optional" in kind
                yield part.target.id, not is_optional and not _has_default(part.value)


def _has_default(value: ast.expr | None) -> bool:
    match value:
        case None:
            return False
        case ast.Call(
            func=ast.Name(id="Field") | ast.Attribute(attr="Field"), args=given, keywords=named
        ):
            return bool(given) or any(word.arg in ("default", "default_factory") for word in named)
        case _:
            return True


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Return the classes of one module of GX's expectations, by name. Empty if there is no such
    module.
    """
    path = next((place / f"{module}.py" for place in directories()), None)
    if path is None or not path.is_file():
        return {}
    return {
        part.name: part
        for part in ast.parse(path.read_text()).body
        if isinstance(part, ast.ClassDef)
    }


@cache
def directories() -> Collection[Path]:
    """Return where the modules of GX's expectations are; empty if GX is not installed."""
    package = find_spec("great_expectations")
    places = package.submodule_search_locations if package else None
    return tuple(Path(place, "expectations") for place in places or ())
