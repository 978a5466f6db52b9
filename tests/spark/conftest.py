"""One session for all Spark tests, and lakes to write to. Jars: `$DRAINDOWN_JARS` or where set-up put them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.spark.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with Delta, short-run settings and two cores; it ends with the tests."""
    started = session("draindown-tests", master="local[2]", short=True)
    yield started
    started.stop()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The path of an empty lake."""
    return str(tmp_path / "lake")
