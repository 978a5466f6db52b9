"""One broker for all tests of the tier, with a listener of each kind: plain, SASL and TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kafka.cluster import Cluster, Secured
from tests.kafka.flow import KafkaFlow


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that is up, and what tests say to it."""
    started = Cluster.start(tmp_path_factory.mktemp("broker"), secured=Secured(tmp_path_factory.mktemp("keys")))
    yield started
    started.broker.stop()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """The name of a topic that no other test uses. It is not created."""
    return f"t{cluster.next_number()}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Cluster]:
    """A broker of the test's own, to be killed, frozen and restarted."""
    started = Cluster.start(tmp_path / "broker")
    yield started
    started.broker.stop()


@pytest.fixture
def flow(cluster: Cluster, topic: str, spark: SparkSession, tmp_path: Path) -> Callable[..., KafkaFlow]:
    """Makes a flow that reads the test's topic."""
    return lambda **content: KafkaFlow(tmp_path, spark, cluster, topic, **content)
