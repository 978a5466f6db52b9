"""The Spark session of a tier's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from draindown.spark.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with all jars, short-run settings and two cores; it ends with the tests."""
    started = session("draindown-tests", master="local[2]", short=True)
    yield started
    started.stop()
