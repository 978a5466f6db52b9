"""The JSON Schema of a pipeline file, for editors. Generated from the spec."""

from __future__ import annotations

import json
import sys
from typing import Any

from draindown.config.models import PipelineSpec

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_NARROW = ("pattern", "enum", "const", "maxLength")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the files that `loader.load` accepts, before
    `${NAME}` is replaced.

    The schema accepts a little more than the loader, which also judges combinations of keys,
    expressions and types.
    """
    generated = _adapted(PipelineSpec.model_json_schema())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **generated,
        "title": "draindown pipeline",
    }


def schema_text() -> str:
    """Return the schema as the text of docs/pipeline.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _adapted(node: Any, named: bool = False) -> Any:
    """Return the node without generated titles, with column names enforced, and `${NAME}` allowed
    wherever text is.

    If `named`, the keys of `node` are names that a user chose, not keywords of JSON Schema.
    """
    if isinstance(node, list):
        return [_adapted(item) for item in node]
    if not isinstance(node, dict):
        return node
    if named:
        return {name: _adapted(item) for name, item in node.items()}
    result = {
        key: value
        if key in ("default", "examples", "enum", "required")
        else _adapted(value, key in ("properties", "$defs"))
        for key, value in node.items()
        if key not in ("title", "patternProperties")
    }
    if "patternProperties" in node:
        ((pattern, value),) = node["patternProperties"].items()
        result |= {"propertyNames": {"pattern": pattern}, "additionalProperties": _adapted(value)}
    return _with_reference(result)


def _with_reference(node: dict[str, Any]) -> dict[str, Any]:
    narrow = {key: node[key] for key in ("type", *_NARROW, "minLength") if key in node}
    if node.get("type") != "string" or not any(key in node for key in _NARROW):
        return node
    rest = {key: value for key, value in node.items() if key not in narrow}
    return {**rest, "anyOf": [narrow, dict(_REFERENCE)]}


if __name__ == "__main__":
    sys.stdout.write(schema_text())
