"""Literal predicates on the target for file skipping: in a MERGE, Delta skips files by literal
predicates only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegralType, LongType, StructType

from draindown.spark.sql import quoted
from draindown.spark.tuning import TUNING

_TEXT_SAFE = ("string", "byte", "short", "integer", "long", "date", "boolean", "decimal")
_MOST_RANGES = 16
_LONGEST = 200  # characters of a range bound; longer literals slow planning by more than file skipping saves
_NUMBERS = ("byte", "short", "integer", "long")
_EXACT = (*_NUMBERS, "string", "date", "boolean")
Range = tuple[str, str]
"""Minimum and maximum of a range, both inclusive, as text."""


@dataclass(frozen=True)
class Pruning:
    """Column predicates that every target row with one of the batch's keys satisfies. All values
    are text.

    `values`: the column has one of these values. `ranges`: the column lies in one of these ranges.
    `since`: the column is not less than this value, or it is NULL. An empty `Pruning` matches every
    row.
    """

    values: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    since: Mapping[str, str] = field(default_factory=dict)

    def only(self, columns: Iterable[str]) -> Pruning:
        """Return the predicates on `columns` alone, for a table that lacks the others."""
        kept = set(columns)
        return replace(
            self,
            values={name: values for name, values in self.values.items() if name in kept},
            ranges={name: ranges for name, ranges in self.ranges.items() if name in kept},
            since={name: low for name, low in self.since.items() if name in kept},
        )

    def without(self, column: str) -> Pruning:
        """Return the predicates on other columns."""
        return self.only(
            name for name in (*self.values, *self.ranges, *self.since) if name != column
        )

    def exact(self, schema: StructType) -> Pruning:
        """Return the predicates on types whose statistics are exact, whoever wrote them; those of
        decimals are not.

        A decimal's text and its statistics may be written in another scale, and deltalake writes
        the statistics by way of doubles and 64-bit integers: by these Delta skips files that hold a
        row that matches.
        """
        names = (*self.values, *self.ranges, *self.since)
        return self.only(name for name in names if schema[name].dataType.typeName() in _EXACT)

    def narrowed(self, schema: StructType, files: Sequence[Mapping[str, Any]]) -> Pruning:
        """Return as few predicates as exclude the same files. Arguments as in `files`.

        Delta plans and compiles each predicate, for a second or more, before it reads a file. All
        are kept if one of their values has no order here, such as a date after the year 9999.
        """
        with suppress(ValueError):
            return self._narrowed(schema, files)
        return self

    def _narrowed(self, schema: StructType, files: Sequence[Mapping[str, Any]]) -> Pruning:
        partitions = {
            name for name in self.values if any(f"partition.{name}" in file for file in files)
        }
        beside = [name for name in self.values if name not in partitions]
        found, probe = self, self._as_ranges(beside)
        number = len(probe.files(schema, files))
        for name in [*self.ranges, *beside, *partitions]:
            fewer = probe.without(name)
            if (name not in beside or name in probe.ranges) and len(
                fewer.files(schema, files)
            ) == number:
                found, probe = found.without(name), fewer
        return found

    def _as_ranges(self, columns: Sequence[str]) -> Pruning:
        """Return the values of some columns as ranges, as Delta holds them against statistics; NULL
        lies in none.
        """
        told = {name: self.values[name] for name in columns}
        single = {
            name: [(one, one) for one in some if one is not None]
            for name, some in told.items()
            if None not in some
        }
        return Pruning(
            {n: v for n, v in self.values.items() if n not in columns}, {**self.ranges, **single}
        )

    def conditions(self, schema: StructType, alias: str = "") -> list[Column]:
        """Return the predicates as Spark columns for a table with `schema` and the query alias
        `alias`.

        Values become literals, never SQL text, so that input can't inject SQL.
        """

        def column(name: str) -> Column:
            return F.col(f"{alias}.{quoted(name)}" if alias else quoted(name))

        found = [
            _among(column(name), schema[name].dataType, values)
            for name, values in self.values.items()
        ]
        found += [
            _within(column(name), schema[name].dataType, ranges)
            for name, ranges in self.ranges.items()
        ]
        return found + [
            column(name).isNull()
            | (column(name) >= F.lit(low).cast(_comparable(schema[name].dataType)))
            for name, low in self.since.items()
        ]

    def excludes_all(self, schema: StructType, files: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether no file holds a row that matches, by predicates on types whose statistics
        are exact.

        Arguments as in `files`.
        """
        try:
            return not self.exact(schema).files(schema, files)
        except ValueError:  # a date after the year 9999 has no order here
            return False

    def files(
        self, schema: StructType, files: Iterable[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """Return the candidate files: those whose partition values and min/max statistics match the
        predicates.

        `schema` is the table's; `files` is what `Table.files` returned. A file without a
        statistic is kept, as in Delta's own file skipping.
        """
        values = {f"partition.{name}": frozenset(every) for name, every in self.values.items()}
        ranges = [
            (name, order, [(order(low), order(high)) for low, high in every])
            for name, every in self.ranges.items()
            for order in [_order(schema[name].dataType.typeName())]
        ]

        firsts = [
            (name, order, order(low))
            for name, low in self.since.items()
            for order in [_order(schema[name].dataType.typeName())]
        ]

        def concerned(file: Mapping[str, Any]) -> bool:
            for name, order, first in firsts:
                greatest = _ends(file, name)[1]
                if (
                    file.get(f"null_count.{name}") == 0
                    and greatest is not None
                    and order(_bound(greatest)) < first
                ):
                    return False
            if any(
                name in file and _text(file[name]) not in every for name, every in values.items()
            ):
                return False
            for name, order, every in ranges:
                least, greatest = _ends(file, name)
                if least is not None and greatest is not None:
                    low, high = order(_bound(least)), order(_bound(greatest))
                    if not any(low <= end and start <= high for start, end in every):
                        return False
            return True

        return [file for file in files if concerned(file)]


def text_safe(schema: StructType, names: Iterable[str]) -> list[str]:
    """Return the columns of `names` whose type survives a round trip through text."""
    return [name for name in names if schema[name].dataType.typeName() in _TEXT_SAFE]


def measures(
    frame: DataFrame,
    exact: Sequence[str],
    keys: Sequence[str],
    good: Column,
    most: int = TUNING.named_values,
) -> list[Column]:
    """Return the aggregates that `pruning` needs: distinct values of `exact` columns, min and max
    of those and `keys`.

    Only `good` rows count. `most` limits the distinct values per column; if there are more, ranges
    are used. The aggregate collects one value more than `most`, to detect that.

    Values are text, because Python has no dates after the year 9999. They are wrapped in a struct,
    because `collect_set` drops NULL.
    """
    sets = [
        F.slice(
            F.collect_set(F.when(good, F.struct(F.col(quoted(name)).cast("string")))), 1, most + 1
        ).alias(f"_p{i}")
        for i, name in enumerate(exact)
    ]
    ends = []
    for i, name in enumerate(_ranged(frame.schema, exact, keys)):
        column = F.col(quoted(name))
        value, odd = F.when(good, column), column.isNull()
        if frame.schema[name].dataType.typeName() == "string":
            odd = odd | ~F.is_valid_utf8(column)  # invalid UTF-8 does not sort as its text does
        ends += [
            F.min(value).cast("string").alias(f"_lo{i}"),
            F.max(value).cast("string").alias(f"_hi{i}"),
        ]
        ends.append(F.count_if(good & odd).alias(f"_odd{i}"))
    if ends and not sets:
        # min/max of strings alone makes Spark use a sort aggregate; with `collect_set` it uses an
        # object hash aggregate
        sets.append(F.collect_set(F.lit(None).cast("int")).alias("_hashed"))
    return [*sets, *ends]


def pruning(
    groups: Sequence[Row],
    schema: StructType,
    exact: Sequence[str],
    keys: Sequence[str],
    most: int = TUNING.named_values,
) -> Pruning:
    """Return the predicates for a batch from its `groups`, which were aggregated with the columns
    of `measures`.

    The other arguments are those given to `measures`. An `exact` column gets its distinct values,
    or ranges if there are more than `most`.
    """
    values: dict[str, Sequence[str | None]] = {}
    for i, name in enumerate(exact):
        own = sorted(
            {value for group in groups for (value,) in group[f"_p{i}"]},
            key=lambda v: (v is not None, v),
        )
        if len(own) <= most:
            values[name] = own
    ranges: dict[str, Sequence[Range]] = {}
    for i, name in enumerate(_ranged(schema, exact, keys)):
        if name in values:
            continue
        ends = [
            (group[f"_lo{i}"], group[f"_hi{i}"]) for group in groups if group[f"_lo{i}"] is not None
        ]
        found = joined(ends, schema[name].dataType.typeName())
        if found and not any(group[f"_odd{i}"] for group in groups):  # NULL lies in no range
            ranges[name] = found
    return Pruning(values, ranges)


def _ranged(schema: StructType, exact: Sequence[str], keys: Sequence[str]) -> list[str]:
    safe = text_safe(schema, dict.fromkeys([*exact, *keys]))
    return [name for name in safe if schema[name].dataType.typeName() != "boolean"]


def joined(ends: Iterable[Range], kind: str) -> list[Range]:
    """Return the union of ranges of type `kind`, sorted and without overlaps: at most 16.

    If there are more, the ranges with the smallest gaps between them are merged. Strings have no
    distance: more than 16 string ranges become one. Empty if a bound is longer than `_LONGEST`
    characters or can't be parsed.
    """
    ends, order = list(ends), _order(kind)
    if any(len(text) > _LONGEST for both in ends for text in both):
        return []
    try:
        wanted = sorted(
            ((order(low), order(high), low, high) for low, high in ends), key=lambda r: r[:2]
        )
    except ValueError:
        return []
    apart: list[Any] = []
    for low, high, low_text, high_text in wanted:
        if apart and low <= apart[-1][1]:
            if high > apart[-1][1]:
                apart[-1] = (apart[-1][0], high, apart[-1][2], high_text)
        else:
            apart.append((low, high, low_text, high_text))
    return [(low, high) for *_, low, high in _fewer(apart)]


def _fewer(apart: list[Any]) -> list[Any]:
    if len(apart) <= _MOST_RANGES:
        return apart
    gaps: list[int] = []
    if not isinstance(apart[0][0], bytes):
        by_width = sorted(
            range(1, len(apart)), key=lambda at: apart[at][0] - apart[at - 1][1], reverse=True
        )
        gaps = sorted(by_width[: _MOST_RANGES - 1])
    starts, stops = [0, *gaps], [*gaps, len(apart)]
    return [
        (apart[start][0], apart[stop - 1][1], apart[start][2], apart[stop - 1][3])
        for start, stop in zip(starts, stops, strict=True)
    ]


def _ends(file: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return a file's minimum and maximum of a column; None for a bound that its log entry
    lacks.
    """
    if (partition := f"partition.{name}") in file:
        return file[partition], file[partition]
    return file.get(f"min.{name}"), file.get(f"max.{name}")


def _text(value: Any) -> str | None:
    """Return a value as Spark casts it to string."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _bound(value: Any) -> str:
    """Return a statistic as Spark writes it in a session whose zone is UTC."""
    if isinstance(value, datetime):
        return str(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value)
    return str(value)


def _order(kind: str) -> Callable[[str], Any]:
    """Return a sort key for text values of type `kind` that gives Spark's order.

    The key raises ValueError on text that it can't parse.
    """
    if kind in _NUMBERS:
        return int
    if kind == "decimal":
        return Decimal
    if kind == "date":
        return lambda text: date.fromisoformat(text).toordinal()
    return str.encode


def _comparable(kind: DataType) -> DataType:
    """Return the type in which a column is compared with a value that may be beyond its own: an
    integer's is bigint.
    """
    return LongType() if isinstance(kind, IntegralType) else kind


def _among(column: Column, kind: DataType, values: Sequence[str | None]) -> Column:
    """Return the predicate that the column has one of `values`. NULL needs `IS NULL`, because `IN`
    never matches it.
    """
    found = column.isin(*[F.lit(value).cast(kind) for value in values if value is not None])
    return found | column.isNull() if None in values else found


def _within(column: Column, kind: DataType, ranges: Sequence[Range]) -> Column:
    found = F.lit(False)
    for i, (low, high) in enumerate(ranges):
        one = column.between(F.lit(low).cast(kind), F.lit(high).cast(kind))
        found = one if not i else found | one
    return found
