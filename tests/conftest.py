"""What all tiers share: the Spark session of a test process, and the settings of generated
examples.

Jars: `$DRAINDOWN_JARS` or where set-up put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# both measure wall time, which on a busy machine is that of its other work
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session with all jars and one core, the other being that of the tests beside it; it ends
    with the tests.

    Without the long tests it compiles no plans, which takes longer than to interpret them, and
    shuffles into one partition; with them, it works as that of a job does.
    """
    from draindown.spark.session import INTERPRETED, session  # tests without Spark don't load it

    started = session("draindown-tests", master="local[1]", size="small")
    if "not long" in request.config.option.markexpr:
        for name, value in (INTERPRETED | {"spark.sql.shuffle.partitions": "1"}).items():
            started.conf.set(name, value)
    yield started
    started.stop()
