"""Nested values of JSON: parsed with text at the leaves, then each leaf is cast by the rule of a
column of its type.

The JSON is marked first (see `json_text`), so that a leaf's text is spelled as it came: a number
has not passed through a double, and a string is told from an object or array. Structs are parsed as
maps, so that fields that the type does not name are seen. The expressions are for `try_eval`: what
does not fit raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from draindown.spark.contract import text_values
from draindown.spark.contract.json_text import Marks
from draindown.spark.contract.typed_values import failure, is_nested, map_of, or_fail
from draindown.spark.sql import ddl, literal

_STRICT = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
_FAILFAST = (
    "map('mode', 'FAILFAST', 'allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
)
_NAMES = "array<string>"


def of_text(text: str, kind: DataType, zone: str) -> str:
    """Return a SQL expression of the nested type `kind` that the SQL expression `text` holds as
    JSON, or an error.
    """
    return NestedJson(Marks(), zone).of_text(text, kind)


@dataclass
class NestedJson:
    """SQL expressions of nested values in marked JSON.

    `marks`: those of the JSON. `zone`: the session's time zone. `base64`: whether bytes are written
    in base64, as in rows of columnar files that the quarantine keeps; else a text's own bytes are
    taken, as in a column. `nulls`: whether a field that is NULL counts as unnamed.
    """

    marks: Marks
    zone: str
    base64: bool = False
    nulls: bool = True
    _count: int = field(default=0, init=False)

    def value(self, marked: str, kind: DataType) -> str:
        """Return the value of type `kind` that marked JSON holds, or an error. A string may hold it
        as JSON.
        """
        inside = self.of_text(self._plain(marked), kind)
        is_string = f"startswith({marked}, '{self.marks.string}')"
        found = f"if({is_string}, {inside}, {self._parsed(marked, kind, self._cast)})"
        return f"cast({found} as {ddl(kind)})"

    def of_text(self, text: str, kind: DataType) -> str:
        """Return the value of type `kind` that a text holds as JSON, with nothing after it, or an
        error.
        """
        end = literal(f',"{self.marks.string}"]')
        only = f"get(from_json(concat('[', {text}, {end}), '{_NAMES}', {_STRICT}), 1) = '{self.marks.string}'"
        value = self._bound(
            self.marks.marked(text), lambda marked: self._parsed(marked, kind, self._cast)
        )
        failed = f"if({text} is null, null, {failure(ddl(kind))})"
        return f"cast(if({only}, {value}, {failed}) as {ddl(kind)})"

    def unnamed(self, marked: str, kind: DataType, path: str) -> str:
        """Return the paths of fields within marked JSON that structs of `kind` do not name, as an
        array.
        """
        return self._parsed(
            marked, kind, lambda value, own: self._unnamed(value, own, path), _NAMES
        )

    def _parsed(self, marked: str, kind: DataType, use: _Use, result: str = "") -> str:
        """Return what `use` makes of marked JSON that is parsed; an error if it is no value of a
        nested type.
        """
        opening = "[" if isinstance(kind, ArrayType) else "{"
        found = f"from_json({marked}, {literal(_textual(kind))}, {_FAILFAST})"
        other = failure(result or ddl(kind))
        return (
            f"case when {marked} is null then null when startswith({marked}, '{opening}') "
            f"then {self._bound(found, lambda value: use(value, kind))} else {other} end"
        )

    def _cast(self, value: str, kind: DataType) -> str:
        """Return a value of the type `_textual(kind)` as `kind`."""
        match kind:
            case ArrayType():
                return f"transform({value}, {self._each(lambda one: self._cast(one, kind.elementType))})"
            case MapType():
                keys = self._each(lambda key: self._leaf(self._plain(key), kind.keyType))
                values = self._each(lambda one: self._cast(one, kind.valueType))
                of_values = f"transform(map_values({value}), {values})"
                made = self._bound(
                    f"transform(map_keys({value}), {keys})",
                    lambda own: map_of(own, of_values, kind),
                )
                return self._once(value, made, kind)
            case StructType():
                parts = (
                    f"{literal(f.name)}, {self._field(value, f.name, f.dataType)}" for f in kind
                )
                return self._once(value, f"named_struct({', '.join(parts)})", kind)
            case _:
                return self._text(value, kind)

    def _field(self, value: str, name: str, kind: DataType) -> str:
        held = f"{value}[{literal(self.marks.string + name)}]"
        return self._parsed(held, kind, self._cast) if is_nested(kind) else self._text(held, kind)

    def _text(self, marked: str, kind: DataType) -> str:
        """Return a leaf. Text that is not marked is `true`, `false`, an object or an array."""
        name = kind.simpleString()
        if name in ("string", "binary"):
            nested = f"startswith({marked}, '{{') or startswith({marked}, '[')"
            return f"if({nested}, {failure(name)}, {self._leaf(self._plain(marked), kind)})"
        return self._leaf(self._plain(marked), kind)

    def _leaf(self, text: str, kind: DataType) -> str:
        name = kind.simpleString()
        if name == "string":
            return text
        if name == "binary":
            return f"unbase64({text})" if self.base64 else f"cast({text} as binary)"
        return self._bound(
            text, lambda one: or_fail(one, text_values.from_text(one, name, self.zone), name)
        )

    def _once(self, value: str, result: str, kind: DataType) -> str:
        """Return a result, or an error if a key stands twice in the JSON."""
        twice = f"size(array_distinct(map_keys({value}))) < size({value})"
        return f"case when {value} is null then null when {twice} then {failure(ddl(kind))} else {result} end"

    def _unnamed(self, value: str, kind: DataType, path: str) -> str:
        nothing = f"cast(array() as {_NAMES})"
        if "struct<" not in kind.simpleString():
            return nothing
        match kind:
            case ArrayType():
                inner = self._each(lambda one: self._unnamed(one, kind.elementType, path))
                return f"coalesce(flatten(transform({value}, {inner})), {nothing})"
            case MapType():
                inner = self._each(lambda one: self._unnamed(one, kind.valueType, path))
                return f"coalesce(flatten(transform(map_values({value}), {inner})), {nothing})"
            case StructType():
                return f"coalesce(concat({', '.join(self._unnamed_of_struct(value, kind, path))}), {nothing})"
            case _:
                return nothing

    def _unnamed_of_struct(self, value: str, kind: StructType, path: str) -> list[str]:
        mark = self.marks.string
        known = ", ".join(literal(mark + name) for name in kind.names)
        others = f"filter(map_keys({value}), {self._each(lambda key: self._is_unnamed(value, known, key))})"
        shown = self._each(
            lambda key: f"concat({literal(path + '.')}, substring({key}, {len(mark) + 1}))"
        )
        found = [f"transform({others}, {shown})"]
        for one in kind:
            if "struct<" in one.dataType.simpleString():
                inner = self.unnamed(
                    f"{value}[{literal(mark + one.name)}]", one.dataType, f"{path}.{one.name}"
                )
                found.append(f"coalesce({inner}, cast(array() as {_NAMES}))")
        return found

    def _is_unnamed(self, value: str, known: str, key: str) -> str:
        unnamed = f"not array_contains(array({known}), {key})"
        return unnamed if self.nulls else f"{unnamed} and {value}[{key}] is not null"

    def _plain(self, marked: str) -> str:
        marks = self.marks
        is_marked = (
            f"startswith({marked}, '{marks.string}') or startswith({marked}, '{marks.number}')"
        )
        return f"if({is_marked}, substring({marked}, {len(marks.string) + 1}), {marked})"

    def _each(self, use: Callable[[str], str]) -> str:
        """Return a lambda over a name of its own."""
        self._count += 1
        name = f"x{self._count}"
        return f"{name} -> {use(name)}"

    def _bound(self, expression: str, use: Callable[[str], str]) -> str:
        """Return what `use` makes of an expression, which is evaluated once."""
        return f"element_at(transform(array({expression}), {self._each(use)}), 1)"


_Use = Callable[[str, DataType], str]


def _textual(kind: DataType) -> str:
    """Return the type as which JSON is parsed: text for each scalar, and a map for the outermost
    structs.
    """
    match kind:
        case ArrayType(elementType=element):
            return f"array<{_textual(element)}>"
        case MapType(valueType=value):
            return f"map<string,{_textual(value)}>"
        case StructType():
            return "map<string,string>"
        case _:
            return "string"
