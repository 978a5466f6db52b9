"""Judge a suite: by one aggregation where expectations can be translated, else by Great
Expectations.
"""

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
    open_rows: DataFrame | None = None,
) -> list[Expectation]:
    """Judge every expectation of the suite over the rows of its scope, and return the verdicts in
    the suite's order.

    An expectation that raises an exception has failed, with the exception as its detail. `keys`:
    columns that identify rows in samples; `proven`: see `aggregate.judge`; `open_rows`: of a
    history those without an end.
    """
    verdicts = aggregate.judge(suite, changed, table, keys, proven, open_rows)
    left = [name for name in gate_suite.names(suite) if name not in verdicts]
    if left:
        from draindown.spark.checks import gx  # importing GX takes seconds

        verdicts |= gx.judge(suite, changed, table, keys, left, open_rows)
    return [verdicts[name] for name in gate_suite.names(suite)]
