"""What a step asks of its executors: on one machine nothing, and of what a cluster's failures say the right name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draindown.spark import cluster


class Context:
    """A Spark context of which only the master may be asked: anything else is a call to the JVM."""

    def __init__(self, master: str) -> None:
        self.master = master

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_on_one_machine_nothing_is_asked_of_executors(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    spark: Any = SimpleNamespace(sparkContext=Context(master))
    asked: list[Any] = []
    monkeypatch.setattr(cluster.SparkContext, "_active_spark_context", spark.sparkContext)
    monkeypatch.setattr(cluster.session, "heap_bytes", lambda of: asked.append(of) or 7)
    request: Any = SimpleNamespace(layout=SimpleNamespace(lake="/lake"))
    cluster.refuse_unfit(spark, request)
    assert cluster.executors(spark.sparkContext) is None and cluster.described() == ""
    assert cluster.workers(spark) == cluster.Workers(1, 7) and asked == [spark], "the heap, as ever"
