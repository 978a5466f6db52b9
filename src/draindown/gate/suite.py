"""A Great Expectations suite as data: names, options and safety of its expectations. Does not
import GX.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from draindown.config.expressions import check_code_free
from draindown.gate.published import QUARANTINED_SHARE

SEVERITIES = ("critical", "warning", "info")
"""What an expectation may say of its failure, as Great Expectations has it. The first one, which is
that of an expectation without, keeps a version from being published; others are a finding.
"""


def names(suite: Mapping[str, Any] | None) -> list[str]:
    """Return the name of each expectation of the suite, in its order, as waivers, reports and pages
    use it.

    The name is `meta.draindown.name` if given, else type and columns
    (`expect_column_values_to_not_be_null:status`). The second expectation with the same name gets
    the suffix `#2`.
    """
    wanted = [_name(config) for config in expectations_of(suite)]
    taken, found = set(wanted), list[str]()
    for name in wanted:
        # a given name takes precedence, even if it looks like a numbered one
        numbered = (f"{name}#{n}" for n in count(2))
        chosen = (
            name
            if name not in (*found, QUARANTINED_SHARE)
            else next(n for n in numbered if n not in taken)
        )
        taken.add(chosen)
        found.append(chosen)
    return found


def expectations_of(suite: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the expectation configurations of the suite. `expectation_type` of older suites is
    read as `type`.
    """
    listed = (suite or {}).get("expectations") or []
    return [
        {**config, "type": str(config.get("type") or config.get("expectation_type") or "?")}
        for config in listed
    ]


def severities(suite: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the severity of each expectation by its name: critical unless the suite says
    otherwise.
    """
    said = (config.get("severity") or SEVERITIES[0] for config in expectations_of(suite))
    return dict(zip(names(suite), map(str, said), strict=True))


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one expectation for draindown, its `meta.draindown`."""
    own = (config.get("meta") or {}).get("draindown")
    return dict(own) if isinstance(own, dict) else {}


def unsafe(config: Mapping[str, Any]) -> str:
    """Return why an expectation may not be evaluated: it would run code or read files. Empty if it
    is plain data.
    """
    kwargs = config.get("kwargs") or {}
    for name, value in kwargs.items():
        if "query" in name:
            return f"{name}: SQL of a suite could run code or read files; use an expectation about columns"
        if name == "row_condition" and isinstance(value, str):
            try:
                check_code_free(value)
            except ValueError as error:
                return f"row_condition: {error}"
    return next(
        (f"$ref to {ref}: a schema may refer to itself only" for ref in _references(kwargs)), ""
    )


def _references(value: Any) -> Iterable[str]:
    """Yield JSON Schema references that point outside of their schema; they would be fetched."""
    if isinstance(value, str) and '"$ref"' in value:
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        ref = value.get("$ref")
        yield from [ref] if isinstance(ref, str) and not ref.startswith("#") else []
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _references(part)


def _name(config: Mapping[str, Any]) -> str:
    if options(config).get("name"):
        return str(options(config)["name"])
    columns = columns_of(config)
    return f"{config['type']}:{','.join(columns)}" if columns else str(config["type"])


def columns_of(config: Mapping[str, Any]) -> list[str]:
    """Return the columns that an expectation names, in its order."""
    kwargs = config.get("kwargs") or {}
    single = [str(kwargs[k]) for k in ("column", "column_A", "column_B") if kwargs.get(k)]
    return single + [str(c) for c in kwargs.get("column_list") or ()]
