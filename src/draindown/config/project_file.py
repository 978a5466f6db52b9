"""The project file, `draindown.yaml`: what a project gives to all of its pipelines.

Its own keys are validated here. The values of `defaults` and `templates` are validated in each
pipeline that they become part of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from draindown.base.errors import TerminalError
from draindown.config.airflow_settings import AirflowSpec
from draindown.config.base import Model
from draindown.config.connections import Connection
from draindown.config.environment import VARIABLE
from draindown.config.file_errors import invalid, read_text
from draindown.config.layers import FLOW_KEYS, Layers, place_of_lake
from draindown.config.lease import LeaseSpec
from draindown.config.names import Identifier, lake_root, near
from draindown.config.nodes import (
    Budget,
    entry,
    has_key,
    mapping,
    marked,
    overlaid,
    unknown_keys,
    without,
)
from draindown.config.problems import explain
from draindown.config.schedule import Schedule
from draindown.config.yaml_document import (
    DocumentError,
    MappingNode,
    Node,
    Problem,
    ScalarNode,
    build,
    read,
)

_OVERRIDES = ("lake", "lease", "schedule")
_Values = dict[Identifier, Any]


_Tags = list[Annotated[str, Field(min_length=1, max_length=100)]]
_Lake = Annotated[str, Field(min_length=1), AfterValidator(lake_root)]


class Defaults(Model):
    """Keys of pipelines and flows that a pipeline file may leave out."""

    owner: str | None = Field(
        default=None,
        min_length=1,
        description="Who answers for the pipelines.",
        examples=["data-platform"],
    )
    schedule: Schedule = Field(
        default=None, description="Schedule of pipelines that have none.", examples=["@hourly"]
    )
    tags: _Tags | None = Field(default=None, description="Tags of the DAGs.")
    airflow: AirflowSpec | None = Field(
        default=None, description="How Airflow runs the tasks.", examples=[{"pool": "spark"}]
    )
    flow: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of every flow. A flow whose kind does not have a key goes without it.",
        examples=[{"quarantine": {"fail": "20%"}}],
    )


class Environment(Model):
    """What one environment sets. It replaces what the project and its pipelines say."""

    lake: _Lake | None = Field(default=None, description="Lake of all pipelines.")
    lease: LeaseSpec | None = Field(
        default=None, description="How drivers on several hosts exclude each other."
    )
    schedule: Schedule = Field(
        default=None, description="Schedule of all pipelines; manual: none.", examples=["manual"]
    )
    connections: dict[Identifier, Connection] = Field(
        default_factory=dict, description="Connections by name."
    )
    vars: _Values = Field(
        default_factory=dict,
        description="Values of ${var.NAME}, by name.",
        examples=[{"landing": "samples"}],
    )


class ProjectFile(Model):
    """One project file."""

    lake: _Lake | None = Field(
        default=None,
        description="Lake of pipelines that name none.",
        examples=["${DRAINDOWN_LAKE:-lake}"],
    )
    lease: LeaseSpec | None = Field(
        default=None,
        description="How drivers on several hosts exclude each other; absent: they can't.",
    )
    connections: dict[Identifier, Connection] = Field(
        default_factory=dict,
        description="How clients reach clusters and databases, by name: `kafka: {connection: NAME}`.",
    )
    defaults: Defaults = Field(
        default_factory=Defaults, description="Keys that pipeline files may leave out."
    )
    vars: _Values = Field(
        default_factory=dict,
        description="Values of ${var.NAME}, by name, for all environments.",
    )
    environments: dict[Identifier, Environment] = Field(
        default_factory=dict,
        description="What differs between environments, by name. One is chosen by --env or DRAINDOWN_ENV.",
    )
    templates: dict[Identifier, dict[str, Any]] = Field(
        default_factory=dict,
        description="Flows with holes, by name: ${flow} is the flow's name, ${param.NAME} a value of its `params`.",
    )


def environments(file: Path) -> list[str]:
    """Return the names of the environments that a project file has. Raises TerminalError
    `invalid-project`, and as `read_text`.
    """
    root = _read(file)
    found = entry(root, "environments")
    return [name for name, _ in _named(found[1])] if found else []


def gives_lake(file: Path) -> bool:
    """Return whether a project file names a lake, or environments, which name theirs. Raises as
    `environments`.
    """
    root = _read(file)
    return has_key(root, "lake") or has_key(root, "environments")


def in_each(file: Path, environ: Mapping[str, str]) -> Iterator[Layers]:
    """Yield what a project file gives to pipelines in each environment, the chosen one first.

    Without environments, there is one. In others than the chosen one, environment variables may be
    missing. Raises as `layers`.
    """
    names, chosen = environments(file), environ.get(VARIABLE, "")
    if not names or (chosen and chosen not in names):
        yield layers(file, environ)
        return
    for name in sorted(names, key=lambda one: one != chosen):
        yield layers(file, {**environ, VARIABLE: name}, lenient=name != chosen)


def layers(file: Path, environ: Mapping[str, str], *, lenient: bool = False) -> Layers:
    """Return what a project file gives to pipelines, in the environment that `environ` chooses.

    `lenient`: as the attribute of Layers. Raises TerminalError `invalid-project`,
    `environment-not-chosen`, `unknown-environment`, and as `read_text`.
    """
    root = _read(file)
    if root is None:
        return Layers(root=file.parent)
    if not isinstance(root, MappingNode):
        raise _invalid(
            file, [Problem(root.mark, (), "must be keys and values, such as `lake: lake`")]
        )
    try:
        return _Project(file, root, environ).layers(lenient)
    except DocumentError as error:
        raise _invalid(file, [Problem(error.mark, (), error.message)]) from None


class _Project:
    """One project file, read in one environment."""

    def __init__(self, file: Path, root: MappingNode, environ: Mapping[str, str]) -> None:
        self._file, self._root, self._environ = file, root, environ
        self._budget = Budget()
        found = entry(root, "environments")
        self._environments = dict(_named(found[1])) if found else {}
        self.chosen = self._choice()
        nodes: dict[str, Node | None] = {**self._environments} or {"": None}
        self._fills = {name: self._vars(node) for name, node in nodes.items()}

    def layers(self, lenient: bool) -> Layers:
        """Return the layers of the chosen environment."""
        root, env = self._root, self._environments.get(self.chosen)
        fills = self._fills[self.chosen]
        templates = entry(root, "templates")
        found = dict(_named(templates[1])) if templates else {}
        self._refuse(fills, found)
        defaults = entry(root, "defaults")
        given = _mapping(defaults)
        flow = _mapping(entry(given, "flow"))
        # an environment's lease is another one: half of it would be none of the two
        own = ("lake",) if entry(env, "lease") else ("lake", "lease")
        pipeline = mapping(root.mark, [pair for pair in root.pairs if _is(pair[0], *own)])
        if given is not None:
            pipeline = overlaid(pipeline, without(given, "flow"))
        override = None
        if isinstance(env, MappingNode):
            override = mapping(env.mark, [one for one in env.pairs if _is(one[0], *_OVERRIDES)])
        return Layers(
            environment=self.chosen,
            pipeline=pipeline,
            flow=flow,
            override=override,
            connections=_mapping(entry(root, "connections")),
            overrides_of_connections=_mapping(entry(env, "connections")),
            templates={name: one for name, one in found.items() if isinstance(one, MappingNode)},
            fills=fills,
            others={name: own for name, own in self._fills.items() if name != self.chosen},
            root=self._file.parent,
            lenient=lenient,
        )

    def _choice(self) -> str:
        """Return the chosen environment; "" in a project without any."""
        known, name = list(self._environments), self._environ.get(VARIABLE, "")
        if not known:
            return ""
        if name in known:
            return name
        there = f"{self._file} has environments {', '.join(known)}"
        tried = "choose the environment of the project"
        ways = [f"draindown --env {one} ..." for one in known[:3]]
        ways.append(f"export {VARIABLE}={known[0]}   # for Airflow, and for a shell")
        if name:
            found = f"there is no environment {name!r}; {there}{near(name, known)}"
            raise TerminalError("unknown-environment", tried=tried, found=found, next=ways)
        found = f"none is chosen, and there is no default; {there}"
        raise TerminalError("environment-not-chosen", tried=tried, found=found, next=ways)

    def _vars(self, environment: Node | None) -> dict[str, Node]:
        """Return the values of `${var.NAME}` in an environment, by `var.NAME`."""
        found: dict[str, Node] = {}
        for node in (self._root, environment):
            given = entry(node, "vars")
            for name, value in _named(given[1]) if given else ():
                found[f"var.{name}"] = marked(value, "", self._budget, {})
        return found

    def _refuse(self, fills: Mapping[str, Node], templates: Mapping[str, Node]) -> None:
        """Raise `invalid-project` for what is wrong with the file itself.

        A variable that is not set is a problem of the pipelines that use its value.
        """
        document = build(self._checked(templates), self._environ, fills)
        found = list(document.problems)
        try:
            ProjectFile.model_validate(document.value)
        except ValidationError as error:
            found += explain(error, document, ProjectFile)
        found = [one for one in found if not one.variable]
        flow = _mapping(entry(_mapping(entry(self._root, "defaults")), "flow"))
        if flow is not None:
            found += unknown_keys(flow, ("defaults", "flow"), FLOW_KEYS)
        for name, one in templates.items():
            found += _template_problems(name, one)
        found += self._lakes()
        if found:
            raise _invalid(self._file, found)

    def _checked(self, templates: Mapping[str, Node]) -> MappingNode:
        """Return the file without the insides of templates and of other environments."""
        root, empty = self._root, []
        for name, node in templates.items():
            is_map = isinstance(node, MappingNode)
            inside: Node = mapping(node.mark, []) if is_map else node
            empty.append((ScalarNode(node.mark, name, False), inside))
        found = entry(root, "templates")
        if found is not None and isinstance(found[1], MappingNode):
            keys = mapping(found[1].mark, empty)
            root = overlaid(root, mapping(root.mark, [(found[0], keys)]))
        found = entry(root, "environments")
        if found is not None and isinstance(found[1], MappingNode):
            own = [
                pair if _is(pair[0], self.chosen) else (pair[0], mapping(pair[1].mark, []))
                for pair in found[1].pairs
            ]
            root = overlaid(root, mapping(root.mark, [(found[0], mapping(found[1].mark, own))]))
        return root

    def _lakes(self) -> Iterator[Problem]:
        """Yield a problem for each environment whose lake is that of another one."""
        shared, first = entry(self._root, "lake"), dict[str, str]()
        for name, node in self._environments.items():
            own = entry(node, "lake")
            given = own or shared
            if given is None:
                continue
            place = place_of_lake(given[1], self._file.parent, self._environ, self._fills[name])
            other = first.setdefault(place, name)
            if other != name:
                what = f"is the lake of environment {other}, too: each environment needs its own"
                yield Problem(given[1].mark, ("environments", name, "lake"), what)


def _template_problems(name: str, node: Node) -> Iterator[Problem]:
    """Yield what is wrong with a template before its holes are filled."""
    if not isinstance(node, MappingNode):
        return
    path = ("templates", name)
    own = entry(node, "template")
    if own is not None:
        yield Problem(own[0].mark, (*path, "template"), "a template can't use another one")
    yield from unknown_keys(without(node, "template"), path, FLOW_KEYS)


def _read(file: Path) -> Node | None:
    text = read_text(file)
    try:
        return read(text, str(file))
    except DocumentError as error:
        raise _invalid(file, [Problem(error.mark, (), error.message)]) from None


def _invalid(file: Path, problems: list[Problem]) -> TerminalError:
    return invalid(
        file,
        problems,
        code="invalid-project",
        tried=f"load project file {file}",
        again="draindown validate",
    )


def _named(node: Node) -> Iterator[tuple[str, Node]]:
    for key, value in node.pairs if isinstance(node, MappingNode) else ():
        if isinstance(key, ScalarNode):
            yield key.text, value


def _mapping(found: tuple[ScalarNode, Node] | MappingNode | None) -> MappingNode | None:
    node = found[1] if isinstance(found, tuple) else found
    return node if isinstance(node, MappingNode) else None


def _is(key: Node, *names: str) -> bool:
    return isinstance(key, ScalarNode) and key.text in names
