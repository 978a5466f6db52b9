"""From one expectation of a suite to the Spark columns that judge it, where it is certain that GX would say the same.

The conditions, and how a count becomes a verdict, are those of Great Expectations 1.24 on Spark; a test holds them
against GX itself. Arguments have the types that GX makes of them: a bound of 5 is 5.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from draindown import gate
from draindown.spark.verdicts import NOT_THE_SUITES, Scope

_Kind = Literal["text", "whole", "fraction", "decimal", "date", "timestamp", "boolean", "other"]
_KINDS: Mapping[type[DataType], _Kind] = {
    StringType: "text",
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), "whole"),
    **dict.fromkeys((FloatType, DoubleType), "fraction"),
    DecimalType: "decimal",
    DateType: "date",
    TimestampType: "timestamp",
    BooleanType: "boolean",
}
_NUMBERS: Sequence[_Kind] = ("whole", "fraction", "decimal")
_TIMES: Sequence[_Kind] = ("date", "timestamp")
_HASHED: Sequence[_Kind] = ("text", "whole", "decimal", "date", "timestamp", "boolean")  # not -0.0, which equals 0.0
_TYPES: Sequence[type[DataType]] = (*_KINDS, BinaryType)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LONGEST = 2**63


class Unclear(Exception):
    """Whether GX would say the same is not certain: leave it to GX."""


@dataclass(frozen=True)
class Counted:
    """What judging counted: rows in scope, those considered, those that are wrong; or the one value that is judged."""

    rows: int = 0
    considered: int = 0
    unexpected: int = 0
    value: Any = None


@dataclass(frozen=True)
class Each:
    """About every row of `among` by itself: those are wrong where `wrong` is true. Without `among`: about all rows."""

    among: Column | None
    wrong: Column


@dataclass(frozen=True)
class Copies:
    """About rows of `among` against each other: those are wrong that share the values of the question's fields.

    `hashed`: equal values have equal hashes. `id` tells what is asked, whoever asks it.
    """

    among: Column
    hashed: bool
    id: str


@dataclass(frozen=True)
class Whole:
    """About the rows together: one aggregate, or without one the number of rows."""

    value: Column | None = None


@dataclass(frozen=True)
class Question:
    """One expectation as Spark columns. `about` is None where the schema answers.

    `conclude` says from what was counted whether it holds, and what to show as observed. `scope` holds unless the suite
    says otherwise; `fields` are the columns it names.
    """

    scope: Scope
    about: Each | Copies | Whole | None
    conclude: Callable[[Counted], tuple[bool, Any]]
    fields: tuple[str, ...] = ()

    @property
    def aggregates(self) -> list[Column]:
        """What to aggregate beside the number of rows."""
        match self.about:
            case Each(among, wrong):
                considered = F.lit(1) if among is None else F.when(among, 1)
                return [F.count(considered), F.sum(F.when(wrong, 1).otherwise(0))]
            case Whole(value) if value is not None:
                return [value]
        return []

    def read(self, rows: int, values: Sequence[Any]) -> Counted:
        """What came back of `aggregates`."""
        if isinstance(self.about, Each):
            return Counted(rows, int(values[0] or 0), int(values[1] or 0))
        return Counted(rows, value=values[0] if values else rows)


def question(config: Mapping[str, Any], schema: StructType) -> Question:
    """What an expectation asks of rows of that schema. Raises Unclear."""
    kwargs, meta = config.get("kwargs") or {}, config.get("meta") or {}
    translate = _TRANSLATIONS.get(config["type"])
    if translate is None or not isinstance(kwargs, dict) or not isinstance(meta, dict) or gate.unsafe(config):
        raise Unclear
    asked = _Asked({k: v for k, v in kwargs.items() if k not in NOT_THE_SUITES}, schema)
    found = translate(asked)
    asked.refuse_rest()
    return found


class _Asked:
    """The arguments of an expectation, each taken once; any that nobody takes makes it unclear."""

    def __init__(self, kwargs: dict[str, Any], schema: StructType) -> None:
        self._left, self._schema = kwargs, schema
        self._names = [field.name.lower() for field in schema]

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def refuse_rest(self) -> None:
        _sure(not self._left)

    def without_condition(self) -> None:
        _sure(self.take("row_condition") is None and self.take("condition_parser") is None)

    def column(self, name: str = "column") -> tuple[str, _Kind]:
        chosen = self.take(name)
        return chosen, self.kind(chosen)

    def kind(self, column: object) -> _Kind:
        """What a column holds, if it is of the first level and its name means it alone."""
        _sure(isinstance(column, str) and bool(_PLAIN_NAME.fullmatch(column)))
        _sure(column in self._schema.names and self._names.count(str(column).lower()) == 1)
        found = self._schema[str(column)].dataType
        # under another collation, equal texts have other hashes
        collated = isinstance(found, StringType) and found != StringType()
        return "other" if collated else _KINDS.get(type(found), "other")

    def type_name(self, column: str) -> str:
        return type(self._schema[column].dataType).__name__

    def has(self, column: object) -> bool:
        _sure(isinstance(column, str) and column != "")
        return column in self._schema.names

    def flag(self, name: str) -> bool:
        value = self.take(name, False)
        _sure(isinstance(value, bool))
        return bool(value)

    def mostly(self) -> float:
        value = self.take("mostly", 1)
        _sure(_is_number(value) and 0 <= value <= 1)
        return float(value)

    def whole(self, name: str) -> int | None:
        value = self.take(name)
        _sure(value is None or _is_whole(value))
        return None if value is None else int(value)

    def texts(self, name: str) -> list[str]:
        value = self.take(name)
        _sure(isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value))
        return list(value)

    def text(self, name: str) -> str:
        value = self.take(name)
        _sure(isinstance(value, str))
        return str(value)


def _sure(certain: bool) -> None:
    if not certain:
        raise Unclear


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LONGEST <= value < _LONGEST


def _day(value: object) -> date:
    _sure(isinstance(value, str) and bool(_DAY.fullmatch(value)))
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise Unclear from None


# How a count becomes a verdict.


def _mostly(share: float) -> Callable[[Counted], tuple[bool, Any]]:
    def conclude(counted: Counted) -> tuple[bool, Any]:
        if not counted.considered:
            return True, None
        return (float(counted.considered) - float(counted.unexpected)) / float(counted.considered) >= share, None

    return conclude


@dataclass(frozen=True)
class _Bounds:
    low: Any
    high: Any
    above: bool  # strictly
    below: bool

    def column(self, column: Column) -> Column:
        parts = []
        if self.low is not None:
            parts.append(column > F.lit(self.low) if self.above else column >= F.lit(self.low))
        if self.high is not None:
            parts.append(column < F.lit(self.high) if self.below else column <= F.lit(self.high))
        return all_of(parts)

    def hold(self, value: Any) -> bool:
        above = self.low is None or (value > self.low if self.above else value >= self.low)
        below = self.high is None or (value < self.high if self.below else value <= self.high)
        return bool(above and below)


def _bounds(asked: _Asked, of: Callable[[Any], Any]) -> _Bounds:
    """Two bounds of one type, at least one of them given, that leave room between them."""
    low, high = (None if value is None else of(value) for value in (asked.take("min_value"), asked.take("max_value")))
    _sure(not (low is None and high is None))
    _sure(low is None or high is None or low <= high)
    return _Bounds(low, high, asked.flag("strict_min"), asked.flag("strict_max"))


def _fraction(value: object) -> float:
    _sure(_is_number(value))
    return float(value)  # type: ignore[arg-type]


def _integer(value: object) -> int:
    _sure(_is_whole(value))
    return int(value)  # type: ignore[call-overload, no-any-return]


# One column, row by row. NULL is no value, so it is neither right nor wrong.


def _each(asked: _Asked, column: str, right: Column) -> Question:
    asked.without_condition()
    value = F.col(column)
    about = Each(value.isNotNull(), value.isNotNull() & ~right)
    return Question("changed", about, _mostly(asked.mostly()), (column,))


def _null(asked: _Asked, *, wanted: bool) -> Question:
    column, _ = asked.column()
    asked.without_condition()
    value = F.col(column)
    wrong = ~value.isNull() if wanted else ~value.isNotNull()
    return Question("changed", Each(None, wrong), _mostly(asked.mostly()), (column,))


def _in_set(asked: _Asked, *, wanted: bool) -> Question:
    column, kind = asked.column()
    values = asked.take("value_set")
    _sure(isinstance(values, list) and bool(values))
    fits: Mapping[_Kind, Callable[[object], bool]] = {
        "text": lambda value: isinstance(value, str),
        "whole": _is_whole,
        "fraction": lambda value: isinstance(value, float) and math.isfinite(value),
    }
    _sure(kind in fits and all(fits[kind](value) for value in values))
    within = F.col(column).isin(values)
    return _each(asked, column, within if wanted else ~within)


def _between(asked: _Asked) -> Question:
    column, kind = asked.column()
    _sure(kind in (*_NUMBERS, *_TIMES))
    return _each(asked, column, _bounds(asked, _fraction if kind in _NUMBERS else _day).column(F.col(column)))


def _regex(asked: _Asked, *, wanted: bool) -> Question:
    column, kind = asked.column()
    _sure(kind == "text")
    matches = F.col(column).rlike(asked.text("regex"))
    return _each(asked, column, matches if wanted else ~matches)


def _regexes(asked: _Asked) -> Question:
    column, kind = asked.column()
    patterns, on = asked.texts("regex_list"), asked.take("match_on", "any")
    _sure(kind == "text" and on in ("any", "all"))
    value = F.col(column)
    found = value.rlike("|".join(patterns)) if on == "any" else all_of(value.rlike(pattern) for pattern in patterns)
    return _each(asked, column, found)


def _no_regexes(asked: _Asked) -> Question:
    column, kind = asked.column()
    _sure(kind == "text")
    return _each(asked, column, all_of(~F.col(column).rlike(pattern) for pattern in asked.texts("regex_list")))


def all_of(conditions: Iterable[Column]) -> Column:
    """Whether every one of them holds; there is at least one."""
    return reduce(lambda a, b: a & b, conditions)


def _lengths(asked: _Asked) -> Question:
    column, kind = asked.column()
    _sure(kind == "text")
    return _each(asked, column, _bounds(asked, _integer).column(F.length(F.col(column))))


def _length(asked: _Asked) -> Question:
    column, kind = asked.column()
    _sure(kind == "text")
    return _each(asked, column, F.length(F.col(column)) == F.lit(float(_integer(asked.take("value")))))


# Two columns, row by row.


def _pair(asked: _Asked, right: Callable[[Column, Column], Column]) -> Question:
    (a, kind_a), (b, kind_b) = asked.column("column_A"), asked.column("column_B")
    asked.without_condition()
    _sure(a != b and kind_a != "other" and (kind_a == kind_b or {kind_a, kind_b} <= set(_NUMBERS)))
    among = _without_missing(asked.take("ignore_row_if", "both_values_are_missing"), _PAIR_IGNORES, (a, b))
    wrong = among & ~right(F.col(a), F.col(b))
    return Question("changed", Each(among, wrong), _mostly(asked.mostly()), (a, b))


_PAIR_IGNORES = {"both_values_are_missing": "all", "either_value_is_missing": "any", "neither": ""}
_LIST_IGNORES = {"all_values_are_missing": "all", "any_value_is_missing": "any", "never": ""}


def _without_missing(ignore: object, known: Mapping[str, str], columns: Sequence[str]) -> Column:
    """The rows that count, by how many of the columns may be NULL."""
    _sure(isinstance(ignore, str) and ignore in known)
    missing = [F.col(column).isNull() for column in columns]
    match known[str(ignore)]:
        case "all":
            return ~all_of(missing)
        case "any":
            return ~reduce(lambda a, b: a | b, missing)
    return F.lit(True)


def _pair_equal(asked: _Asked) -> Question:
    return _pair(asked, lambda a, b: a.eqNullSafe(b))


def _pair_greater(asked: _Asked) -> Question:
    or_equal = asked.take("or_equal")
    _sure(or_equal is None or isinstance(or_equal, bool))
    return _pair(asked, lambda a, b: (a >= b) | a.eqNullSafe(b) if or_equal else a > b)


# Rows against each other.


def _unique(asked: _Asked) -> Question:
    column, kind = asked.column()
    asked.without_condition()
    _sure(kind != "other")
    among = F.col(column).isNotNull()
    return Question("table", Copies(among, kind in _HASHED, f"{column} any"), _mostly(asked.mostly()), (column,))


def _compound(asked: _Asked) -> Question:
    columns = tuple(asked.texts("column_list"))
    asked.without_condition()
    kinds = [asked.kind(column) for column in columns]
    _sure(len(columns) > 1 and len(set(columns)) == len(columns) and "other" not in kinds)
    ignore = asked.take("ignore_row_if", "all_values_are_missing")
    among = _without_missing(ignore, _LIST_IGNORES, columns)
    about = Copies(among, all(kind in _HASHED for kind in kinds), f"{','.join(columns)} {_LIST_IGNORES[ignore]}")
    return Question("table", about, _mostly(asked.mostly()), columns)


# The rows together.


def _extreme(asked: _Asked, of: Callable[[Column], Column]) -> Question:
    column, kind = asked.column()
    asked.without_condition()
    _sure(kind in _NUMBERS)
    bounds = _bounds(asked, _fraction)

    def conclude(counted: Counted) -> tuple[bool, Any]:
        value = counted.value
        return (False, None) if value is None or math.isnan(value) else (bounds.hold(value), _shown(value))

    return Question("table", Whole(of(F.col(column))), conclude, (column,))


def _shown(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value  # as GX writes it


def _row_count(asked: _Asked) -> Question:
    asked.without_condition()
    bounds = _bounds(asked, _integer)
    return Question("table", Whole(), lambda counted: (bounds.hold(counted.value), counted.value))


def _row_count_equal(asked: _Asked) -> Question:
    asked.without_condition()
    wanted = _integer(asked.take("value"))
    return Question("table", Whole(), lambda counted: (counted.value == wanted, counted.value))


# The schema alone.


def _of_types(asked: _Asked, names: Sequence[str]) -> Question:
    column, _ = asked.column()
    asked.without_condition()
    asked.mostly()
    _sure({*names} <= {kind.__name__ for kind in _TYPES})
    found = asked.type_name(column)
    return Question("table", None, lambda _: (found in names, found), (column,))


def _exists(asked: _Asked) -> Question:
    found = asked.has(asked.take("column"))
    return Question("table", None, lambda _: (found, None))


_TRANSLATIONS: Mapping[str, Callable[[_Asked], Question]] = {
    "expect_column_values_to_be_null": lambda asked: _null(asked, wanted=True),
    "expect_column_values_to_not_be_null": lambda asked: _null(asked, wanted=False),
    "expect_column_values_to_be_in_set": lambda asked: _in_set(asked, wanted=True),
    "expect_column_values_to_not_be_in_set": lambda asked: _in_set(asked, wanted=False),
    "expect_column_values_to_be_between": _between,
    "expect_column_values_to_match_regex": lambda asked: _regex(asked, wanted=True),
    "expect_column_values_to_not_match_regex": lambda asked: _regex(asked, wanted=False),
    "expect_column_values_to_match_regex_list": _regexes,
    "expect_column_values_to_not_match_regex_list": _no_regexes,
    "expect_column_value_lengths_to_be_between": _lengths,
    "expect_column_value_lengths_to_equal": _length,
    "expect_column_pair_values_to_be_equal": _pair_equal,
    "expect_column_pair_values_a_to_be_greater_than_b": _pair_greater,
    "expect_column_values_to_be_unique": _unique,
    "expect_compound_columns_to_be_unique": _compound,
    "expect_column_min_to_be_between": lambda asked: _extreme(asked, F.min),
    "expect_column_max_to_be_between": lambda asked: _extreme(asked, F.max),
    "expect_table_row_count_to_be_between": _row_count,
    "expect_table_row_count_to_equal": _row_count_equal,
    "expect_column_values_to_be_of_type": lambda asked: _of_types(asked, [asked.text("type_")]),
    "expect_column_values_to_be_in_type_list": lambda asked: _of_types(asked, asked.texts("type_list")),
    "expect_column_to_exist": _exists,
}
