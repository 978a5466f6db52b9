"""The change of a withdrawal from a keyed table: rows that leave it for the quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.sinks.port import FATE
from draindown.spark.targets import delta_target
from draindown.spark.targets.delta_target import Writer
from draindown.spark.targets.pruning import Pruning


@dataclass(frozen=True)
class Withdrawn:
    """The rows of the target that a withdrawal deletes, and its ledger row."""

    writer: Writer
    kept: DataFrame
    row: BatchRow
    pruning: Pruning

    def remember(self) -> None:
        """No-op: what keeps the rows out is the quarantine."""

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return the rows as they are in the table, as deletes."""
        return self.kept.withColumns({**was, FATE: F.lit("delete")})

    def write(self, row: BatchRow) -> None:
        """Delete the rows by keys and sequence."""
        delta_target.withdraw(self.writer, self.kept, self.pruning, row.as_metadata())
