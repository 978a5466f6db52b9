"""Work on the nodes of YAML files: find and drop keys, merge, fill the holes of a template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from draindown.config import renamed
from draindown.config.merged_keys import CONNECTED, CONNECTION
from draindown.config.names import near
from draindown.config.source import SourceSpec
from draindown.config.sources import SOURCES
from draindown.config.yaml_document import (
    MAX_VALUES,
    DocumentError,
    MappingNode,
    Mark,
    Node,
    Problem,
    ScalarNode,
    SequenceNode,
    hole,
)


class Budget:
    """Bounds the nodes that a merge makes: aliases may stand for very many."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def spend(self, node: Node) -> None:
        """Count one node. Raises DocumentError if there are too many."""
        self._left -= 1
        if self._left < 0:
            raise DocumentError(
                node.mark, f"defaults and templates make more than {MAX_VALUES} values"
            )


def mapping(mark: Mark, pairs: Iterable[tuple[Node, Node]]) -> MappingNode:
    """Return a mapping of these keys and values."""
    return MappingNode(mark, list(pairs))


def entry(node: Node | None, key: str) -> tuple[ScalarNode, Node] | None:
    """Return key and value of a mapping; None if it has no such key, or is no mapping."""
    for own, value in node.pairs if isinstance(node, MappingNode) else ():
        if isinstance(own, ScalarNode) and own.text == key:
            return own, value
    return None


def has_key(node: Node | None, key: str) -> bool:
    """Return whether a mapping has a key."""
    return entry(node, key) is not None


def keys_of(node: Node) -> list[str]:
    """Return the keys of a mapping; none of another node."""
    pairs = node.pairs if isinstance(node, MappingNode) else ()
    return [key.text for key, _ in pairs if isinstance(key, ScalarNode)]


def without(node: MappingNode, *keys: str) -> MappingNode:
    """Return a mapping without some keys."""
    if not any(has_key(node, key) for key in keys):
        return node
    pairs = [
        (key, value)
        for key, value in node.pairs
        if not (isinstance(key, ScalarNode) and key.text in keys)
    ]
    return mapping(node.mark, pairs)


def overlaid(under: MappingNode, over: MappingNode) -> MappingNode:
    """Return `under` with the keys of `over` in place of its own."""
    replaced = {key.text: (key, value) for key, value in over.pairs if isinstance(key, ScalarNode)}
    pairs = [
        replaced.pop(key.text, (key, value)) if isinstance(key, ScalarNode) else (key, value)
        for key, value in under.pairs
    ]
    return mapping(under.mark, [*pairs, *replaced.values()])


def merged(over: MappingNode, under: MappingNode, budget: Budget) -> MappingNode:
    """Return `over` with what only `under` has after it. Mappings in both merge, too. Raises
    DocumentError.
    """
    pairs, known = [], set()
    for key, value in over.pairs:
        budget.spend(value)
        if isinstance(key, ScalarNode) and key.text not in known:
            known.add(key.text)
            below = entry(under, key.text)
            if isinstance(value, MappingNode) and below and isinstance(below[1], MappingNode):
                value = merged(value, below[1], budget)
        pairs.append((key, value))
    rest = [
        pair
        for pair in under.pairs
        if not (isinstance(pair[0], ScalarNode) and pair[0].text in known)
    ]
    return mapping(over.mark, [*pairs, *rest])


def filled(node: Node, fills: Mapping[str, Node], by: str, budget: Budget) -> Node:
    """Return a template's node with its holes filled. `by`: which flow uses it, for its positions.

    A hole that is a whole value becomes the value's node, with a position of its own. Raises
    DocumentError if the nodes are too many.
    """
    budget.spend(node)
    match node:
        case ScalarNode():
            name = hole(node.text)
            value = fills.get(name) if name and name.startswith("param.") else None
            if value is not None:
                at = f"{node.mark.file}:{node.mark.line}:{node.mark.column}"
                return marked(value, f"value of ${{{name}}} at {at}", budget)
            return replace(node, mark=replace(node.mark, by=by), fills=fills)
        case SequenceNode():
            items = [filled(item, fills, by, budget) for item in node.items]
            return SequenceNode(replace(node.mark, by=by), items)
        case MappingNode():
            pairs = [
                (marked(key, by, budget), filled(value, fills, by, budget))
                for key, value in node.pairs
            ]
            return mapping(replace(node.mark, by=by), pairs)


def marked(node: Node, by: str, budget: Budget, fills: Mapping[str, Node] | None = None) -> Node:
    """Return a node whose positions say `by`. `fills`: of its scalars, if they have holes of their
    own.
    """
    budget.spend(node)
    mark = replace(node.mark, by=by) if by else node.mark
    match node:
        case ScalarNode():
            return replace(node, mark=mark, fills=node.fills if fills is None else fills)
        case SequenceNode():
            return SequenceNode(mark, [marked(item, by, budget, fills) for item in node.items])
        case MappingNode():
            pairs = [
                (marked(key, by, budget, fills), marked(value, by, budget, fills))
                for key, value in node.pairs
            ]
            return mapping(mark, pairs)


def unknown_keys(
    node: MappingNode, path: tuple[str, ...], models: Sequence[Any]
) -> Iterator[Problem]:
    """Yield a problem for each key, at any depth, that no model has at its place."""
    for key, value in node.pairs:
        if not isinstance(key, ScalarNode):
            yield Problem(key.mark, path, "a key must be a name, not a list or mapping")
            continue
        known, below = _step(models, key.text)
        if known is not None and key.text not in known:
            allowed = f"unknown key; allowed: {', '.join(known)}{near(key.text, known)}"
            what = renamed.new_word(("flows", "", *path[2:]), key.text) or allowed
            yield Problem(key.mark, (*path, key.text), what)
        elif below and isinstance(value, MappingNode):
            yield from unknown_keys(value, (*path, key.text), below)


class _Named:
    """The values of a mapping whose keys are names that a user chose."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _step(models: Sequence[Any], key: str) -> tuple[dict[str, None] | None, list[Any]]:
    """Return the keys that the models have, None if any is one, and the models of the value of
    `key`.
    """
    known: dict[str, None] | None = {}
    below: list[Any] = []
    for model in models:
        if isinstance(model, _Named):
            known, below = None, [*below, *_models(model.value)]
            continue
        names = dict.fromkeys(model.model_fields)
        if model in CONNECTED:
            names[CONNECTION] = None
        known = None if known is None else known | names
        if key in model.model_fields:
            below += _models(model.model_fields[key].annotation)
    return known, below


def _models(kind: Any) -> list[Any]:
    """Return the models of which a value of this type may be; none if it is no mapping of keys."""
    if kind is SourceSpec:
        return list(SOURCES.values())
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    if get_origin(kind) is dict:
        return [_Named(get_args(kind)[1])]
    if get_origin(kind) in (Union, UnionType) or hasattr(kind, "__metadata__"):
        return [model for one in get_args(kind) for model in _models(one)]
    return []
