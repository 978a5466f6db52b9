"""Per key: a query of the user whose every step works within the keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.spark.derived import per_plan
from draindown.spark.derived.kind import key_names
from draindown.spark.derived.scope import Bucket
from draindown.spark.sql import quoted
from draindown.spark.targets.pruning import Pruning
from draindown.spec.derived import Per


@dataclass(frozen=True)
class PerKey:
    """The kind `per`. A touched key is that of a changed row; the rows to read again are all rows of these keys.

    `table`: the name under which the query reads its source.
    """

    spec: Per
    table: str

    @property
    def keys(self) -> Sequence[str]:
        """The keys that the spec declares."""
        return self.spec.keys

    def keyed(self, rows: DataFrame) -> DataFrame:
        """Return the rows with their own key columns."""
        named = zip(self.keys, key_names(self), strict=True)
        return rows.select("*", *(F.col(quoted(key)).alias(name) for key, name in named))

    def home(self) -> Sequence[Column]:
        """Return the key columns."""
        return [F.col(quoted(key)) for key in self.keys]

    @property
    def counted(self) -> str | None:
        """None: a query may count what it likes."""
        return None

    def places(self, bucket: Bucket) -> Column:
        """Return 1 for rows whose key is in the bucket."""
        return bucket.has(self.home()).cast("int")

    def belongs(self) -> Column:
        """Return true: each row has a key."""
        return F.lit(True)

    def wrong(self, row: BatchRow) -> list[str]:
        """Return whether keys were counted that no image touched. A query may leave out any key."""
        return ["keys were recomputed that no image touched"] if row.touched and not row.used else []

    def result(self, keyed: DataFrame) -> DataFrame:
        """Run the query over the rows.

        Raises plans.Refused if its plan has a step that does not work within the keys.
        """
        rows = keyed.drop(*key_names(self))
        with _seen_as(rows, self.table):
            found = _run(rows.sparkSession, self.spec.sql, self.table)
            per_plan.refuse(found, self.keys)
        others = [name for name in found.columns if name not in self.keys]
        return found.select(*map(quoted, (*self.keys, *others)))

    def source_pruning(self, keys: Pruning) -> Pruning:
        """Return the same predicates: the source has the key columns."""
        return keys


@contextmanager
def _seen_as(rows: DataFrame, name: str) -> Iterator[None]:
    """Register a frame as a temporary view of its session, for the analysis of a query."""
    rows.createOrReplaceTempView(name)
    try:
        yield
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def _run(spark: SparkSession, sql: str, table: str) -> DataFrame:
    """Return the frame of a query, which is parsed and checked before Spark analyses it.

    `spark.sql(text)` would run a command at once, and read files that the text names.
    """
    plan = _parsed(spark, sql)
    per_plan.refuse_others(plan, table)
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _parsed(spark: SparkSession, sql: str) -> Any:
    return spark._jsparkSession.sessionState().sqlParser().parsePlan(sql)
