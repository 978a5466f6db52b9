"""Append: every accepted row becomes a row of the table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.sinks.port import FATE
from draindown.spark.contract.origin import located
from draindown.spark.session import configured
from draindown.spark.sql import CHANGED_AT
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.pruning import Pruning
from draindown.spark.targets.strategy import Accepted, Withdrawal


class Append:
    """The strategy of a target without keys."""

    def stored(self, accepted: Accepted) -> DataFrame:
        """Return the accepted rows with `_origin`, `_arrived_at` and `_changed_at`."""
        rows = located(accepted.rows, accepted.blocks).drop("_delete")
        return rows.withColumn(CHANGED_AT, F.lit(accepted.changed_at))

    @contextmanager
    def resolve(self, accepted: Accepted, row: BatchRow) -> Iterator[Appended]:
        """Yield a change that inserts every accepted row."""
        yield Appended(accepted, self.stored(accepted), replace(row, inserted=accepted.number))

    def withdrawal(
        self, writer: Writer, rows: DataFrame, row: BatchRow, pruning: Pruning
    ) -> AbstractContextManager[Withdrawal]:
        """Not used: a row without keys can't be kept out."""
        raise NotImplementedError


@dataclass(frozen=True)
class Appended:
    """The change of an append batch: rows that are not written yet."""

    accepted: Accepted
    rows: DataFrame
    row: BatchRow

    def remember(self) -> None:
        """No-op: an append target has no side tables."""

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return every row, as an upsert: no row of the table was there before."""
        return self.rows.withColumns(
            {FATE: F.lit("upsert"), **{name: F.lit(False) for name in was}}
        )

    def write(self, row: BatchRow) -> None:
        """Append the rows in one commit. Idempotent."""
        tuning, lines = self.accepted.tuning, self.accepted.lines
        with configured(self.rows.sparkSession, tuning.evaluation(lines)):
            delta_target.append(self.accepted.writer, self.rows, row.as_metadata())
