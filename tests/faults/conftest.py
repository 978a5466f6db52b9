"""A Spark session for whatever needs no process of its own, and a lake that nothing happens to."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from filelock import FileLock
from pyspark.sql import SparkSession

from draindown.base.run_size import RunSize
from draindown.spark.session import session
from tests.faults import lakes
from tests.faults.lakes import Control
from tests.workers import together


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with Delta and two cores; a task may fail three times before its job does.

    The campaign keeps it for an hour, so there it is one that becomes fast, not one that starts
    fast.
    """
    size: RunSize = "small" if "not campaign" in request.config.option.markexpr else "medium"
    started = session("draindown-faults", master="local[2,4]", size=size)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def control(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Control:
    """Three batches and their witness, drained in peace, by the first worker that asks."""
    home = together(tmp_path_factory, worker_id) / "control"
    home.mkdir(exist_ok=True)
    kept = home / "kept"
    with FileLock(home / "lock"):
        if not kept.exists():
            kept.write_bytes(
                pickle.dumps(lakes.control(home / "lake", lambda landing: landing.drain(spark)))
            )
    found: Control = pickle.loads(kept.read_bytes())
    return found
