"""Sessions: aggregates per run of rows of a scope that follow each other without a long gap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from draindown.config.session import Session
from draindown.ledger.rows import BatchRow
from draindown.spark.derived.averages import exact_measure
from draindown.spark.derived.keyed_table import TimedTable
from draindown.spark.derived.kind import WholeScopes, key_names
from draindown.spark.derived.scope import Span, micros
from draindown.spark.derived.window import count_column
from draindown.spark.sql import quoted

_MICROS, _FIRST, _SESSION = "_micros", "_first", "_session"


@dataclass(frozen=True)
class Sessions(WholeScopes):
    """The kind `session`. The scope is a value of `by`, of which the sessions near changed rows are
    read again.
    """

    spec: Session
    table: str

    @property
    def relations(self) -> Sequence[TimedTable]:
        """The one source, of which only rows with a time belong to a scope."""
        spec = self.spec
        return [
            TimedTable(
                self.table,
                spec.group_by,
                spec.group_by,
                needed=[spec.time],
                time=spec.time,
                start=spec.START,
            )
        ]

    @property
    def span(self) -> Span:
        """The sessions of a scope that changed rows lie in or near."""
        spec = self.spec
        return Span(spec.time, spec.gap, spec.START, spec.END)

    @property
    def counted(self) -> str | None:
        """The first measure that is `count(*)`."""
        return count_column(self.spec.measures)

    @property
    def computed(self) -> Collection[str]:
        """The measures."""
        return self.spec.measures

    def wrong(self, row: BatchRow) -> list[str]:
        """A scope that changes touch has sessions now, or had some, and so is in the table."""
        return (
            [f"{row.empty} touched keys without sessions are not in the table"] if row.empty else []
        )

    def result(self, *keyed: DataFrame) -> DataFrame:
        """Aggregate per session."""
        (rows,), spec, names = keyed, self.spec, key_names(self)
        gap, at = F.lit(spec.gap * 1_000_000), F.col(_MICROS)
        within = Window.partitionBy(*names).orderBy(at)
        timed = rows.withColumn(_MICROS, micros(spec.time))
        first = F.when(at - F.lag(at).over(within) <= gap, 0).otherwise(1)
        # by range, as without a frame: rows of one instant are of one session, in whichever order
        # they are sorted
        numbered = timed.withColumn(_FIRST, first).withColumn(_SESSION, F.sum(_FIRST).over(within))
        measures = [
            F.expr(exact_measure(text, rows)).alias(name) for name, text in spec.measures.items()
        ]
        grouped = numbered.groupBy(
            *(F.col(own).alias(name) for own, name in zip(names, spec.group_by, strict=True)),
            _SESSION,
        )
        return grouped.agg(*self._times(), *measures).select(*map(quoted, spec.columns))

    def _times(self) -> Sequence[Column]:
        spec, time, at = self.spec, F.col(quoted(self.spec.time)), F.col(_MICROS)
        length = (F.max(at) - F.min(at)).cast("decimal(18,0)") * F.expr("0.000001BD")
        return [
            F.min(time).alias(spec.START),
            (F.max(time) + F.expr(f"interval {spec.gap} seconds")).alias(spec.END),
            length.cast("decimal(18,6)").alias(spec.SECONDS),
        ]
