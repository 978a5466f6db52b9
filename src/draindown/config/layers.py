"""Merge a pipeline file with what its project gives it, before anything is validated.

Nodes are merged, not values: each keeps its position, so an error points at the file that a value
came from. Mappings merge; lists and scalars replace. Of one key, in this order: the environment,
the flow or the pipeline itself, its template, the `defaults` of its file, those of the project.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draindown.config.connections import connected
from draindown.config.connections import problems as connection_problems
from draindown.config.derived import DerivedFlow
from draindown.config.file_errors import PROJECT_FILE
from draindown.config.landing import FlowSpec
from draindown.config.merged_keys import OF_TEMPLATE
from draindown.config.models import LANDING_FORM, form_of
from draindown.config.names import near
from draindown.config.nodes import (
    Budget,
    entry,
    filled,
    has_key,
    keys_of,
    mapping,
    merged,
    overlaid,
    unknown_keys,
    without,
)
from draindown.config.sources import OF_CSV, SOURCES, kind_of
from draindown.config.yaml_document import (
    FLOW_HOLE,
    MappingNode,
    Mark,
    Node,
    Problem,
    ScalarNode,
    build,
    holes,
)

FLOW_KEYS = (FlowSpec, DerivedFlow)
"""The models of a flow, whose keys a default or a template may give."""
_OF_KEYS = (
    "sequence_by",
    "apply_as_deletes",
    "stored_as_scd_type",
    "track_history",
    "ignore_null_updates",
)
"""Keys of a target that count with `keys` only."""


@dataclass(frozen=True)
class Layers:
    """What a project gives its pipelines, as nodes.

    Attributes:
        environment: the chosen one; "" in a project without environments.
        pipeline: keys of a pipeline that it may leave out, `lake` and `lease` included.
        flow: keys of a flow that it may leave out.
        override: keys of a pipeline that the environment sets.
        connections, overrides_of_connections: connections by name, those of the environment last.
        templates: flows with holes, by name.
        fills: the values of `${var.NAME}`, by `var.NAME`; `others`: those of other environments.
        root: the project's directory, from which a relative lake counts.
        lenient: whether environment variables may be missing, as those of another environment.
    """

    environment: str = ""
    pipeline: MappingNode | None = None
    flow: MappingNode | None = None
    override: MappingNode | None = None
    connections: MappingNode | None = None
    overrides_of_connections: MappingNode | None = None
    templates: Mapping[str, MappingNode] = field(default_factory=dict)
    fills: Mapping[str, Node] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)
    root: Path = Path()
    lenient: bool = False


def laid(
    root: Node | None, given: Layers, path: Path, environ: Mapping[str, str]
) -> tuple[Node | None, list[Problem]]:
    """Return the nodes of a pipeline with what the project gives it, and what can't be merged."""
    if not isinstance(root, MappingNode):
        return root, []
    work = _Merging(given, path, environ)
    return work.pipeline(root), work.problems


def place_of_lake(
    node: Node, root: Path, environ: Mapping[str, str], fills: Mapping[str, Node]
) -> str:
    """Return the absolute path of a lake, links followed; a variable that is not set stays as it is
    written.
    """
    return os.path.realpath(root / str(build(node, environ, fills).value))


class _Merging:
    """The merge of one pipeline file."""

    def __init__(self, given: Layers, path: Path, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._given, self._path, self._environ = given, path, environ
        self._budget = Budget()

    def pipeline(self, root: MappingNode) -> MappingNode:
        """Return the pipeline as one mapping."""
        given = self._given
        self._refuse_lease(root)
        self._check_lake(root)
        own = self._own_defaults(root)
        connections = self._connections(root)
        root = without(root, "defaults", "connections", "lease")
        flows = entry(root, "flows")
        if flows is not None and isinstance(flows[1], MappingNode):
            pairs = [
                (key, self._flow(key.text, one, own, connections))
                if isinstance(key, ScalarNode) and isinstance(one, MappingNode)
                else (key, one)
                for key, one in flows[1].pairs
            ]
            root = overlaid(root, mapping(root.mark, [(flows[0], mapping(flows[1].mark, pairs))]))
        if given.override is not None:
            root = overlaid(root, given.override)
        return root if given.pipeline is None else merged(root, given.pipeline, self._budget)

    def _flow(
        self, name: str, node: MappingNode, own: MappingNode | None, known: MappingNode | None
    ) -> MappingNode:
        path = ("flows", name)
        flow = self._templated(name, node)
        for defaults in (own, self._given.flow):
            if defaults is not None:
                flow = merged(flow, _fitting(defaults, flow), self._budget)
        return connected(flow, path, known, self._text, self.problems)

    def _templated(self, name: str, node: MappingNode) -> MappingNode:
        """Return a flow with the keys of its template, those beside it first."""
        path, template, params = ("flows", name), entry(node, "template"), entry(node, "params")
        rest = without(node, *OF_TEMPLATE)
        if template is None:
            if params is not None:
                self._say(params[0].mark, (*path, "params"), "is for a flow with a `template`")
            return rest
        wanted = self._text(template[1], (*path, "template"))
        found = self._given.templates.get(wanted)
        if found is None:
            if wanted:
                known = self._given.templates
                there = f"there are {', '.join(known)}" if known else "there is none"
                what = f"no template {wanted!r} in {PROJECT_FILE}: {there}{near(wanted, known)}"
                self._say(template[1].mark, (*path, "template"), what)
            return rest
        fills = self._params(name, found, wanted, params)
        by = f"template {wanted}, used at {self._at(template[0].mark)}"
        made = filled(found, fills, by, self._budget)
        assert isinstance(made, MappingNode), "a template is a mapping"
        return merged(rest, made, self._budget)

    def _params(
        self,
        name: str,
        template: MappingNode,
        wanted: str,
        params: tuple[ScalarNode, Node] | None,
    ) -> Mapping[str, Node]:
        """Return the values of a template's holes by name. A parameter without a hole is a
        problem.
        """
        path = ("flows", name, "params")
        fills = dict(self._given.fills) | {FLOW_HOLE: ScalarNode(template.mark, name, False, {})}
        used = {one.removeprefix("param.") for one in _holes(template) if one.startswith("param.")}
        if params is None:
            return fills
        if not isinstance(params[1], MappingNode):
            self._say(params[1].mark, path, "must be keys and values")
            return fills
        for key, value in params[1].pairs:
            if not isinstance(key, ScalarNode):
                self._say(key.mark, path, "a key must be a name, not a list or mapping")
                continue
            if key.text not in used:
                known = f"it has {', '.join(sorted(used))}" if used else "it has none"
                what = f"template {wanted} has no hole ${{param.{key.text}}}; {known}"
                self._say(key.mark, (*path, key.text), what + near(key.text, used))
            fills[f"param.{key.text}"] = value
        return fills

    def _own_defaults(self, root: MappingNode) -> MappingNode | None:
        found = entry(root, "defaults")
        if found is None:
            return None
        _, value = found
        if not isinstance(value, MappingNode):
            self._say(value.mark, ("defaults",), "must be keys and values, those of a flow")
            return None
        self.problems += unknown_keys(value, ("defaults",), FLOW_KEYS)
        return value

    def _connections(self, root: MappingNode) -> MappingNode | None:
        """Return the connections by name: the environment's, then the file's, then the
        project's.
        """
        found, own = self._given.connections, entry(root, "connections")
        if own is not None:
            self.problems += connection_problems(
                own[1], ("connections",), self._environ, self._given.fills
            )
            if isinstance(own[1], MappingNode):
                found = own[1] if found is None else merged(own[1], found, self._budget)
        first = self._given.overrides_of_connections
        if first is None:
            return found
        return first if found is None else merged(first, found, self._budget)

    def _refuse_lease(self, root: MappingNode) -> None:
        found = entry(root, "lease")
        if found is not None:
            what = (
                f"belongs to the lake, so it is in {PROJECT_FILE} at the project's root: "
                "`lease: {mode: shared, duration: 60s}`"
            )
            self._say(found[0].mark, ("lease",), what)

    def _check_lake(self, root: MappingNode) -> None:
        """Refuse a lake of the pipeline's own that an environment replaces, or that two
        environments share.
        """
        given, found = self._given, entry(root, "lake")
        if found is None or not given.environment:
            return
        if given.override is not None and has_key(given.override, "lake"):
            what = f"is set by environment {given.environment}: leave it out, or give it to `vars` of each environment"
            self._say(found[0].mark, ("lake",), what)
            return
        own = place_of_lake(found[1], given.root, self._environ, given.fills)
        for other, fills in given.others.items():
            if place_of_lake(found[1], given.root, self._environ, fills) == own:
                what = (
                    f"is one lake in environments {given.environment} and {other}: "
                    "write ${var.NAME}, with a value in `vars` of each"
                )
                self._say(found[1].mark, ("lake",), what)
                return

    def _text(self, node: Node, path: tuple[str, ...]) -> str:
        """Return the text of a scalar; "" with a problem if it has none."""
        made = build(node, self._environ, self._given.fills)
        if made.problems:
            self.problems += [
                Problem(one.mark, path, one.message, one.variable) for one in made.problems
            ]
            return ""
        if not isinstance(made.value, str) or not made.value:
            self._say(node.mark, path, "must be a name")
            return ""
        return made.value

    def _at(self, mark: Mark) -> str:
        return f"{mark.file or self._path}:{mark.line}:{mark.column}"

    def _say(self, mark: Mark, path: tuple[str, ...], message: str) -> None:
        self.problems.append(Problem(mark, path, message))


def _holes(node: Node) -> Iterator[str]:
    """Yield the names of the holes of a template, with repetitions."""
    waiting: list[Node] = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ScalarNode):
            yield from holes(one.text)
        elif isinstance(one, MappingNode):
            waiting += [value for _, value in one.pairs]
        else:
            waiting += one.items


def _fitting(defaults: MappingNode, flow: MappingNode) -> MappingNode:
    """Return those defaults whose keys a flow of this kind has."""
    source = entry(flow, "source") or entry(defaults, "source")
    of_source = dict.fromkeys(keys_of(source[1])) if source else {}
    form = form_of(dict.fromkeys(keys_of(flow)) | {"source": of_source})
    model = FlowSpec if form == LANDING_FORM else DerivedFlow
    pairs: list[tuple[Node, Node]] = []
    for key, value in defaults.pairs:
        if not isinstance(key, ScalarNode) or key.text not in model.model_fields:
            continue
        if key.text == "source" and isinstance(value, MappingNode):
            pairs.append((key, _fitting_source(value, of_source, model, flow)))
        elif key.text == "target" and isinstance(value, MappingNode):
            pairs.append((key, _fitting_target(value, model, flow)))
        else:
            pairs.append((key, value))
    return mapping(defaults.mark, pairs)


def _fitting_target(
    defaults: MappingNode, model: type[FlowSpec] | type[DerivedFlow], flow: MappingNode
) -> MappingNode:
    """Return the defaults of a target that one with the keys of the flow has."""
    known = getattr(model.model_fields["target"].annotation, "model_fields", {})
    fitting, target = _having(defaults, known), entry(flow, "target")
    own = keys_of(target[1]) if target else ()
    if model is DerivedFlow and "stored_as_scd_type" not in own:
        return without(fitting, "keys", *_OF_KEYS)
    if "keys" in own or has_key(fitting, "keys"):
        return fitting
    return without(fitting, *_OF_KEYS)


def _fitting_source(
    defaults: MappingNode,
    of_source: Mapping[str, object],
    model: type[FlowSpec] | type[DerivedFlow],
    flow: MappingNode,
) -> MappingNode:
    """Return the defaults of a source that one of its kind and format has."""
    if model is DerivedFlow:
        known = DerivedFlow.model_fields["source"].annotation
        return _having(defaults, getattr(known, "model_fields", {}))
    kind = SOURCES.get(kind_of(dict(of_source)) or "")
    fitting = defaults if kind is None else _having(defaults, kind.model_fields)
    source = entry(flow, "source")
    own = entry(source[1], "format") if source and isinstance(source[1], MappingNode) else None
    said = own or entry(defaults, "format")
    name = said[1].text if said and isinstance(said[1], ScalarNode) else ""
    lacking = () if name == "csv" or "$" in name else OF_CSV
    return without(fitting, *lacking, *(() if name == "json" or "$" in name else ("multiline",)))


def _having(node: MappingNode, known: Mapping[str, object]) -> MappingNode:
    pairs = [
        pair for pair in node.pairs if isinstance(pair[0], ScalarNode) and pair[0].text in known
    ]
    return mapping(node.mark, pairs)
