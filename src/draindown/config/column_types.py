"""The type of a column in a pipeline file: `int`, `string not null`, `array<struct<id: bigint>>`.

A type is normalised to the spelling that Spark's DDL parser reads. Anything outside this grammar is
refused before Spark sees it.

    column  := json | type
    type    := scalar | decimal(p, s) | array<type> | map<type, type> | struct<name: type, ...>
    scalar  := boolean tinyint smallint int bigint float double string date timestamp timestamp_ntz binary
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from draindown.base.digests import Meaning
from draindown.config import time_patterns

SCALARS = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
    *("string", "date", "timestamp", "timestamp_ntz", "binary"),
)
TIMES = ("date", "timestamp", "timestamp_ntz")
NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")
DECIMALS = (".", ",")
THOUSANDS = (".", ",", "'", "\u2019", " ", "\u00a0", "\u202f", "_")
"""What may separate thousands: also the typographic apostrophe, and the blanks that don't break a
line.
"""
DECIMAL_SCHEMA = {
    "enum": list(DECIMALS),
    "description": "What separates the fraction of a number in text; absent: a point.",
}
THOUSANDS_SCHEMA = {
    "enum": list(THOUSANDS),
    "description": "What separates groups of three digits of a number in text; absent: nothing.",
}
_MORE = ("taken_from", "format", "decimal_separator", "thousands_separator")
_ALIASES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
}
_ALIASES |= {"timestamp_ltz": "timestamp"}
_HINTS = {
    "varchar": "use string, and a rule for its length",
    "char": "use string, and a rule for its length",
    "datetime": "use timestamp",
    "text": "use string",
    "bool": "use boolean",
    "number": "use decimal(p,s) or double",
    "numeric": "use decimal(p,s)",
    "json": "it is the type of a whole column only; within another type use string, an array, a map or a struct",
}
_TOKEN = re.compile(r"\s*(?:([^\W]\w*)|`((?:[^`]|``)+)`|([<>(),:]))")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_JSON = "json"
UNSTORED = frozenset(" ,;{}()\n\t=")
UNSTORED_WHY = "Delta takes no blanks and ,;{}()= in names"
"""Characters that Delta takes in no name of a column, or of a field within."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)
_DEPTH = 32


class Column(BaseModel):
    """One column of the contract, written and serialised as one string, or as `{type, from, format,
    ...}`.

    `taken_from`: the field of the record, or the place beside it (`SourceSpec.PLACES`), if it is
    not the column's name. `format`, `decimal_separator`, `thousands_separator`: how text says its
    values; None: as Spark reads them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: str = Field(description="Normalised Spark SQL type.")
    nullable: bool = Field(default=True, description="False if the column was declared `not null`.")
    taken_from: str | None = Field(
        default=None, description="Where the value is taken from, if not by its own name."
    )
    format: str | None = Field(default=None, description="Pattern of a date or time.")
    decimal_separator: str | None = Field(
        default=None, description="What separates the fraction of a number."
    )
    thousands_separator: str | None = Field(
        default=None, description="What separates the thousands of a number."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, Column):
            return dict(value)
        if isinstance(value, dict) and {"type", "nullable"} <= set(value) <= set(cls.model_fields):
            return {**value, "type": normalise(value["type"])}
        return _in_full(value) if isinstance(value, dict) else _declared(value)

    @model_validator(mode="after")
    def _combination(self) -> Column:
        if self.format is not None:
            if self.type not in TIMES:
                raise ValueError(f"format counts for {', '.join(TIMES)} only, not for {self.type}")
            time_patterns.check(self.format, self.type)
        if (self.decimal_separator or self.thousands_separator) and not self.is_number:
            raise ValueError(f"separators count for numbers only, not for {self.type}")
        check_separators(self.decimal_separator, self.thousands_separator)
        return self

    @model_serializer
    def _to_text(self) -> str | dict[str, str]:
        more = {"from" if key == "taken_from" else key: getattr(self, key) for key in _MORE}
        said = {key: value for key, value in more.items() if value is not None}
        return {"type": str(self), **said} if said else str(self)

    def meaning(self) -> Meaning:
        """Return what the contract says of the column, in the words of its digest."""
        return {
            "type": self.type,
            "nullable": self.nullable,
            "from": self.taken_from,
            "format": self.format,
            "decimal_separator": self.decimal_separator,
            "thousands_separator": self.thousands_separator,
        }

    def __str__(self) -> str:
        return self.type if self.nullable else f"{self.type} not null"

    @property
    def is_number(self) -> bool:
        """Whether the type is a number."""
        return self.type.startswith("decimal(") or self.type in NUMBERS

    @property
    def unstored(self) -> str | None:
        """The first field within the type whose name Delta refuses, or None."""
        names = (name.replace("``", "`") for name in _QUOTED.findall(self.type))
        return next((name for name in names if set(name) & UNSTORED), None)

    @property
    def stored(self) -> str:
        """The type of the table's column. A column of type `json` is stored as a string."""
        return "string" if self.type == _JSON else self.type

    @property
    def is_nested(self) -> bool:
        """Whether the type is an array, a map or a struct."""
        return "<" in self.type

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = {
            "type": "string",
            "description": "A Spark SQL type, and `not null` if a row without it goes to quarantine.",
            "pattern": r"^\s*[A-Za-z]",
            "examples": [
                "string not null",
                "decimal(10,2)",
                "timestamp",
                "array<struct<id: bigint, name: string>>",
                "json",
            ],
        }
        in_full = {
            "type": "object",
            "description": "A column whose values are elsewhere than under its name, or written in a way of their own.",
            "properties": {
                "type": written,
                "from": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Field of the record that holds it; of Kafka a place, or field:NAME.",
                    "examples": ["Invoice No", "key", "header:trace", "timestamp", "offset"],
                },
                "format": {
                    "type": "string",
                    "minLength": 1,
                    "description": "How text says a date or a time.",
                    "examples": ["yyyy/M/d", "d.M.yyyy HH:mm"],
                },
                "decimal_separator": DECIMAL_SCHEMA,
                "thousands_separator": THOUSANDS_SCHEMA,
            },
            "required": ["type"],
            "minProperties": 2,
            "additionalProperties": False,
        }
        return {"anyOf": [written, in_full]}


def check_separators(decimal: str | None, thousands: str | None) -> None:
    """Raise ValueError if numbers can't be read by these separators. None: a point, and none at
    all.
    """
    if decimal is not None and decimal not in DECIMALS:
        raise ValueError(f"decimal_separator {decimal!r} is none of {' '.join(DECIMALS)}")
    if thousands is not None and thousands not in THOUSANDS:
        raise ValueError(
            f"thousands_separator {thousands!r} is no point, comma, apostrophe, blank or underscore"
        )
    if thousands is not None and thousands == (decimal or "."):
        other = "," if thousands == "." else "."
        raise ValueError(
            f"{thousands!r} separates thousands and fractions; say decimal_separator: {other!r}"
        )


def plain(column: Column) -> Column:
    """Return the column unchanged. Raises ValueError if it says how a record has its value."""
    if any(getattr(column, key) is not None for key in _MORE):
        raise ValueError("from, format and separators count for columns that are read from records")
    return column


def _declared(value: object) -> dict[str, object]:
    if not isinstance(value, str):
        raise ValueError(f"must be a type such as 'int' or 'string not null', not {value!r}")
    bare = _NOT_NULL.sub("", value)
    return {"type": normalise(bare), "nullable": bare == value}


def _in_full(value: dict[object, object]) -> dict[str, object]:
    known = {"from" if key == "taken_from" else key: key for key in _MORE}
    unknown = [str(key) for key in value if key not in ("type", *known)]
    if unknown or "type" not in value or len(value) == 1:
        kind = str(value.get("type", ""))
        if unknown and kind.count("(") + kind.count("<") > kind.count(")") + kind.count(">"):
            raise ValueError(
                f'a comma within braces ends the type {kind!r}; write it in quotes: "decimal(10,2)"'
            )
        found = f"; it has {', '.join(unknown)}" if unknown else ""
        raise ValueError(
            f"must be a type such as 'int', or {{type: int, from: key}}, with {', '.join(known)}{found}"
        )
    for key in known:
        if key in value and (not isinstance(value[key], str) or not value[key]):
            raise ValueError(f"{key} must be text, not {value[key]!r}")
    return {**_declared(value["type"]), **{known[key]: value[key] for key in value if key in known}}


def normalise(text: str) -> str:
    """Return the canonical spelling of a type: lower case, no spaces, aliases resolved.

    Raises ValueError with the reason.
    """
    if text.strip().lower() == _JSON:
        return _JSON
    reader = _Reader(text)
    result = reader.type(0)
    reader.end()
    return result


class _Reader:
    """A recursive descent parser over the tokens of one type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0

    def type(self, depth: int) -> str:
        if depth > _DEPTH:
            raise ValueError(f"is nested more than {_DEPTH} levels deep")
        word = self._word("a type").lower()
        word = _ALIASES.get(word, word)
        match word:
            case "decimal":
                return self._decimal()
            case "array":
                self._take("<", "array needs its element type: array<string>")
                return f"array<{self._closed(self.type(depth + 1))}"
            case "map":
                return self._map(depth)
            case "struct":
                return self._struct(depth)
        if word not in SCALARS:
            raise ValueError(_unknown(word))
        return word

    def end(self) -> None:
        if self._at == len(self._tokens):
            return
        rest = self._tokens[self._at]
        if rest.lower() in ("not", "null"):
            raise ValueError(
                f"{self._text!r}: `not null` counts for whole columns only, at the very end"
            )
        raise ValueError(f"{self._text!r} has {rest!r} after the end of the type")

    def _decimal(self) -> str:
        reason = "decimal needs precision and scale, as in decimal(10,2)"
        self._take("(", reason)
        precision = self._number(reason)
        self._take(",", reason)
        scale = self._number(reason)
        self._take(")", reason)
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(
                f"decimal({precision},{scale}): precision is 1 to 38, scale 0 to precision"
            )
        return f"decimal({precision},{scale})"

    def _map(self, depth: int) -> str:
        reason = "map needs the types of key and value: map<string, int>"
        self._take("<", reason)
        key = self.type(depth + 1)
        if "<" in key:
            raise ValueError(f"{key} can't be the key of a map: it needs a plain type")
        self._take(",", reason)
        return f"map<{key},{self._closed(self.type(depth + 1))}"

    def _struct(self, depth: int) -> str:
        self._take("<", "struct needs its fields: struct<id: bigint, name: string>")
        fields: dict[str, str] = {}
        while True:
            name = self._word("a field name")
            self._take(":", f"write a colon between the field {name!r} and its type")
            kind = self.type(depth + 1)
            if name.lower() in (known.lower() for known in fields):
                raise ValueError(f"struct names the field {name!r} twice (case doesn't count)")
            fields[name] = f"{quote(name)}:{kind}"
            if self._peek() != ",":
                break
            self._at += 1
        return f"struct<{self._closed(','.join(fields.values()))}"

    def _closed(self, inner: str) -> str:
        if self._peek().lower() == "not":
            raise ValueError("`not null` counts for whole columns only, not inside a type")
        self._take(">", f"{self._text!r} lacks a closing '>'")
        return f"{inner}>"

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, token: str, reason: str) -> None:
        if self._peek() != token:
            raise ValueError(reason)
        self._at += 1

    def _word(self, what: str) -> str:
        token = self._peek()
        if not token or token in "<>(),:":
            raise ValueError(
                f"{self._text!r}: expected {what}" + (f" instead of {token!r}" if token else "")
            )
        self._at += 1
        return token

    def _number(self, reason: str) -> int:
        token = self._peek()
        if not (token.isascii() and token.isdigit() and len(token) <= 3):
            raise ValueError(reason)
        self._at += 1
        return int(token)


def quote(name: str) -> str:
    """Return a name as DDL needs it: in backticks unless it is a plain identifier."""
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _tokens(text: str) -> list[str]:
    found, at, text = [], 0, text.rstrip()
    if len(text) > 20_000:
        raise ValueError("is longer than 20000 characters")
    while at < len(text):
        hit = _TOKEN.match(text, at)
        if not hit:
            raise ValueError(f"{text!r}: unexpected {text[at:].lstrip()[0]!r}")
        found.append(hit[1] or (hit[2] or "").replace("``", "`") or hit[3])
        at = hit.end()
    return found


def _unknown(word: str) -> str:
    if word in _HINTS:
        return f"unknown type {word!r}; {_HINTS[word]}"
    known = (*SCALARS, _JSON, "decimal", "array", "map", "struct")
    near = get_close_matches(word, (*known, *_ALIASES), 1)
    return f"unknown type {word!r}; allowed: {', '.join(known)}" + (
        f"; did you mean {near[0]!r}?" if near else ""
    )
