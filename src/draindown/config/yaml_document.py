"""YAML text as plain values with their positions, read event by event so that depth and size are
bounded.

Scalars follow the core schema of YAML 1.2: `yes`, `on`, dates and `1:30` are text. `${NAME}` is
replaced in values only, once, after parsing: a value from the environment is never read as YAML and
never expanded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

MAX_BYTES = 1024**2
MAX_VALUES = 50_000
MAX_DEPTH = 40
Path = tuple[str, ...]
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
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
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|(?P<open>\{))"
)


@dataclass(frozen=True, order=True)
class Mark:
    """A position in the text. Both numbers start at 1."""

    line: int
    column: int


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
class _Scalar:
    mark: Mark
    text: str
    plain: bool


@dataclass(frozen=True)
class _Sequence:
    mark: Mark
    items: list[_Node]


@dataclass(frozen=True)
class _Mapping:
    mark: Mark
    pairs: list[tuple[_Node, _Node]]


_Node = _Scalar | _Sequence | _Mapping


def parse(text: str, environ: Mapping[str, str]) -> Document:
    """Return values, positions and problems of a YAML text.

    Raises DocumentError if it is not exactly one YAML document.
    """
    bad = _UNPRINTABLE.search(text)
    if bad:
        raise DocumentError(
            _mark_at(text, bad.start()), f"unprintable character U+{ord(bad[0]):04X}"
        )
    root = _Reader(text).document()
    builder = _Builder(environ)
    if root is not None:
        builder.document.value = builder.build(root, ())
    return builder.document


def _mark_at(text: str, index: int) -> Mark:
    start = text.rfind("\n", 0, index) + 1
    return Mark(text.count("\n", 0, index) + 1, index - start + 1)


class _Reader:
    """Builds nodes from parser events. An alias shares the node of its anchor."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._anchors: dict[str, _Node] = {}

    def document(self) -> _Node | None:
        events = self._events()
        root: _Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise DocumentError(
                        _mark(event),
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

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> _Node:
        mark = _mark(event)
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

    def _plain_node(self, event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> _Node:
        mark = _mark(event)
        if isinstance(event, yaml.ScalarEvent):
            return _Scalar(mark, event.value, plain=bool(event.implicit[0]))
        if isinstance(event, yaml.SequenceStartEvent):
            return _Sequence(mark, list(self._children(events, yaml.SequenceEndEvent, depth)))
        nodes = list(self._children(events, yaml.MappingEndEvent, depth))
        return _Mapping(mark, list(zip(nodes[::2], nodes[1::2], strict=True)))

    def _children(
        self, events: Iterator[yaml.Event], end: type[yaml.Event], depth: int
    ) -> Iterator[_Node]:
        while not isinstance(event := next(events), end):
            yield self._node(event, events, depth + 1)


def _mark(event: yaml.Event) -> Mark:
    assert event.start_mark is not None  # the C parser sets it on every event
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


class _Builder:
    """Builds values from nodes, records their positions and fills in environment variables."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.document = Document()
        self._environ = environ
        self._left = MAX_VALUES

    def build(self, node: _Node, path: Path) -> Value:
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
            case _Scalar():
                return self._scalar(node, path)
            case _Sequence():
                return [self.build(item, (*path, str(at))) for at, item in enumerate(node.items)]
            case _Mapping():
                return self._mapping(node, path)

    def _mapping(self, node: _Mapping, path: Path) -> Value:
        result: dict[str, Value] = {}
        marks: dict[str, Mark] = {}
        for key, value in node.pairs:
            if not isinstance(key, _Scalar):
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

    def _scalar(self, node: _Scalar, path: Path) -> Value:
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
        return _REFERENCE.sub(lambda found: self._resolved(found, node.mark, path), text)

    def _resolved(self, found: re.Match[str], mark: Mark, path: Path) -> str:
        if found["dollar"]:
            return "$"
        if found["secret"]:
            return found[0]
        if found["open"]:
            self._problem(
                mark,
                path,
                "'${' is no ${NAME}, ${NAME:-default} or ${secret:NAME}; write $${ for the text",
            )
            return found[0]
        name, default = found["name"], found["default"]
        value = self._environ.get(name)
        if default is not None:
            return value or default
        if value is None:
            message = f"environment variable {name} is not set; export {name}=..., or write ${{{name}:-default}}"
            self.document.problems.append(Problem(mark, path, message, variable=name))
            return found[0]
        return value

    def _problem(self, mark: Mark, path: Path, message: str) -> None:
        self.document.problems.append(Problem(mark, path, message))
