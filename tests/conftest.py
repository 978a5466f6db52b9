"""The Spark session of a test process, one for all its tiers. Jars: `$DRAINDOWN_JARS` or where set-up put them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with all jars and one core, the other being that of the tests beside it; it ends with the tests."""
    from draindown.spark.session import session  # tests without Spark don't load it

    started = session("draindown-tests", master="local[1]", short=True)
    yield started
    started.stop()
