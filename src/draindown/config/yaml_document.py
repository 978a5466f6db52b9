"""YAML text as plain values with their positions, read event by event so that depth and size are
bounded.

Scalars follow the core schema of YAML 1.2: `yes`, `on`, dates and `1:30` are text. `${NAME}` is
replaced in values only, once, after parsing: a value from the environment is never read as YAML and
never expanded again.

Reading has two steps: `read` gives nodes, which `config.layers` merges with those of the project
file, and `build` gives their values. A node keeps the position in the file that it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from draindown.config.names import near

MAX_BYTES = 1024**2
MAX_VALUES = 50_000
MAX_DEPTH = 40
Path = tuple[str, ...]
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
FLOW_HOLE = "flow"
"""The hole of a template that is the name of the flow. Elsewhere it is an environment variable."""
_UNPRINTABLE = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]{1,30}|[0-9]{1,400}(?:\.[0-9]{0,30})?)(?:[eE][-+]?[0-9]{1,4})?"
)
_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)"
    r"|\{(?P<secret>secret:[A-Za-z_][A-Za-z0-9_]*)\}"
    r"|\{(?P<name>(?:(?:var|param)\.)?[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<open>\{))"
)


class Lenient(dict[str, str]):
    """Environment variables of which some need not be set: the name of such a one is its value."""


@dataclass(frozen=True, order=True)
class Mark:
    """A position in a text. Both numbers start at 1.

    `file` is empty in the file that is read itself. `by` says, as text, which flow uses a value of
    a template.
    """

    line: int
    column: int
    file: str = ""
    by: str = ""


@dataclass(frozen=True)
class Problem:
    """A problem at a position. `variable` is the name of a missing environment variable, if that is
    the problem.
    """

    mark: Mark
    path: Path
    message: str
    variable: str | None = None


@dataclass
class Document:
    """The values of one file, the positions of keys and values, and the problems found."""

    value: Value = None
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def key_mark(self, path: Path) -> Mark:
        """Return the position of the key at the path, or of its closest existing ancestor."""
        return self._closest(path, self.keys, self.values)

    def value_mark(self, path: Path) -> Mark:
        """Return the position of the value at the path, or of its closest existing ancestor."""
        return self._closest(path, self.values, self.keys)

    def _closest(self, path: Path, first: dict[Path, Mark], second: dict[Path, Mark]) -> Mark:
        while path:
            mark = first.get(path) or second.get(path)
            if mark:
                return mark
            path = path[:-1]
        return Mark(1, 1)


class DocumentError(Exception):
    """The text can't be read as one document of plain values."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


@dataclass(frozen=True)
class ScalarNode:
    """A scalar as it is written. `fills`: values of its holes by name; None: those of the file."""

    mark: Mark
    text: str
    plain: bool
    fills: Mapping[str, Node] | None = None


@dataclass(frozen=True)
class SequenceNode:
    """A list."""

    mark: Mark
    items: list[Node]


@dataclass(frozen=True)
class MappingNode:
    """Keys and values, in the order of the file; a key may be repeated."""

    mark: Mark
    pairs: list[tuple[Node, Node]]


Node = ScalarNode | SequenceNode | MappingNode


def parse(text: str, environ: Mapping[str, str]) -> Document:
    """Return values, positions and problems of a YAML text.

    Raises DocumentError if it is not exactly one YAML document.
    """
    return build(read(text), environ)


def read(text: str, file: str = "") -> Node | None:
    """Return the nodes of a YAML text; None if it is empty. Raises DocumentError as `parse` does.

    `file`: for the positions of the nodes.
    """
    bad = _UNPRINTABLE.search(text)
    if bad:
        raise DocumentError(
            _mark_at(text, bad.start()), f"unprintable character U+{ord(bad[0]):04X}"
        )
    return _Reader(text, file).document()


def build(
    root: Node | None, environ: Mapping[str, str], fills: Mapping[str, Node] | None = None
) -> Document:
    """Return values, positions and problems of nodes. Raises DocumentError if they are too many.

    `fills`: the values of `${var.NAME}`, by `var.NAME`.
    """
    builder = _Builder(environ, fills or {})
    if root is not None:
        builder.document.value = builder.build(root, ())
    return builder.document


def hole(text: str) -> str | None:
    """Return the name of the hole that a text consists of, such as `param.keys`; None if it is
    another text.
    """
    found = _REFERENCE.fullmatch(text)
    name = found["name"] if found else None
    return name if name is not None and _is_hole(name) else None


def holes(text: str) -> set[str]:
    """Return the names of all holes in a text."""
    names = (found["name"] for found in _REFERENCE.finditer(text))
    return {name for name in names if name is not None and _is_hole(name)}


def _is_hole(name: str) -> bool:
    return "." in name or name == FLOW_HOLE


def is_text(text: str) -> bool:
    """Return whether a plain scalar is read as text, and not as null, a truth value or a number."""
    return not any(kind.fullmatch(text) for kind in (_NULL, _BOOL, _INT, _FLOAT))


def _mark_at(text: str, index: int) -> Mark:
    start = text.rfind("\n", 0, index) + 1
    return Mark(text.count("\n", 0, index) + 1, index - start + 1)


class _Reader:
    """Builds nodes from parser events. An alias shares the node of its anchor."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._anchors: dict[str, Node] = {}

    def document(self) -> Node | None:
        events = self._events()
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise DocumentError(
                        self._mark(event),
                        "a second document starts here (---); one file holds one pipeline",
                    )
                root = self._node(next(events), events, 0)
        return root

    def _events(self) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(self._text, Loader=yaml.CSafeLoader)
        except yaml.MarkedYAMLError as error:
            raise self._explained(error) from None
        except yaml.YAMLError as error:
            raise DocumentError(Mark(1, 1), f"is not YAML: {error}") from None

    def _explained(self, error: yaml.MarkedYAMLError) -> DocumentError:
        at = error.problem_mark or error.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
        # libyaml counts lines as split here: \n, \r\n, \r
        lines = re.split(r"\r\n|\n|\r", self._text)
        line = lines[mark.line - 1] if mark.line <= len(lines) else ""
        indent = line[: len(line) - len(line.lstrip())]
        if "\t" in indent:
            at_tab = Mark(mark.line, indent.index("\t") + 1)
            return DocumentError(at_tab, "a tab indents this line; YAML takes only spaces for that")
        if line[mark.column - 1 : mark.column] == "\t":
            return DocumentError(mark, "a tab can't stand here; YAML takes only spaces")
        about = ", ".join(part for part in (error.context, error.problem) if part)
        hint = (
            "; quote a value that contains ': '"
            if "mapping values are not allowed" in about
            else ""
        )
        return DocumentError(mark, f"is not YAML: {about}{hint}")

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        mark = self._mark(event)
        if depth > MAX_DEPTH:
            raise DocumentError(mark, f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise DocumentError(
                    mark, f"alias *{event.anchor} has no finished anchor &{event.anchor} before it"
                )
            return self._anchors[event.anchor]
        # no other event starts a node
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag not in (None, "!"):
            raise DocumentError(mark, f"tag {event.tag!r} is refused; write plain values")
        node = self._plain_node(event, events, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _plain_node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
        mark = self._mark(event)
        if isinstance(event, yaml.ScalarEvent):
            return ScalarNode(mark, event.value, plain=bool(event.implicit[0]))
        if isinstance(event, yaml.SequenceStartEvent):
            return SequenceNode(mark, list(self._children(events, yaml.SequenceEndEvent, depth)))
        nodes = list(self._children(events, yaml.MappingEndEvent, depth))
        return MappingNode(mark, list(zip(nodes[::2], nodes[1::2], strict=True)))

    def _children(
        self, events: Iterator[yaml.Event], end: type[yaml.Event], depth: int
    ) -> Iterator[Node]:
        while not isinstance(event := next(events), end):
            yield self._node(event, events, depth + 1)

    def _mark(self, event: yaml.Event) -> Mark:
        assert event.start_mark is not None  # the C parser sets it on every event
        return Mark(event.start_mark.line + 1, event.start_mark.column + 1, self._file)


class _Builder:
    """Builds values from nodes, records their positions and fills in environment variables."""

    def __init__(self, environ: Mapping[str, str], fills: Mapping[str, Node]) -> None:
        self.document = Document()
        self._environ, self._fills = environ, fills
        self._left = MAX_VALUES

    def build(self, node: Node, path: Path) -> Value:
        self._left -= 1
        if self._left < 0:
            raise DocumentError(
                node.mark,
                f"aliases and values come to more than {MAX_VALUES}; write less in one file",
            )
        if len(path) > MAX_DEPTH:
            raise DocumentError(
                node.mark, f"is nested more than {MAX_DEPTH} levels deep, through aliases"
            )
        self.document.values[path] = node.mark
        match node:
            case ScalarNode():
                return self._scalar(node, path)
            case SequenceNode():
                return [self.build(item, (*path, str(at))) for at, item in enumerate(node.items)]
            case MappingNode():
                return self._mapping(node, path)

    def _mapping(self, node: MappingNode, path: Path) -> Value:
        result: dict[str, Value] = {}
        marks: dict[str, Mark] = {}
        for key, value in node.pairs:
            if not isinstance(key, ScalarNode):
                self._problem(key.mark, path, "a key must be a name, not a list or mapping")
            elif key.text == "<<" and key.plain:
                self._problem(
                    key.mark,
                    path,
                    "merge keys (<<) are refused; repeat the keys, or alias a whole value",
                )
            elif key.text in marks:
                self._problem(
                    key.mark,
                    (*path, key.text),
                    f"duplicate key; first on line {marks[key.text].line}",
                )
            else:
                marks[key.text] = self.document.keys[*path, key.text] = key.mark
                result[key.text] = self.build(value, (*path, key.text))
        return result

    def _scalar(self, node: ScalarNode, path: Path) -> Value:
        text = node.text
        if node.plain:
            if _NULL.fullmatch(text):
                return None
            if _BOOL.fullmatch(text):
                return text.lower() == "true"
            if _INT.fullmatch(text):
                return int(text)
            if _FLOAT.fullmatch(text):
                return float(text)
        if "$" not in text:
            return text
        whole = hole(text)
        fill = self._fills_of(node).get(whole) if whole else None
        return self._text(node, path) if fill is None else self.build(fill, path)

    def _fills_of(self, node: ScalarNode) -> Mapping[str, Node]:
        return self._fills if node.fills is None else node.fills

    def _text(self, node: ScalarNode, path: Path) -> str:
        return _REFERENCE.sub(lambda found: self._resolved(found, node, path), node.text)

    def _resolved(self, found: re.Match[str], node: ScalarNode, path: Path) -> str:
        mark, fills = node.mark, self._fills_of(node)
        if found["dollar"]:
            return "$"
        if found["secret"]:
            return found[0]
        if found["open"]:
            self._problem(
                mark,
                path,
                "'${' is no ${NAME}, ${NAME:-default}, ${var.NAME} or ${secret:NAME}; write $${ for the text",
            )
            return found[0]
        name, default = found["name"], found["default"]
        if "." in name or name in fills:
            return self._filled(found, fills, node, path)
        value = self._environ.get(name)
        if default is not None:
            return value or default
        if value is None and f"var.{name}" in fills:
            message = f"environment variable {name} is not set, and `vars` has {name}: write ${{var.{name}}}"
            self._problem(mark, path, message)
            return found[0]
        if value is None:
            ways = f"export {name}=..., or write ${{{name}:-default}}, or ${{secret:{name}}} for a secret"
            message = f"environment variable {name} is not set; {ways}"
            self.document.problems.append(Problem(mark, path, message, variable=name))
            return name if isinstance(self._environ, Lenient) else found[0]
        return value

    def _filled(
        self, found: re.Match[str], fills: Mapping[str, Node], node: ScalarNode, path: Path
    ) -> str:
        """Return the text of a hole within text."""
        name, fill = found["name"], fills.get(found["name"])
        if isinstance(fill, ScalarNode) and not (fill.plain and _NULL.fullmatch(fill.text)):
            return self._text(fill, path)
        if fill is not None:
            message = f"{found[0]} stands within text, and its value is no text or number"
            self._problem(node.mark, path, message)
            return found[0]
        if found["default"] is not None:
            return str(found["default"])
        self._problem(node.mark, path, _no_value(name, fills))
        return found[0]

    def _problem(self, mark: Mark, path: Path, message: str) -> None:
        self.document.problems.append(Problem(mark, path, message))


def _no_value(name: str, fills: Mapping[str, Node]) -> str:
    """Return why a hole can't be filled, and what to write."""
    kind, _, own = name.partition(".")
    known = sorted(other.partition(".")[2] for other in fills if other.startswith(f"{kind}."))
    if kind == "param":
        if not any(_is_hole(other) and not other.startswith("var.") for other in fills):
            return f"${{{name}}} is a hole of a template; a value elsewhere has none"
        return f"${{{name}}} has no value: give it in `params` of the flow{near(own, known)}"
    there = f"; there are {', '.join(known)}" if known else ""
    return (
        f"${{{name}}} has no value: give it in `vars` of the environment, in draindown.yaml"
        f"{near(own, known) or there}"
    )
