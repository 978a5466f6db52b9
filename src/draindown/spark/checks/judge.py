"""One verdict per expectation of a suite: compiled where its meaning is certain, by Great Expectations where not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from draindown.gate import suite as gate_suite
from draindown.runs.report import Expectation
from draindown.spark.checks import aggregate


def judge(
    suite: Mapping[str, Any] | None,
    changed: DataFrame,
    table: DataFrame,
    keys: Sequence[str],
    proven: Collection[str] = (),
) -> list[Expectation]:
    """Judge every expectation of the suite over the rows of its scope, in the suite's order.

    What fails with an exception has failed, with the exception as its detail. `keys` name the rows in samples,
    `proven` is as `compiled.judge` takes it.
    """
    verdicts = aggregate.judge(suite, changed, table, keys, proven)
    left = [name for name in gate_suite.names(suite) if name not in verdicts]
    if left:
        from draindown.spark.checks import gx  # importing GX takes seconds

        verdicts |= gx.judge(suite, changed, table, keys, left)
    return [verdicts[name] for name in gate_suite.names(suite)]
