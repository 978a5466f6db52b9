"""Whatever a key of a pipeline file holds: what is wrong with it is told in the words of draindown,
by its key.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.models import PipelineSpec
from draindown.config.problems import explain
from draindown.config.sources import SOURCES
from draindown.config.yaml_document import parse

Place = tuple[str | int, ...]
FEW = [None, 5, "x", [1], {"a": 1}]
MORE = [
    -1,
    1.5,
    True,
    "",
    [],
    {},
    [[1]],
    {"a": {"b": 1}},
    [{"a": 1}],
    [None],
    "2026-01-01",
    {"": "x"},
    [{}],
]
LANDING = {
    "source": {"files": "x", "format": "json"},
    "columns": {"id": "string not null", "at": "timestamp"},
}
KAFKA = LANDING | {
    "source": {"kafka": {"topic": "t", "bootstrap_servers": "k:1"}, "format": "json"}
}
DERIVED = {"source": {"table": "a"}}
_LIBRARY = re.compile(
    r"function-|value error|assertion failed|input should|should be a valid|unable to extract|field required"
    r"|pydantic|\b(list|dict|tuple|literal|nullable|is-instance|chain|model|union)\[|tag using",
    re.IGNORECASE,
)
"""Words of the validation library: parts of its messages, and of paths through its unions."""


def models(kind: Any) -> Iterator[tuple[Place, type[BaseModel]]]:
    """The models that a value of a type may have, each with its place within the value."""
    origin, given = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield (), kind
    elif origin is Annotated:
        yield from models(given[0])
    elif origin in (typing.Union, UnionType):
        for one in given:
            yield from models(one)
    elif origin in (list, dict):
        within: Place = (0,) if origin is list else ("k",)
        yield from ((within + place, model) for place, model in models(given[-1]))


def places(model: type[BaseModel], at: Place = ()) -> Iterator[Place]:
    """Every key below a model, by its path."""
    for name, field in model.model_fields.items():
        here = (*at, field.alias or name)
        yield here
        within = list(models(field.annotation))
        if model is FlowSpec and name == "source":
            within = [((), source) for source in SOURCES.values()]
        for place, one in within:
            if one not in (FlowSpec, DerivedFlow):
                yield from ([here + place] if place else [])
                yield from places(one, here + place)


def put(place: Place, value: Any, beside: Any) -> Any:
    """A document with a value at a place, and what stands beside it."""
    if not place:
        return value
    key, *rest = place
    if key == 0:
        return [put(tuple(rest), value, None)]
    others = beside if isinstance(beside, dict) else {}
    return others | {key: put(tuple(rest), value, others.get(key))}


def told(document: dict[str, Any]) -> list[str]:
    """What a person reads of a pipeline file."""
    parsed = parse(yaml.safe_dump(document), {})
    try:
        PipelineSpec.model_validate(parsed.value)
    except ValidationError as error:
        return [
            f"{'.'.join(problem.path)}: {problem.message}" for problem in explain(error, parsed)
        ]
    return []


def documents(place: Place, value: Any, form: str) -> dict[str, Any]:
    whole: dict[str, Any] = {"pipeline": "p", "lake": "l", "flows": {"a": LANDING}}
    if form == "pipeline":
        return put(place, value, whole)  # type: ignore[no-any-return]
    beside = (
        DERIVED
        if form == "derived"
        else KAFKA
        if "kafka" in place[:2] and place[0] == "source"
        else LANDING
    )
    return whole | {"flows": {"a": LANDING, "f": put(place, value, beside)}}


@pytest.mark.parametrize(
    ("form", "model"), [("pipeline", PipelineSpec), ("landing", FlowSpec), ("derived", DerivedFlow)]
)
@pytest.mark.parametrize(
    "values", [FEW, pytest.param(MORE, marks=pytest.mark.full)], ids=["few", "more"]
)
def test_no_text_of_the_validation_library_reaches_a_person(
    form: str, model: type[BaseModel], values: list[Any]
) -> None:
    wrong = 0
    for place in dict.fromkeys(places(model)):
        for value in values:
            lines = told(documents(place, value, form))
            wrong += bool(lines)
            assert [line for line in lines if _LIBRARY.search(line)] == [], (place, value)
    assert wrong > 20


@pytest.mark.parametrize("columns", [5, "x", True])
def test_columns_of_a_sink_are_a_list_or_a_mapping(columns: Any) -> None:
    sink = {"postgres": {"url": "${secret:U}", "table": "t"}, "columns": columns}
    lines = told(documents(("sinks", "k"), sink, "landing"))
    assert len(lines) == 1 and lines[0].startswith(
        "flows.f.sinks.k.columns: must be a list, such as [name], or keys"
    )


@pytest.mark.parametrize(
    ("columns", "at"), [(["_origin", "id"], "0"), ({"_origin": "o"}, "_origin"), (["id", 5], "1")]
)
def test_a_wrong_column_of_a_sink_is_named_once_by_its_place(columns: Any, at: str) -> None:
    sink = {"postgres": {"url": "${secret:U}", "table": "t"}, "columns": columns}
    lines = told(documents(("sinks", "k"), sink, "landing"))
    assert len(lines) == 1 and lines[0].startswith(f"flows.f.sinks.k.columns.{at}: ")
