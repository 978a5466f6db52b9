"""The slice that Spark hands to a batch."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame

from draindown.sources.slices import Slice, slices_of


def pinned_in(references: DataFrame) -> Slice:
    """Return the slice whose rows Spark hands to a batch."""
    # Spark returns naive local times; an aware one is unambiguous in the hour that a clock change repeats
    rows = [
        {name: value.astimezone() if isinstance(value, datetime) else value for name, value in row.asDict().items()}
        for row in references.collect()
    ]
    (found,) = slices_of(sorted(rows, key=lambda row: row["unit"]))
    return found
