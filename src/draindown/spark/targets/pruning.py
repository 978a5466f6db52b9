"""Which rows of a table a batch can concern, as literal predicates: in a MERGE Delta skips files by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from draindown.spark.sql import quoted
from draindown.spark.tuning import TUNING

_TEXT_SAFE = ("string", "byte", "short", "integer", "long", "date", "boolean", "decimal")
_MOST_RANGES = 16
_LONGEST = 200  # characters of an end; a plan with longer literals costs more than it saves
_NUMBERS = ("byte", "short", "integer", "long")
Range = tuple[str, str]
"""The smallest and the greatest value, both within, as text."""


@dataclass(frozen=True)
class Pruning:
    """What rows concerned can have in some columns: nothing but `values`, or nothing outside `ranges`; all as text.

    Empty, it lets every row through.
    """

    values: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)

    def only(self, columns: Iterable[str]) -> Pruning:
        """The same for a table that has these columns alone."""
        kept = set(columns)
        return replace(
            self,
            values={name: values for name, values in self.values.items() if name in kept},
            ranges={name: ranges for name, ranges in self.ranges.items() if name in kept},
        )

    def conditions(self, schema: StructType, alias: str = "") -> list[Column]:
        """What holds for every row concerned of a table with `schema`, which the query calls `alias`.

        Of literals, never of SQL text: what a row holds is no part of a statement.
        """

        def column(name: str) -> Column:
            return F.col(f"{alias}.{quoted(name)}" if alias else quoted(name))

        found = [_among(column(name), schema[name].dataType, values) for name, values in self.values.items()]
        return found + [_within(column(name), schema[name].dataType, ranges) for name, ranges in self.ranges.items()]

    def files(self, schema: StructType, files: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Those of the files, of a table with `schema`, in which a row concerned can be.

        `files`: what `TableLog.files` returned. What that doesn't say leaves no file out, as in Delta's own
        skipping.
        """
        values = {f"partition.{name}": frozenset(every) for name, every in self.values.items()}
        ranges = [
            (name, order, [(order(low), order(high)) for low, high in every])
            for name, every in self.ranges.items()
            for order in [_order(schema[name].dataType.typeName())]
        ]

        def concerned(file: Mapping[str, Any]) -> bool:
            if any(name in file and _text(file[name]) not in every for name, every in values.items()):
                return False
            for name, order, every in ranges:
                least, greatest = _ends(file, name)
                if least is not None and greatest is not None:
                    low, high = order(str(least)), order(str(greatest))
                    if not any(low <= end and start <= high for start, end in every):
                        return False
            return True

        return [file for file in files if concerned(file)]


def text_safe(schema: StructType, names: Iterable[str]) -> list[str]:
    """Those of the columns whose values survive being written as text and back."""
    return [name for name in names if schema[name].dataType.typeName() in _TEXT_SAFE]


def measures(
    frame: DataFrame, exact: Sequence[str], keys: Sequence[str], good: Column, most: int = TUNING.named_values
) -> list[Column]:
    """Aggregates of the `good` rows from which `pruning` learns: values and ends of `exact` columns, ends of `keys`.

    `most`: values of a column that are named; where there are more, ranges tell of them.

    As text: Python has no dates after the year 9999; the values in a struct, because a set leaves NULL out. One more
    value than are of use tells that there are too many.
    """
    sets = [
        F.slice(F.collect_set(F.when(good, F.struct(F.col(quoted(name)).cast("string")))), 1, most + 1).alias(f"_p{i}")
        for i, name in enumerate(exact)
    ]
    ends = []
    for i, name in enumerate(_ranged(frame.schema, exact, keys)):
        column = F.col(quoted(name))
        value, odd = F.when(good, column), column.isNull()
        if frame.schema[name].dataType.typeName() == "string":
            odd = odd | ~F.is_valid_utf8(column)  # its order is not that of its text
        ends += [F.min(value).cast("string").alias(f"_lo{i}"), F.max(value).cast("string").alias(f"_hi{i}")]
        ends.append(F.count_if(good & odd).alias(f"_odd{i}"))
    if ends and not sets:
        # for ends of text alone Spark would sort the batch; beside a set it hashes
        sets.append(F.collect_set(F.lit(None).cast("int")).alias("_hashed"))
    return [*sets, *ends]


def pruning(
    groups: Sequence[Row],
    schema: StructType,
    exact: Sequence[str],
    keys: Sequence[str],
    most: int = TUNING.named_values,
) -> Pruning:
    """What the groups of one batch, aggregated by `measures`, say together. Arguments as there.

    Of an exact column the values, or the ranges they lie in where they are too many to be named.
    """
    values: dict[str, Sequence[str | None]] = {}
    for i, name in enumerate(exact):
        own = sorted({value for group in groups for (value,) in group[f"_p{i}"]}, key=lambda v: (v is not None, v))
        if len(own) <= most:
            values[name] = own
    ranges: dict[str, Sequence[Range]] = {}
    for i, name in enumerate(_ranged(schema, exact, keys)):
        if name in values:
            continue
        ends = [(group[f"_lo{i}"], group[f"_hi{i}"]) for group in groups if group[f"_lo{i}"] is not None]
        found = joined(ends, schema[name].dataType.typeName())
        if found and not any(group[f"_odd{i}"] for group in groups):  # NULL lies in no range
            ranges[name] = found
    return Pruning(values, ranges)


def _ranged(schema: StructType, exact: Sequence[str], keys: Sequence[str]) -> list[str]:
    safe = text_safe(schema, dict.fromkeys([*exact, *keys]))
    return [name for name in safe if schema[name].dataType.typeName() != "boolean"]


def joined(ends: Iterable[Range], kind: str) -> list[Range]:
    """Ranges of a type in order, those that overlap made one, at most 16: the widest gaps between them stay.

    Texts have no distance: too many of them become one range. Empty where an end is too long or can't be read.
    """
    ends, order = list(ends), _order(kind)
    if any(len(text) > _LONGEST for both in ends for text in both):
        return []
    try:
        wanted = sorted(((order(low), order(high), low, high) for low, high in ends), key=lambda r: r[:2])
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
        by_width = sorted(range(1, len(apart)), key=lambda at: apart[at][0] - apart[at - 1][1], reverse=True)
        gaps = sorted(by_width[: _MOST_RANGES - 1])
    starts, stops = [0, *gaps], [*gaps, len(apart)]
    return [
        (apart[start][0], apart[stop - 1][1], apart[start][2], apart[stop - 1][3])
        for start, stop in zip(starts, stops, strict=True)
    ]


def _ends(file: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """The least and the greatest value that a file has in a column, None where its entry doesn't say."""
    if (partition := f"partition.{name}") in file:
        return file[partition], file[partition]
    return file.get(f"min.{name}"), file.get(f"max.{name}")


def _text(value: Any) -> str | None:
    """A value as Spark writes it as text."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _order(kind: str) -> Callable[[str], Any]:
    """What orders values of a type, given as text, as Spark does. It raises ValueError where it can't."""
    if kind in _NUMBERS:
        return int
    if kind == "decimal":
        return Decimal
    if kind == "date":
        return lambda text: date.fromisoformat(text).toordinal()
    return str.encode


def _among(column: Column, kind: DataType, values: Sequence[str | None]) -> Column:
    """Whether the column holds one of `values`; NULL, which no list of values matches, has a test of its own."""
    found = column.isin(*[F.lit(value).cast(kind) for value in values if value is not None])
    return found | column.isNull() if None in values else found


def _within(column: Column, kind: DataType, ranges: Sequence[Range]) -> Column:
    found = F.lit(False)
    for i, (low, high) in enumerate(ranges):
        one = column.between(F.lit(low).cast(kind), F.lit(high).cast(kind))
        found = one if not i else found | one
    return found
