"""Translate an expectation to the Spark columns that judge it, if it is certain that GX would give
the same verdict.

The conditions, and how counts become a verdict, are those of Great Expectations 1.24 on Spark; a
test compares them with GX. Arguments have the types that GX converts them to: a bound of 5 is 5.0.
Bounds that GX takes and cannot order, such as a date and a time, or those of year 1, are judged as
what they say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StructType,
)

from draindown.gate import suite
from draindown.spark.checks.questions import (
    KINDS,
    Asked,
    Copies,
    Counted,
    Each,
    Kind,
    Question,
    Unclear,
    Whole,
    all_of,
    as_time,
    is_number,
    is_whole,
    mostly,
    sure,
)
from draindown.spark.checks.result import NOT_THE_SUITES

_NUMBERS: Sequence[Kind] = ("whole", "fraction", "decimal")
_TIMES: Sequence[Kind] = ("date", "timestamp")
_HASHED: Sequence[Kind] = (
    "text",
    "whole",
    "decimal",
    "date",
    "timestamp",
    "boolean",
)  # no floats: -0.0 equals 0.0
_TYPES: Sequence[type[DataType]] = (*KINDS, BinaryType)


def question(config: Mapping[str, Any], schema: StructType) -> Question:
    """Translate an expectation for rows of `schema`. Raises Unclear if GX has to judge it."""
    kwargs, meta = config.get("kwargs") or {}, config.get("meta") or {}
    translate = _TRANSLATIONS.get(config["type"])
    if (
        translate is None
        or not isinstance(kwargs, dict)
        or not isinstance(meta, dict)
        or suite.unsafe(config)
    ):
        raise Unclear
    asked = Asked({k: v for k, v in kwargs.items() if k not in NOT_THE_SUITES}, schema)
    found = translate(asked)
    asked.refuse_rest()
    return found


@dataclass(frozen=True)
class _Bounds:
    low: Any
    high: Any
    above: bool  # strictly
    below: bool

    def column(self, column: Column) -> Column:
        parts = []
        if self.low is not None:
            parts.append(
                column > _literal(self.low) if self.above else column >= _literal(self.low)
            )
        if self.high is not None:
            parts.append(
                column < _literal(self.high) if self.below else column <= _literal(self.high)
            )
        return all_of(parts)

    def hold(self, value: Any) -> bool:
        above = self.low is None or (value > self.low if self.above else value >= self.low)
        below = self.high is None or (value < self.high if self.below else value <= self.high)
        return bool(above and below)


def _literal(bound: Any) -> Column:
    # as text: py4j writes a year before 1000 with fewer than four digits, which Java does not read
    if isinstance(bound, datetime):
        return F.lit(bound.isoformat(sep=" ")).cast("timestamp")
    return F.lit(bound.isoformat()).cast("date") if isinstance(bound, date) else F.lit(bound)


def _ordered(bound: Any) -> Any:
    """Return a bound that compares with others: a date as its midnight, and a time without a zone
    as one in UTC.
    """
    if not isinstance(bound, date):
        return bound
    at = bound if isinstance(bound, datetime) else datetime.combine(bound, time())
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _bounds(asked: Asked, of: Callable[[Any], Any]) -> _Bounds:
    """Take the bounds, converted by `of`. Raises Unclear if both are missing, or if the lower one
    is greater.
    """
    low, high = (
        None if value is None else of(value)
        for value in (asked.take("min_value"), asked.take("max_value"))
    )
    sure(not (low is None and high is None))
    sure(low is None or high is None or _ordered(low) <= _ordered(high))
    return _Bounds(low, high, asked.flag("strict_min"), asked.flag("strict_max"))


def _fraction(value: object) -> float:
    sure(is_number(value))
    return float(value)  # type: ignore[arg-type]


def _integer(value: object) -> int:
    sure(is_whole(value))
    return int(value)  # type: ignore[call-overload, no-any-return]


def _each(asked: Asked, column: str, right: Column) -> Question:
    asked.without_condition()
    value = F.col(column)
    about = Each(value.isNotNull(), value.isNotNull() & ~right)
    return Question("changed", about, mostly(asked.mostly()), (column,))


def _null(asked: Asked, *, wanted: bool) -> Question:
    column, _ = asked.column()
    asked.without_condition()
    value = F.col(column)
    wrong = ~value.isNull() if wanted else ~value.isNotNull()
    return Question("changed", Each(None, wrong), mostly(asked.mostly()), (column,))


def _in_set(asked: Asked, *, wanted: bool) -> Question:
    column, kind = asked.column()
    values = asked.take("value_set")
    sure(isinstance(values, list) and bool(values))
    fits: Mapping[Kind, Callable[[object], bool]] = {
        "text": lambda value: isinstance(value, str),
        "whole": is_whole,
        "fraction": lambda value: isinstance(value, float) and math.isfinite(value),
    }
    sure(kind in fits and all(fits[kind](value) for value in values))
    within = F.col(column).isin(values)
    return _each(asked, column, within if wanted else ~within)


def _between(asked: Asked) -> Question:
    column, kind = asked.column()
    sure(kind in (*_NUMBERS, *_TIMES))
    return _each(
        asked,
        column,
        _bounds(asked, _fraction if kind in _NUMBERS else as_time).column(F.col(column)),
    )


def _regex(asked: Asked, *, wanted: bool) -> Question:
    column, kind = asked.column()
    sure(kind == "text")
    matches = F.col(column).rlike(asked.text("regex"))
    return _each(asked, column, matches if wanted else ~matches)


def _regexes(asked: Asked) -> Question:
    column, kind = asked.column()
    patterns, on = asked.texts("regex_list"), asked.take("match_on", "any")
    sure(kind == "text" and on in ("any", "all"))
    value = F.col(column)
    found = (
        value.rlike("|".join(patterns))
        if on == "any"
        else all_of(value.rlike(pattern) for pattern in patterns)
    )
    return _each(asked, column, found)


def _no_regexes(asked: Asked) -> Question:
    column, kind = asked.column()
    sure(kind == "text")
    return _each(
        asked,
        column,
        all_of(~F.col(column).rlike(pattern) for pattern in asked.texts("regex_list")),
    )


def _lengths(asked: Asked) -> Question:
    column, kind = asked.column()
    sure(kind == "text")
    return _each(asked, column, _bounds(asked, _integer).column(F.length(F.col(column))))


def _length(asked: Asked) -> Question:
    column, kind = asked.column()
    sure(kind == "text")
    return _each(
        asked, column, F.length(F.col(column)) == F.lit(float(_integer(asked.take("value"))))
    )


def _pair(asked: Asked, right: Callable[[Column, Column], Column]) -> Question:
    (a, kind_a), (b, kind_b) = asked.column("column_A"), asked.column("column_B")
    asked.without_condition()
    sure(a != b and kind_a != "other" and (kind_a == kind_b or {kind_a, kind_b} <= set(_NUMBERS)))
    among = _without_missing(
        asked.take("ignore_row_if", "both_values_are_missing"), _PAIR_IGNORES, (a, b)
    )
    wrong = among & ~right(F.col(a), F.col(b))
    return Question("changed", Each(among, wrong), mostly(asked.mostly()), (a, b))


_PAIR_IGNORES = {"both_values_are_missing": "all", "either_value_is_missing": "any", "neither": ""}
_LIST_IGNORES = {"all_values_are_missing": "all", "any_value_is_missing": "any", "never": ""}


def _without_missing(ignore: object, known: Mapping[str, str], columns: Sequence[str]) -> Column:
    """Return the condition for considered rows: `ignore`, one of `known`, says which rows with
    NULLs are not.
    """
    sure(isinstance(ignore, str) and ignore in known)
    missing = [F.col(column).isNull() for column in columns]
    match known[str(ignore)]:
        case "all":
            return ~all_of(missing)
        case "any":
            return ~reduce(lambda a, b: a | b, missing)
    return F.lit(True)


def _pair_equal(asked: Asked) -> Question:
    return _pair(asked, lambda a, b: a.eqNullSafe(b))


def _pair_greater(asked: Asked) -> Question:
    or_equal = asked.take("or_equal")
    sure(or_equal is None or isinstance(or_equal, bool))
    return _pair(asked, lambda a, b: (a >= b) | a.eqNullSafe(b) if or_equal else a > b)


def _unique(asked: Asked) -> Question:
    column, kind = asked.column()
    asked.without_condition()
    sure(kind != "other")
    among = F.col(column).isNotNull()
    return Question(
        "table", Copies(among, kind in _HASHED, f"{column} any"), mostly(asked.mostly()), (column,)
    )


def _compound(asked: Asked) -> Question:
    columns = tuple(asked.texts("column_list"))
    asked.without_condition()
    kinds = [asked.kind(column) for column in columns]
    sure(len(columns) > 1 and len(set(columns)) == len(columns) and "other" not in kinds)
    ignore = asked.take("ignore_row_if", "all_values_are_missing")
    among = _without_missing(ignore, _LIST_IGNORES, columns)
    about = Copies(
        among,
        all(kind in _HASHED for kind in kinds),
        f"{','.join(columns)} {_LIST_IGNORES[ignore]}",
    )
    return Question("table", about, mostly(asked.mostly()), columns)


def _extreme(asked: Asked, of: Callable[[Column], Column]) -> Question:
    column, kind = asked.column()
    asked.without_condition()
    sure(kind in _NUMBERS)
    bounds = _bounds(asked, _fraction)

    def conclude(counted: Counted) -> tuple[bool, Any]:
        value = counted.value
        return (
            (False, None)
            if value is None or math.isnan(value)
            else (bounds.hold(value), _shown(value))
        )

    return Question("table", Whole(of(F.col(column))), conclude, (column,))


def _shown(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value  # as GX does


def _row_count(asked: Asked) -> Question:
    asked.without_condition()
    bounds = _bounds(asked, _integer)
    return Question("table", Whole(), lambda counted: (bounds.hold(counted.value), counted.value))


def _row_count_equal(asked: Asked) -> Question:
    asked.without_condition()
    wanted = _integer(asked.take("value"))
    return Question("table", Whole(), lambda counted: (counted.value == wanted, counted.value))


def _of_types(asked: Asked, names: Sequence[str]) -> Question:
    column, _ = asked.column()
    asked.without_condition()
    asked.mostly()
    sure({*names} <= {kind.__name__ for kind in _TYPES})
    found = asked.type_name(column)
    return Question("table", None, lambda _: (found in names, found), (column,))


def _exists(asked: Asked) -> Question:
    found = asked.has(asked.take("column"))
    return Question("table", None, lambda _: (found, None))


_TRANSLATIONS: Mapping[str, Callable[[Asked], Question]] = {
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
    "expect_column_values_to_be_in_type_list": lambda asked: _of_types(
        asked, asked.texts("type_list")
    ),
    "expect_column_to_exist": _exists,
}
