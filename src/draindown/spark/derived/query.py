"""Per key: a query of the user whose every step works within the keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.query import Query
from draindown.config.table_source import SourceTable
from draindown.ledger.rows import BatchRow
from draindown.proof.windows import scale_of
from draindown.spark.derived import amounts, averages, plans, query_plan
from draindown.spark.derived.keyed_table import KeyedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.sql import quoted


@dataclass(frozen=True)
class KeyedQuery(WholeScopes):
    """The kind `query`. A touched key is that of a changed row; the rows to read again are all rows
    of these keys.

    `scaled`: whether the result has the scales of sums of doubles, as `proof.windows.scale_of`
    names them.
    """

    spec: Query
    tables: Sequence[SourceTable]
    scaled: bool = False

    @property
    def relations(self) -> Sequence[KeyedTable]:
        """The tables, each with its own key columns."""
        return [
            KeyedTable(one.table, self.spec.keys, self.spec.sought(one), one.row_keys)
            for one in self.tables
        ]

    @property
    def computed(self) -> None:
        """All columns: which of them the query aggregates is not known."""

    def wrong(self, row: BatchRow) -> list[str]:
        """Return whether keys were counted that no image touched. A query may leave out any key."""
        return (
            ["keys were recomputed that no image touched"]
            if row.recomputed and not row.used
            else []
        )

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Run the query over the rows.

        Raises plans.Refused if its plan has a step that does not work within the keys, or keys have
        several types.
        """
        relations = self.relations
        _refuse_types(relations, keyed)
        rows = [one.drop(*key_names(self)) for one in keyed]
        with ExitStack() as seen:
            for one, relation in zip(rows, relations, strict=True):
                seen.enter_context(_seen_as(one, relation.name))
            spark, names = rows[0].sparkSession, [one.name for one in relations]
            found, sql = _exactly(spark, self.spec.sql, names)
            named = {
                one.name.lower(): query_plan.Relation(one.keys_by_column, one.row_keys)
                for one in relations
            }
            query_plan.refuse(found, self.spec.keys, named)
            found = _scaled(spark, sql, names, found) if self.scaled else found
        others = [name for name in found.columns if name not in self.spec.keys]
        return found.select(*map(quoted, (*self.spec.keys, *others)))


def _refuse_types(relations: Sequence[KeyedTable], keyed: Sequence[DataFrame]) -> None:
    """Refuse keys that have another type in another table: rows of one key would have several
    hashes.
    """
    first = relations[0]
    of = [
        [rows.schema[name].dataType.simpleString() for name in key_names(first)] for rows in keyed
    ]
    for relation, kinds in zip(relations[1:], of[1:], strict=True):
        for own, kind, other, wanted in zip(
            relation.columns, kinds, first.columns, of[0], strict=True
        ):
            if kind != wanted:
                raise plans.Refused(
                    f"key {own} of {relation.name} is {kind}, and {other} of {first.name} is {wanted}: "
                    "a key has one type; cast it in the flow that writes the table"
                )


@contextmanager
def _seen_as(rows: DataFrame, name: str) -> Iterator[None]:
    """Register a frame as a temporary view of its session, for the analysis of a query."""
    rows.createOrReplaceTempView(name)
    try:
        yield
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def _exactly(spark: SparkSession, sql: str, tables: Sequence[str]) -> tuple[DataFrame, str]:
    """Return the frame of a query with exact averages, and that query."""
    found = _run(spark, sql, tables)
    exact = averages.exact_query(sql, plans.analyzed(found))
    return (found if exact == sql else _run(spark, exact, tables)), exact


def _scaled(spark: SparkSession, sql: str, tables: Sequence[str], found: DataFrame) -> DataFrame:
    """Return the frame of a query with the scales of its columns. `found`: it without them."""
    scaled, summed = amounts.in_query(sql, plans.analyzed(found))
    if not summed:
        return found
    values = [
        f"{quoted(name)}.{amounts.VALUE}" if name in summed else quoted(name)
        for name in found.columns
    ]
    columns = [F.col(value).alias(name) for value, name in zip(values, found.columns, strict=True)]
    scales = [F.col(f"{quoted(name)}.{amounts.SCALE}").alias(scale_of(name)) for name in summed]
    return _run(spark, scaled, tables).select(*columns, *scales)


def _run(spark: SparkSession, sql: str, tables: Sequence[str]) -> DataFrame:
    """Return the frame of a query, which is parsed and checked before Spark analyses it.

    `spark.sql(text)` would run a command at once, and read files that the text names.
    """
    plan = _parsed(spark, sql)
    query_plan.refuse_others(plan, tables)
    jvm: Any = spark._jvm
    return DataFrame(
        jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark
    )


def _parsed(spark: SparkSession, sql: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
