"""The form of a translated expectation: which columns to aggregate, and how to judge the result."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import reduce
from typing import Any, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
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

from draindown.spark.checks.result import Scope

Kind = Literal["text", "whole", "fraction", "decimal", "date", "timestamp", "boolean", "other"]
KINDS: Mapping[type[DataType], Kind] = {
    StringType: "text",
    **dict.fromkeys((ByteType, ShortType, IntegerType, LongType), "whole"),
    **dict.fromkeys((FloatType, DoubleType), "fraction"),
    DecimalType: "decimal",
    DateType: "date",
    TimestampType: "timestamp",
    BooleanType: "boolean",
}
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_LONGEST = 2**63


class Unclear(Exception):
    """It is not certain that GX would give the same verdict, so GX has to judge the expectation."""


@dataclass(frozen=True)
class Counted:
    """The result of an aggregation: rows in scope, considered rows, unexpected rows; or the single
    value to judge.
    """

    rows: int = 0
    considered: int = 0
    unexpected: int = 0
    value: Any = None


@dataclass(frozen=True)
class Each:
    """A question about single rows. `among`: rows to consider, None for all; `wrong`: those that
    are unexpected.
    """

    among: Column | None
    wrong: Column


@dataclass(frozen=True)
class Copies:
    """A question about uniqueness: among rows where `among` holds, those that share their values
    are unexpected.

    `hashed`: equal values have equal hashes. `id`: equal for equal questions, whatever expectation
    asks them.
    """

    among: Column
    hashed: bool
    id: str


@dataclass(frozen=True)
class Whole:
    """A question about all rows together: the aggregate `value`, or the number of rows if it is
    None.
    """

    value: Column | None = None


@dataclass(frozen=True)
class Question:
    """One expectation as Spark columns.

    `scope`: the default scope; `about`: None if the schema answers; `conclude`: maps the counts to
    success and observed value; `fields`: the columns that the expectation names.
    """

    scope: Scope
    about: Each | Copies | Whole | None
    conclude: Callable[[Counted], tuple[bool, Any]]
    fields: tuple[str, ...] = ()

    @property
    def aggregates(self) -> list[Column]:
        """The columns to aggregate beside the number of rows."""
        match self.about:
            case Each(among, wrong):
                considered = F.lit(1) if among is None else F.when(among, 1)
                return [F.count(considered), F.sum(F.when(wrong, 1).otherwise(0))]
            case Whole(value) if value is not None:
                return [value]
        return []

    def read(self, rows: int, values: Sequence[Any]) -> Counted:
        """Return the counts from the number of rows and the values of `aggregates`."""
        if isinstance(self.about, Each):
            return Counted(rows, int(values[0] or 0), int(values[1] or 0))
        return Counted(rows, value=values[0] if values else rows)


class Asked:
    """The arguments of an expectation. Each is taken once; an argument that is not taken makes it
    unclear.
    """

    def __init__(self, kwargs: dict[str, Any], schema: StructType) -> None:
        self._left, self._schema = kwargs, schema
        self._names = [field.name.lower() for field in schema]

    def take(self, name: str, default: Any = None) -> Any:
        """Return one argument and remove it."""
        return self._left.pop(name, default)

    def refuse_rest(self) -> None:
        """Raise Unclear if any argument was not taken."""
        sure(not self._left)

    def without_condition(self) -> None:
        """Raise Unclear if the expectation has a row condition."""
        sure(self.take("row_condition") is None and self.take("condition_parser") is None)

    def column(self, name: str = "column") -> tuple[str, Kind]:
        """Return a column's name and the kind of its values."""
        chosen = self.take(name)
        return chosen, self.kind(chosen)

    def kind(self, column: object) -> Kind:
        """Return the kind of a column's values. Raises Unclear unless it is a top-level column with
        a unique name.
        """
        sure(isinstance(column, str) and bool(_PLAIN_NAME.fullmatch(column)))
        sure(column in self._schema.names and self._names.count(str(column).lower()) == 1)
        found = self._schema[str(column)].dataType
        # under a collation, equal strings may have different hashes
        collated = isinstance(found, StringType) and found != StringType()
        return "other" if collated else KINDS.get(type(found), "other")

    def type_name(self, column: str) -> str:
        """Return the name of a column's Spark type class."""
        return type(self._schema[column].dataType).__name__

    def has(self, column: object) -> bool:
        """Return whether the rows have a column."""
        sure(isinstance(column, str) and column != "")
        return column in self._schema.names

    def flag(self, name: str) -> bool:
        """Return a boolean argument, False by default."""
        value = self.take(name, False)
        sure(isinstance(value, bool))
        return bool(value)

    def mostly(self) -> float:
        """Return the argument `mostly`: the share of considered rows that must hold, 1 by
        default.
        """
        value = self.take("mostly", 1)
        sure(is_number(value) and 0 <= value <= 1)
        return float(value)

    def whole(self, name: str) -> int | None:
        """Return an integer argument, or None."""
        value = self.take(name)
        sure(value is None or is_whole(value))
        return None if value is None else int(value)

    def texts(self, name: str) -> list[str]:
        """Return an argument that is a non-empty list of strings."""
        value = self.take(name)
        sure(isinstance(value, list) and bool(value) and all(isinstance(v, str) for v in value))
        return list(value)

    def text(self, name: str) -> str:
        """Return a string argument."""
        value = self.take(name)
        sure(isinstance(value, str))
        return str(value)


def sure(certain: bool) -> None:
    """Raise Unclear unless the condition holds."""
    if not certain:
        raise Unclear


def is_number(value: object) -> bool:
    """Return whether a value is a finite number and no boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Return whether a value is an integer that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -_LONGEST <= value < _LONGEST


def as_time(value: object) -> date:
    """Return an ISO date, or as a datetime an ISO date with a time. Raises Unclear for anything
    else.
    """
    sure(isinstance(value, str))
    try:
        if _DAY.fullmatch(str(value)):
            return date.fromisoformat(str(value))
        sure(bool(_TIME.fullmatch(str(value))))
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise Unclear from None


def mostly(share: float) -> Callable[[Counted], tuple[bool, Any]]:
    """Return a `conclude` that requires `share` of the considered rows to hold."""

    def conclude(counted: Counted) -> tuple[bool, Any]:
        if not counted.considered:
            return True, None
        return (float(counted.considered) - float(counted.unexpected)) / float(
            counted.considered
        ) >= share, None

    return conclude


def all_of(conditions: Iterable[Column]) -> Column:
    """Return the conjunction of conditions, of which there is at least one."""
    return reduce(lambda a, b: a & b, conditions)
