"""Columns that the flights table has and the events have not."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def tidy(df: DataFrame) -> DataFrame:
    """Add `flight_month` ('2013-01').

    It comes from the key: a withdrawal has nothing else, and so a flight never changes its month.
    """
    return df.withColumn("flight_month", F.substring("flight_id", 1, 7))
