"""The change of a withdrawal: rows that leave the target for the quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from draindown.ledger.rows import BatchRow
from draindown.sinks.port import FATE


@dataclass(frozen=True)
class Withdrawn:
    """The rows of the target that a withdrawal deletes, and its ledger row."""

    rows: DataFrame
    row: BatchRow

    def remember(self) -> None:
        """No-op: what keeps the rows out is the quarantine."""

    def changes(self, was: Mapping[str, Column]) -> DataFrame:
        """Return the rows as they are in the table, as deletes."""
        return self.rows.withColumns({**was, FATE: F.lit("delete")})

    def write(self, row: BatchRow) -> None:
        """Not used: `delta_target.withdraw` deletes by keys and sequence."""
        raise NotImplementedError
