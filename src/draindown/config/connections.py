"""Connections: how clients reach a Kafka cluster or a Postgres database, said once under a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Optional

from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from draindown.config.base import Model, refuse
from draindown.config.kafka import KafkaConnection
from draindown.config.merged_keys import CONNECTION
from draindown.config.names import Identifier, near
from draindown.config.nodes import entry, keys_of, mapping, overlaid, without
from draindown.config.postgres_sink import PostgresSink
from draindown.config.yaml_document import MappingNode, Node, Problem, ScalarNode, build

SINKS = "sinks"
"""The key of a flow with its sinks by name."""
KINDS = ("kafka", "postgres")


def _optional(name: str, model: type[BaseModel], keys: Iterable[str]) -> type[Model]:
    """Return a model of some fields of another one, of which each may be left out."""
    fields: dict[str, Any] = {}
    for key in keys:
        field = model.model_fields[key]
        kind: Any = field.rebuild_annotation()
        fields[key] = (
            Optional[kind],  # noqa: UP045 - `kind` is a value, which has no operators
            Field(default=None, description=field.description, examples=field.examples),
        )
    made: type[Model] = create_model(name, __base__=Model, **fields)
    return made


KafkaKeys = _optional("KafkaKeys", KafkaConnection, KafkaConnection.model_fields)
PostgresKeys = _optional("PostgresKeys", PostgresSink, ("url",))


class Connection(Model):
    """How clients connect: keys of `kafka` or of `postgres`."""

    kafka: KafkaKeys | None = Field(  # type: ignore[valid-type]
        default=None, description="Of sources and sinks: how clients connect to a Kafka cluster."
    )
    postgres: PostgresKeys | None = Field(  # type: ignore[valid-type]
        default=None, description="Of sinks: the address of a Postgres database."
    )

    @model_validator(mode="after")
    def _combination(self) -> Connection:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            what = (
                f"has {' and '.join(given)}: keep one"
                if given
                else f"needs one of {', '.join(KINDS)}"
            )
            refuse([((), what)])
        return self


Connections = dict[Identifier, Connection]


class _Named(Model):
    connections: Connections


def problems(
    node: Node, path: tuple[str, ...], environ: Mapping[str, str], fills: Mapping[str, Node]
) -> Iterator[Problem]:
    """Yield what is wrong with connections by name. A variable that is not set is no problem until
    the connection is used.
    """
    from draindown.config.problems import explain

    whole = mapping(node.mark, [(ScalarNode(node.mark, path[-1], False), node)])
    document = build(whole, environ, fills)
    found = [one for one in document.problems if not one.variable]
    try:
        _Named.model_validate(document.value)
    except ValidationError as error:
        found += explain(error, document, _Named)
    for one in found:
        yield Problem(one.mark, (*path[:-1], *one.path), one.message)


def connected(
    flow: MappingNode,
    path: tuple[str, ...],
    known: MappingNode | None,
    text: Callable[[Node, tuple[str, ...]], str],
    found: list[Problem],
) -> MappingNode:
    """Return a flow whose source and sinks have the keys of the connections that they name.

    `known`: connections by name. `text`: returns the text of a scalar. Problems are added to
    `found`.
    """

    def within(node: MappingNode, place: tuple[str, ...], kinds: Iterable[str]) -> MappingNode:
        for kind in kinds:
            part = entry(node, kind)
            if part and isinstance(part[1], MappingNode) and (named := entry(part[1], CONNECTION)):
                where = (*place, kind)
                name = text(named[1], (*where, CONNECTION))
                made = _with_keys(part[1], where, kind, (name, named[1]), known, found)
                node = overlaid(node, mapping(node.mark, [(part[0], made)]))
        return node

    source, sinks = entry(flow, "source"), entry(flow, SINKS)
    if source and isinstance(source[1], MappingNode):
        made = within(source[1], (*path, "source"), ("kafka",))
        flow = overlaid(flow, mapping(flow.mark, [(source[0], made)]))
    if sinks and isinstance(sinks[1], MappingNode):
        pairs = [
            (key, within(sink, (*path, SINKS, key.text), KINDS))
            if isinstance(key, ScalarNode) and isinstance(sink, MappingNode)
            else (key, sink)
            for key, sink in sinks[1].pairs
        ]
        flow = overlaid(flow, mapping(flow.mark, [(sinks[0], mapping(sinks[1].mark, pairs))]))
    return flow


def _with_keys(
    part: MappingNode,
    path: tuple[str, ...],
    kind: str,
    named: tuple[str, Node],
    known: MappingNode | None,
    found: list[Problem],
) -> MappingNode:
    """Return a part that names a connection with the keys of it."""
    name, node = named
    rest, one = without(part, CONNECTION), entry(known, name)
    if not name:
        return rest
    if one is None:
        names = keys_of(known) if known is not None else []
        there = f"there are {', '.join(names)}" if names else "there is none"
        what = f"no connection {name!r} in `connections`: {there}{near(name, names)}"
        found.append(Problem(node.mark, (*path, CONNECTION), what))
        return rest
    keys = entry(one[1], kind)
    if keys is None or not isinstance(keys[1], MappingNode):
        what = f"connection {name} is of {' and '.join(keys_of(one[1]))}, not of {kind}"
        found.append(Problem(node.mark, (*path, CONNECTION), what))
        return rest
    for key, _ in rest.pairs:
        if isinstance(key, ScalarNode) and (twice := entry(keys[1], key.text)):
            mark = twice[0].mark
            where = f"{mark.file + ':' if mark.file else 'line '}{mark.line}"
            what = f"connection {name} sets it, too ({where}): keep one of the two"
            found.append(Problem(key.mark, (*path, key.text), what))
    return overlaid(rest, keys[1])
