"""The JSON Schemas of pipeline files and of the project file, for editors. Generated from the
models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from draindown.config.connections import Connection
from draindown.config.derived import KINDS, DerivedFlow
from draindown.config.formats import FORMATS
from draindown.config.kafka_sink import ONLY_ONCE, KafkaSink
from draindown.config.landing import FlowSpec
from draindown.config.merged_keys import CONNECTED, CONNECTION
from draindown.config.models import PipelineSpec
from draindown.config.project_file import ProjectFile
from draindown.config.sink import AT_LEAST_ONCE
from draindown.config.sinks import SINKS
from draindown.config.sources import OF_CSV, FilesSource

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
Rule = dict[str, Any]
"""A part of JSON Schema that an object must satisfy beside its keys."""


def _has(*names: str, **values: Any) -> Rule:
    """Return the rule that keys are there, each with a value that satisfies a schema: by default
    one that is no null.
    """
    given = {name: {"not": {"type": "null"}} for name in names} | values
    return {"properties": given, "required": list(given)}


def _if(rule: Rule, then: Rule) -> Rule:
    return {"if": rule, "then": then}


def _no(*names: str) -> Rule:
    """Return the rule that no key is there with a value that does not mean that it is absent."""
    return {"properties": {name: {"enum": [None, False, []]} for name in names}}


def _unset(model: type[BaseModel], name: str) -> Rule:
    """Return the rule that a key has its default, as far as the text shows it."""
    return {
        "properties": {name: {"anyOf": [{"const": model.model_fields[name].default}, _REFERENCE]}}
    }


_SOME = {"minItems": 1}
_TRACKED = _if(_has("track_history"), _has(stored_as_scd_type={"const": 2}))
_KEPT = {"type": "object", **_has(stored_as_scd_type={"const": 2})}
_OF_HISTORY = ("keys", "sequence_by", "apply_as_deletes")
_RULES: Mapping[str, Sequence[Rule]] = {
    "Target": (
        _if(_has(keys=_SOME), _has(sequence_by=_SOME)),
        _if(_has(sequence_by=_SOME), _has(keys=_SOME)),
        _if(_has("apply_as_deletes"), _has(keys=_SOME)),
        _if(_has(stored_as_scd_type={"const": 2}), _has(keys=_SOME)),
        _if(_has(stored_as_scd_type={"const": 2}), _no("ignore_null_updates")),
        _TRACKED,
    ),
    "DerivedTarget": (
        _if(_has("stored_as_scd_type"), _has(keys=_SOME, sequence_by=_SOME)),
        {"anyOf": [_has("stored_as_scd_type"), _no(*_OF_HISTORY)]},
        _TRACKED,
    ),
    "KafkaCluster": ({"oneOf": [_has(topics=_SOME), _has("topic_pattern")]},),
    "KafkaSink": (
        _if(
            {"not": {"allOf": [_unset(KafkaSink, name) for name in ONLY_ONCE]}},
            _has(delivery={"not": {"const": AT_LEAST_ONCE}}),
        ),
    ),
    "FlowSink": ({"oneOf": [_has(kind) for kind in SINKS]},),
    "TableSource": ({"oneOf": [_has("table"), _has(tables=_SOME)]},),
    "DerivedFlow": (
        {"oneOf": [*(_has(kind) for kind in KINDS if kind != "history"), _has(target=_KEPT)]},
        {"anyOf": [_has("query"), {"properties": {"source": _no("tables")}}]},
    ),
}
"""What models refuse by several keys of one object, by the model's name."""
_OF_FILES: Sequence[Rule] = (
    _if(
        _has(format={"enum": [name for name, form in FORMATS.items() if not form.delimited]}),
        {"allOf": [_unset(FilesSource, name) for name in OF_CSV]},
    ),
    _if(
        _has(format={"enum": [name for name, form in FORMATS.items() if not form.json_columns]}),
        _no("multiline"),
    ),
    {"not": _has("max_bytes_per_trigger", "max_files_per_trigger")},
)
_NAMES = r"^[a-z][a-z0-9_]{0,62}$"
_DEFAULTS = "Keys of a flow that the flows of this file may leave out."
_NARROW = ("pattern", "enum", "const", "maxLength")


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the files that `loader.load` accepts, before
    `${NAME}` is replaced.

    The schema accepts a little more than the loader, which also judges expressions, types, names
    of columns, and combinations that are not among those of `_RULES`. It does not know the project
    file: of what that gives, only `lake` may be left out, and a reference is a part of a text, not
    a whole list or number.
    """
    whole = PipelineSpec.model_json_schema()
    connection = Connection.model_json_schema()
    whole["$defs"] |= connection.pop("$defs") | {"Connection": connection}
    whole["required"].remove("lake")
    properties = whole["properties"]
    del properties["lease"], whole["$defs"]["LeaseSpec"]  # the project file's
    properties["defaults"] = {"description": _DEFAULTS, **_some_keys()}
    properties["connections"] = {
        "description": "How clients reach clusters and databases, by name.",
        "patternProperties": {_NAMES: {"$ref": "#/$defs/Connection"}},
        "type": "object",
    }
    models = whole["$defs"]
    for name, rules in _RULES.items():
        models[name]["allOf"] = list(rules)
    for source in models["FlowSpec"]["properties"]["source"]["anyOf"]:
        if FilesSource.kind in source["properties"]:
            source["allOf"] = list(_OF_FILES)
    for model, key in CONNECTED.items():
        _connect(models[model.__name__], key)
    whole["$defs"]["TemplatedFlow"] = _templated()
    flows = properties["flows"]["patternProperties"][_NAMES]
    flows["oneOf"].append({"$ref": "#/$defs/TemplatedFlow"})
    return _entitled(whole, "draindown pipeline")


def project_schema() -> dict[str, Any]:
    """Return the JSON Schema of the project file, before `${NAME}` is replaced."""
    whole = ProjectFile.model_json_schema()
    flow = whole["$defs"]["Defaults"]["properties"]["flow"]
    flow |= _some_keys()
    templates = whole["properties"]["templates"]
    templates["patternProperties"] = {_NAMES: _some_keys()}
    return _entitled(whole, "draindown project")


def schema_text() -> str:
    """Return the schema as the text of docs/pipeline.schema.json."""
    return _text(schema())


def project_schema_text() -> str:
    """Return the schema of the project file as the text of docs/project.schema.json."""
    return _text(project_schema())


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _entitled(whole: dict[str, Any], title: str) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_adapted(whole),
        "title": title,
    }


def _some_keys() -> dict[str, Any]:
    """Return the schema of a mapping with some keys of a flow, whose values are not judged."""
    fields = {**DerivedFlow.model_fields, **FlowSpec.model_fields}
    properties = {
        name: {"description": field.description or name} for name, field in fields.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _templated() -> dict[str, Any]:
    """Return the schema of a flow that uses a template."""
    whole = _some_keys()
    own = {
        "template": {"type": "string", "description": "A template of draindown.yaml."},
        "params": {"type": "object", "description": "Values of the template's holes, by name."},
    }
    whole["properties"] = own | whole["properties"]
    return {**whole, "required": ["template"], "description": "A flow that uses a template."}


def _connect(model: dict[str, Any], key: str) -> None:
    """Let a schema take the name of a connection in the place of its address."""
    said = {"type": "string", "description": "The connection whose keys it has."}
    model["properties"] = {CONNECTION: said} | model["properties"]
    rest = [name for name in model["required"] if name != key]
    del model["required"]
    if rest:
        model["required"] = rest
    model["anyOf"] = [{"required": [key]}, {"required": [CONNECTION]}]


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
    texts = {"pipeline": schema_text, "project": project_schema_text}
    sys.stdout.write(texts[(sys.argv[1:] or ["pipeline"])[0]]())
