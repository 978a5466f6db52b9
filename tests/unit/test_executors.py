"""What a step asks of its executors, on one machine nothing, and what their ends are taken for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draindown.spark import causes, cluster


class Context:
    """A Spark context of which only the master may be asked: anything else is a call to the JVM."""

    def __init__(self, master: str) -> None:
        self.master = master

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_on_one_machine_nothing_is_asked_of_executors(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    spark: Any = SimpleNamespace(sparkContext=Context(master))
    asked: list[Any] = []
    monkeypatch.setattr(cluster.SparkContext, "_active_spark_context", spark.sparkContext)
    monkeypatch.setattr(cluster.session, "heap_bytes", lambda of: asked.append(of) or 7)
    request: Any = SimpleNamespace(layout=SimpleNamespace(lake="/lake"))
    cluster.refuse_unfit(spark, request)
    assert cluster.executors(spark.sparkContext) is None and cluster.described() == ""
    assert cluster.workers(spark) == cluster.Workers(1, 7) and asked == [spark], "the heap, as ever"


_LOST = "Lost task 0.3 in stage 12.0 (TID 16) (h executor 3): ExecutorLostFailure (executor 3 exited) Reason: "


@pytest.mark.parametrize(
    ("text", "memory", "lost"),
    [
        (f"{_LOST}Command exited with code 52", True, True),
        (f"{_LOST}Command exited with code 137", False, True),
        (
            "Lost task 0.3 in stage 12.0 (TID 16) (h executor 3): java.lang.OutOfMemoryError: Java heap space",
            True,
            False,
        ),
        (
            "org.apache.spark.SparkException: Not enough memory to build and broadcast the table",
            True,
            False,
        ),
        (
            "[CAST_INVALID_INPUT] The value 'x' of the type STRING cannot be cast to INT",
            False,
            False,
        ),
    ],
)
def test_a_batch_that_lost_its_executors_is_not_evaluated_row_by_row(
    text: str, memory: bool, lost: bool
) -> None:
    error = RuntimeError(text)
    assert (causes.of_memory(error), causes.of_lost_executors(error)) == (memory, lost)
