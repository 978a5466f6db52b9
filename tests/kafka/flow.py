"""A flow that reads a topic of the test's broker, in a directory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.config.models import PipelineSpec
from draindown.runs.report import StepReport
from draindown.sources.port import Source
from draindown.sources.registry import source_of
from draindown.spark.runs.drain import drain
from tests.kafka.cluster import Cluster
from tests.landing import Injected, Landing

COLUMNS: dict[str, Any] = {
    "n": "int not null",
    "key": {"type": "string", "from": "key"},
    "trace": {"type": "string", "from": "header:trace"},
    "at": {"type": "timestamp not null", "from": "timestamp"},
    "part": {"type": "int not null", "from": "partition"},
    "offset": {"type": "bigint not null", "from": "offset"},
}
KEYED: dict[str, Any] = {
    "columns": {
        "user": {"type": "string not null", "from": "key"},
        "at": {"type": "timestamp not null", "from": "timestamp"},
        "offset": {"type": "bigint not null", "from": "offset"},
        "n": "int",
    },
    "target": {"keys": ["user"], "sequence_by": ["at", "offset"]},
}


class KafkaFlow(Landing):
    """Flow `f` of pipeline `p`, which appends unless its target says otherwise. `source`: fields of
    its source.
    """

    def __init__(
        self, home: Path, spark: SparkSession | None, cluster: Cluster, topic: str, **flow: Any
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.spark, self.attempts, self.cluster, self.topic = (
            home,
            spark,
            0,
            cluster,
            topic,
        )
        kafka = {"topics": [topic], "bootstrap_servers": cluster.address, "request_timeout": 3}
        source = {"kafka": kafka | flow.pop("kafka", {}), "format": "json"} | flow.pop("source", {})
        content = {"source": source, "columns": COLUMNS, "target": {}} | flow
        self.document = {"pipeline": "p", "lake": str(home / "lake"), "flows": {"f": content}}
        self.spec = PipelineSpec.model_validate(self.document)

    def source(self) -> Source:
        """A source that has not looked yet."""
        return source_of(self.request())

    def run(
        self, source: Source | None = None, reached: Callable[[str], None] | None = None
    ) -> StepReport:
        """Drain the flow."""
        assert self.spark is not None
        more: dict[str, Any] = {} if reached is None else {"reached": reached}
        return drain(self.request(), self.spark, progress=lambda _: None, source=source, **more)

    def dies_at(self, step: str) -> bool:
        """Drain until a batch reaches a step, and die there. Return whether it did."""
        fired = False

        def reached(now: str) -> None:
            nonlocal fired
            if now == step:
                fired = True
                raise Injected(step)

        with contextlib.suppress(Injected):
            self.run(reached=reached)
        return fired

    def offsets(self) -> list[tuple[int, int]]:
        """(partition, offset) of the table's rows, in order: one that is there twice shows
        twice.
        """
        return sorted((row["part"], row["offset"]) for row in self.rows())


def once(step: str, action: Callable[[], None]) -> Callable[[str], None]:
    """A hook that acts the first time a batch reaches a step."""
    left = [action]

    def reached(now: str) -> None:
        if now == step and left:
            left.pop()()

    return reached
