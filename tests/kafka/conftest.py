"""One broker for all tests of the tier, with a listener of each kind: plain, SASL and TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.cluster import Cluster
from tests.kafka.flow import KafkaFlow
from tests.workers import together


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, worker_id: str, pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    """A broker that is up, and what tests say to it. No test stops it: other workers use it too."""
    # its end waits for them: behind the last test, whose time is bounded
    with Cluster.shared(
        together(tmp_path_factory, worker_id) / "kafka", pytestconfig.add_cleanup
    ) as found:
        yield found


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """The name of a topic that no other test uses. It is not created."""
    return cluster.new_name()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Cluster]:
    """A broker of the test's own, to be killed, frozen and restarted."""
    started = Cluster.start(tmp_path / "broker")
    yield started
    started.broker.stop()


@pytest.fixture
def flow(
    cluster: Cluster, topic: str, spark: SparkSession, tmp_path: Path
) -> Callable[..., KafkaFlow]:
    """Makes a flow that reads the test's topic."""
    return lambda **content: KafkaFlow(tmp_path, spark, cluster, topic, **content)
