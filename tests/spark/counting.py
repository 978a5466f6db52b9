"""What each batch of a drain costs: jobs and plans of Spark, logs opened by this process, commits
and files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from pyspark.sql import SparkSession

from draindown.base.progress import StepHook
from draindown.lake import table as lake_table


@dataclass(frozen=True)
class Cost:
    """Counts since a point in time."""

    jobs: int
    plans: int
    opens: int
    commits: int
    files: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            *(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__)
        )


class Counter:
    """Counts from Spark's own listeners, and what deltalake opens, while batches write below
    `lake`.
    """

    def __init__(self, spark: SparkSession, lake: str | Path) -> None:
        self._spark, self._lake, self._opens, self._marks = spark, Path(lake), 0, list[Cost]()

    def reached(self, step: str) -> None:
        """What a batch calls after each step."""
        if step == "recorded":
            self._marks.append(self._now())

    def counting(self, work: Callable[[StepHook], object]) -> list[Cost]:
        """Do some work that is given `reached`, and return the cost of each batch after the
        first.
        """
        counted = self._counted()
        with (
            mock.patch.object(lake_table, "opened", counted),
        ):
            work(self.reached)
        return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]

    def _counted(self) -> Callable[..., object]:
        right = lake_table.opened

        def opened(*given: object) -> object:
            self._opens += 1
            return right(*given)  # type: ignore[arg-type]

        return opened

    def _now(self) -> Cost:
        context = self._spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        # by the newest id: the store forgets all but a thousand
        plans = (
            self._spark._jsparkSession.sharedState()
            .statusStore()
            .executionsList()
            .last()
            .executionId()
        )
        found = [
            path
            for path in self._lake.rglob("*")
            if path.is_file() and not path.name.startswith((".", "_"))
        ]
        commits = [
            path for path in found if path.parent.name == "_delta_log" and path.suffix == ".json"
        ]
        written = [path for path in found if path.suffix in (".parquet", ".bin")]
        return Cost(
            context.dagScheduler().nextJobId(), plans, self._opens, len(commits), len(written)
        )
