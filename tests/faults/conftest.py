"""A Spark session for whatever needs no process of its own, and a lake that nothing happens to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from draindown.spark.session import session
from tests.faults import lakes
from tests.faults.lakes import Control


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with Delta and two cores; a task may fail three times before its job does.

    The campaign keeps it for an hour, so there it is one that becomes fast, not one that starts fast.
    """
    started = session("draindown-faults", master="local[2,4]", short="not campaign" in request.config.option.markexpr)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def control(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Control:
    """Three batches and their witness, drained in peace."""
    return lakes.control(tmp_path_factory.mktemp("control") / "lake", lambda landing: landing.drain(spark))
