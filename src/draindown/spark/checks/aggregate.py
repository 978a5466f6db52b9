"""Judge expectations without Great Expectations: one aggregation per scope judges all that
`translate` supports.

Each is translated to the Spark expression that Great Expectations builds for it. All others (an
unknown kind or argument, an unusual column or value, an error in the aggregation) are left to GX.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from draindown.gate import suite as gate_suite
from draindown.runs.report import Expectation
from draindown.spark.checks import translate
from draindown.spark.checks.questions import Copies, Counted, Each, Question, Unclear, all_of
from draindown.spark.checks.result import SAMPLE, SCOPES, Scope, detail, frames, sample, scope_in
from draindown.spark.sql import quoted

_AMONG, _BY, _ROWS, _OTHER = "_among", "_by", "_rows", "_other_"


# no timestamps: PySpark collects them in this machine's time zone. No strings: Delta's statistics
# do not bound those that are not valid UTF-8
_RANGED = (IntegralType, DecimalType, DateType)
_DOUBTS = (ValueError, OverflowError, TypeError)
"""What Python raises on values that it can't represent: dates after the year 9999, numbers beyond a
double.
"""


@dataclass(frozen=True)
class _Item:
    """One translated expectation of a suite."""

    name: str
    scope: Scope
    config: Mapping[str, Any]
    question: Question


def judge(
    suite: Mapping[str, Any] | None,
    changed: DataFrame,
    table: DataFrame,
    keys: Sequence[str],
    proven: Collection[str] = (),
    open_rows: DataFrame | None = None,
) -> dict[str, Expectation]:
    """Return the verdicts, by name, on the expectations that can be translated. The others are
    absent.

    `changed`: the unpublished rows of `table`; `keys`: columns that identify rows in samples;
    `proven`: the result of `proofs` for the published version; `open_rows`: of a history those
    without an end.
    """
    verdicts: dict[str, Expectation] = {}
    for scope, frame in frames(changed, table, open_rows):
        items = [item for item in _items(suite, frame.schema, open_rows) if item.scope == scope]
        rows = _Rows(
            frame,
            changed,
            [key for key in keys if key in frame.columns],
            proven if scope == "table" else (),
        )
        try:
            verdicts |= _judge(rows, items)
        except (PySparkException, Py4JJavaError, *_DOUBTS):
            continue  # one of them fails on a row or a pattern: GX finds out which, and judges the others
    return verdicts


def proofs(
    suite: Mapping[str, Any] | None, schema: StructType, judged: Iterable[Expectation]
) -> list[str]:
    """Return the ids of the uniqueness questions for which the verdicts prove that the table has no
    duplicates.
    """
    whole = [e for e in judged if e.scope == "table" and e.judged_by == "one aggregation"]
    clean = {e.name for e in whole if e.success and not e.unexpected}
    items = [item for item in _items(suite, schema) if item.scope == "table" and item.name in clean]
    return [item.question.about.id for item in items if isinstance(item.question.about, Copies)]


@dataclass(frozen=True)
class _Rows:
    """The rows of one scope. Rows of `frame` outside `changed` have no duplicates under the
    questions in `proven`.
    """

    frame: DataFrame
    changed: DataFrame
    keys: Sequence[str]
    proven: Collection[str]


def _items(
    suite: Mapping[str, Any] | None, schema: StructType, open_rows: DataFrame | None = None
) -> list[_Item]:
    named = zip(gate_suite.names(suite), gate_suite.expectations_of(suite), strict=True)
    return [item for name, config in named if (item := _item(name, config, schema, open_rows))]


def _item(
    name: str, config: Mapping[str, Any], schema: StructType, open_rows: DataFrame | None
) -> _Item | None:
    try:
        question = translate.question(config, schema)
    except (Unclear, PySparkException, Py4JJavaError, *_DOUBTS):
        return None  # as where an aggregation fails
    scope = gate_suite.options(config).get("scope", scope_in(question.scope, open_rows))
    known = [one for one in SCOPES if one != "open" or open_rows is not None]
    return _Item(name, scope, config, question) if scope in known else None


def _judge(rows: _Rows, items: Sequence[_Item]) -> dict[str, Expectation]:
    together = [item for item in items if not isinstance(item.question.about, Copies)]
    found = _counted(rows.frame, [item.question for item in together])
    counted = dict(zip([item.name for item in together], found, strict=True))
    for item in items:
        if isinstance(item.question.about, Copies):
            counted[item.name] = _copies(rows, item.question.about, item.question.fields)
    return {item.name: _verdict(rows, item, counted[item.name]) for item in items}


def _counted(frame: DataFrame, questions: Sequence[Question]) -> list[Counted]:
    """Return the counts of each question from one aggregation. No job runs if the schema answers
    all of them.
    """
    if all(question.about is None for question in questions):
        return [Counted() for _ in questions]
    wanted = [question.aggregates for question in questions]
    columns = [F.count(F.lit(1)), *chain.from_iterable(wanted)]
    rows, *values = _only(frame.agg(*[column.alias(f"_{n}") for n, column in enumerate(columns)]))
    left = iter(values)
    return [
        question.read(rows, list(islice(left, len(own))))
        for question, own in zip(questions, wanted, strict=True)
    ]


def _copies(rows: _Rows, about: Copies, fields: Sequence[str]) -> Counted:
    """Count the rows that share their values with another row.

    Hashes are grouped first, as they are a fraction of the values in a shuffle: without a duplicate
    hash there is no duplicate value. If a hash is duplicate, the values are grouped.
    """
    if about.hashed and about.id in rows.proven and not _repeated(rows, about.among, fields):
        count = rows.frame.count()
        return Counted(count, count)
    values = [F.col(name) for name in fields]
    if about.hashed:
        counted = _grouped(rows.frame, about.among, F.xxhash64(*values))
        if not counted.unexpected:
            return counted
    return _grouped(rows.frame, about.among, F.struct(*values))


def _repeated(rows: _Rows, among: Column, fields: Sequence[str]) -> bool:
    """Return whether values of a changed row occur more than once in the table.

    If they don't, and the other rows are proven unique, the table has no duplicates. The range of
    the changed values is a literal predicate, so that Delta skips files and Parquet row groups.
    """
    new = rows.changed.where(among).select(*fields)
    few = new.distinct().select(*[F.col(name).alias(_OTHER + name) for name in fields])
    same = [F.col(name).eqNullSafe(F.col(_OTHER + name)) for name in fields]
    near = rows.frame.where(among).where(_range(new, fields))
    found = (
        near.join(F.broadcast(few), all_of(same), "left_semi")
        .groupBy(*fields)
        .agg(F.count(F.lit(1)).alias(_ROWS))
    )
    return not found.where(F.col(_ROWS) > 1).isEmpty()


def _range(new: DataFrame, fields: Sequence[str]) -> Column:
    """Return a condition that holds for every row that shares its values with a row of `new`."""
    ranged = [name for name in fields if isinstance(new.schema[name].dataType, _RANGED)]
    kinds = {name: new.schema[name].dataType for name in ranged}
    ends = [
        end
        for name in ranged
        for end in (F.count(name), *(_shown(of(name), kinds[name]) for of in (F.min, F.max)))
    ]
    count, *found = _only(new.agg(F.count(F.lit(1)), *ends))
    within = [F.lit(True)]
    for at, name in enumerate(ranged):
        values, low, high = found[3 * at : 3 * at + 3]
        # a column with NULLs has no range: NULLs may be duplicates too
        if values and values == count:
            within.append(
                F.col(name).between(*[F.lit(end).cast(kinds[name]) for end in (low, high)])
            )
    return all_of(within)


def _shown(value: Column, kind: DataType) -> Column:
    """Return a date or a time as text, in the session's zone: Python has none beyond 9999, nor py4j
    before 1000.
    """
    return (
        value.cast("string")
        if isinstance(kind, (DateType, TimestampType, TimestampNTZType))
        else value
    )


def _grouped(frame: DataFrame, among: Column, by: Column) -> Counted:
    groups = frame.groupBy(among.alias(_AMONG), by.alias(_BY)).agg(F.count(F.lit(1)).alias(_ROWS))
    considered = F.when(F.col(_AMONG), F.col(_ROWS))
    row = _only(
        groups.agg(F.sum(_ROWS), F.sum(considered), F.sum(F.when(F.col(_ROWS) > 1, considered)))
    )
    return Counted(*(int(value or 0) for value in row))


def _verdict(rows: _Rows, item: _Item, counted: Counted) -> Expectation:
    success, observed = item.question.conclude(counted)
    by_row = isinstance(item.question.about, (Each, Copies))
    return Expectation(
        name=item.name,
        success=success,
        scope=item.scope,
        judged=counted.rows if by_row else 0,
        unexpected=counted.unexpected,
        sample=[] if success else _sample(rows.frame, item.question, rows.keys),
        detail=detail(item.config, observed),
        judged_by="one aggregation",
    )


def _sample(frame: DataFrame, question: Question, keys: Sequence[str]) -> list[Any]:
    """Return keys and values of the first unexpected rows; without keys the values in the form of
    GX.
    """
    match question.about:
        case Each(wrong=wrong):
            rows = frame.where(wrong)
        case Copies(among=among):
            rows = _sharing(frame.where(among), question.fields)
        case _:
            return []
    shown = list(dict.fromkeys([*keys, *question.fields]))
    columns = [
        _shown(F.col(quoted(name)), frame.schema[name].dataType).alias(name) for name in shown
    ]
    found = rows.select(*columns).limit(SAMPLE).collect()
    return sample(row.asDict() if keys else _values(row, question) for row in found)


def _values(row: Row, question: Question) -> Any:
    if len(question.fields) == 1:
        return row[question.fields[0]]
    return (
        row.asDict()
        if isinstance(question.about, Copies)
        else [row[name] for name in question.fields]
    )


def _sharing(frame: DataFrame, fields: Sequence[str]) -> DataFrame:
    """Return the rows that share their values with another, for the first SAMPLE such values."""
    several = (
        frame.groupBy(*fields)
        .agg(F.count(F.lit(1)).alias(_ROWS))
        .where(F.col(_ROWS) > 1)
        .limit(SAMPLE)
    )
    few = several.select(*[F.col(name).alias(_OTHER + name) for name in fields])
    same = [F.col(name).eqNullSafe(F.col(_OTHER + name)) for name in fields]
    return frame.join(F.broadcast(few), all_of(same), "left_semi")


def _only(frame: DataFrame) -> Row:
    row = frame.first()
    assert row is not None  # an aggregate without groups has one row
    return row
