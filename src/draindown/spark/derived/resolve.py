"""Resolve a derivation against the columns of its source, before anything is read: its columns,
types and functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, StructType, VariantType

from draindown.base.errors import TerminalError, said
from draindown.config.column_types import UNSTORED_WHY
from draindown.config.derived import DerivedFlow
from draindown.config.names import START_AT
from draindown.config.pairing import Pairing, side_problems
from draindown.config.result_columns import not_a_key, problems
from draindown.spark.derived import plans
from draindown.spark.derived.kind import Kind
from draindown.spark.derived.plans import Refused
from draindown.spark.derived.registry import kind_of
from draindown.spark.derived.scope import WHOLE, Everything
from draindown.spark.sql import unstored
from draindown.spark.tuning import TUNING, Tuning

_REFUSED = (Refused, PySparkException, Py4JJavaError)

_NOWHERE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Resolved:
    """A derivation whose query Spark resolves.

    Attributes:
        kind: the derivation.
        used: the columns that the query reads of each source, in the source's order.
        schema: columns and types of the result.
    """

    kind: Kind
    used: Sequence[Sequence[str]]
    schema: StructType


def resolve(
    flow: DerivedFlow,
    sources: Sequence[DataFrame],
    tried: str,
    next: str | Sequence[str],
    places: Mapping[str, str] = MappingProxyType({}),
    tuning: Tuning = TUNING,
) -> Resolved:
    """Resolve a flow's derivation over its sources. Runs no job.

    `tried`, `next`: words for the error. `places`: file, line and column of the flow's expressions,
    by their path.

    Raises TerminalError `invalid-derivation`: a column or function is unknown, a measure is no
    aggregate, a key or result has a type that can't be compared, or a step of a `query` query does
    not work within the keys.
    """
    kind = kind_of(flow, tuning)
    try:
        found = list(_problems(flow, sources))
        if not found:
            result = query(kind, [source.where(F.lit(False)) for source in sources])
            found = [*_type_problems(flow, kind, result.schema)]
    except _REFUSED as error:
        found = [f"{flow.kind}: {_reason(error)}"]
    if found:
        told = "; ".join(_placed(one, flow, places) for one in found)
        raise TerminalError(
            "invalid-derivation",
            tried=tried,
            found=told,
            changed="nothing was read or written",
            next=next,
        )
    return Resolved(kind, _used(kind, sources), result.schema)


def _placed(problem: str, flow: DerivedFlow, places: Mapping[str, str]) -> str:
    """Return a problem with the place of the expression that it is about; of a query all are."""
    path = problem.partition(":")[0]
    place = places.get(path) or (places.get("query.sql") if flow.query is not None else None)
    return f"{place}: {problem}" if place else problem


def _problems(flow: DerivedFlow, sources: Sequence[DataFrame]) -> Iterator[str]:
    """Yield what the pipeline file shows only once the columns of the sources are known, as those
    of derived flows.

    Then the measures that Spark refuses, each by name.
    """
    for at, source in enumerate(sources):
        types = {field.name: field.dataType.simpleString() for field in source.schema}
        yield from (f"{'.'.join(place)}: {text}" for place, text in problems(flow, at, types, None))
    if isinstance(flow.derivation, Pairing):
        by_table = {
            table.table: {field.name: field.dataType.simpleString() for field in source.schema}
            for table, source in zip(flow.source.read, sources, strict=True)
        }
        wrong = (*flow.derivation.key_problems(), *side_problems(flow.derivation, by_table))
        yield from (f"{flow.kind}.{'.'.join(place)}: {text}" for place, text in wrong)
    source = sources[0]
    yield from _condition_problems(flow, source)
    for name, text in flow.measures.items():
        try:
            alone = source.agg(F.expr(text).alias(name))
        except _REFUSED as error:
            yield f"{flow.kind}.measures.{name}: {_reason(error)}"
            continue
        found = list(plans.expressions(plans.analyzed(alone)))
        if not any(plans.kind(one) == "AggregateExpression" for one in found):
            yield f"{flow.kind}.measures.{name}: is no aggregate of the rows of a {flow.kind}, such as sum({text})"
        elif not all(one.deterministic() for one in found):
            yield f"{flow.kind}.measures.{name}: is not determined by the rows, or depends on their order"


def _condition_problems(flow: DerivedFlow, source: DataFrame) -> Iterator[str]:
    text = flow.target.apply_as_deletes
    if text is None:
        return
    place = "target.apply_as_deletes"
    try:
        (field,) = source.select(F.expr(text)).schema
    except _REFUSED as error:
        yield f"{place}: {_reason(error)}"
        return
    if field.dataType.typeName() != "boolean":
        yield f"{place}: it gives {field.dataType.simpleString()}, no condition"


def _type_problems(flow: DerivedFlow, kind: Kind, schema: StructType) -> Iterator[str]:
    refused = f"{UNSTORED_WHY}; give it another with AS"
    yield from (f"column {path}: {refused}" for path in unstored(schema))
    keys = set(kind.row_keys) - {
        START_AT
    }  # of several columns it is a struct, whose parts are checked as sequences
    for field in schema:
        text = field.dataType.simpleString()
        declared = flow.columns.get(field.name)
        if field.name in keys and (why := not_a_key(text)) is not None:
            yield f"key {field.name} {why}"
        elif isinstance(field.dataType, MapType | VariantType):
            yield f"column {field.name} is {text}: Spark can't compare it with the table; return its parts as columns"
        elif text == "void":
            yield f"column {field.name} has no type; cast it"
        elif declared is not None and declared.stored != text:
            yield f"column {field.name} is {text}, and columns says {declared.stored}"
    yield from (
        f"column {name} is declared, and the result has none"
        for name in flow.columns
        if name not in schema.names
    )


def query(kind: Kind, sources: Sequence[DataFrame]) -> DataFrame:
    """Return the whole query over the rows of its sources."""
    every = Everything(WHOLE)
    return kind.result(
        *(one.within(rows, every) for one, rows in zip(kind.relations, sources, strict=True))
    )


def _used(kind: Kind, sources: Sequence[DataFrame]) -> list[list[str]]:
    """Return the columns that are left once Spark has pruned those that the result does not depend
    on.

    A row's keys are always among them: Spark may find that a result does not depend on a joined
    table at all.
    """
    unread = [_unread(at, source) for at, source in enumerate(sources)]
    keyed = [
        _beside(one.keyed(rows), rows) for one, rows in zip(kind.relations, unread, strict=True)
    ]
    named = set().union(
        *(plans.read(plans.optimized(one)) for one in (query(kind, unread), *keyed))
    )
    return [
        [name for name in source.columns if f"{at}:{name}" in named]
        for at, source in enumerate(sources)
    ]


def _beside(keyed: DataFrame, rows: DataFrame) -> DataFrame:
    """Return the columns that `keyed` adds to rows."""
    return keyed.select(*(name for name in keyed.columns if name not in rows.columns))


def _unread(at: int, source: DataFrame) -> DataFrame:
    """Return a frame with the columns of source number `at`, whose leaf has names of its own."""
    spark, fields = source.sparkSession, source.schema.fields
    schema = StructType(
        [StructField(f"{at}:{one.name}", one.dataType, one.nullable) for one in fields]
    )
    # neither the table, whose files the optimizer would list, nor rows that it knows to be none,
    # with which it folds
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema).toDF(*source.columns)


def _reason(error: BaseException) -> str:
    """Return the first line of Spark's error, without SQLSTATE, plan and stack."""
    if isinstance(error, Refused):
        return str(error)
    lines = (line.strip() for line in said(error).partition("JVM stacktrace:")[0].splitlines())
    return next(filter(None, lines), type(error).__name__).partition(" SQLSTATE:")[0][:500]
