"""A drain and its check in one process: one after the other, the second judged anew by a driver of
its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.gate import published, waivers
from draindown.lease import holder
from draindown.runs import store
from draindown.runs.request import Request
from draindown.spark.checks import check as checks
from draindown.spark.job import steps
from draindown.spark.job.main import attempt
from tests.landing import Landing

SUITE = {
    "name": "some",
    "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "a"}}],
}


def test_a_gate_that_fails_after_the_drain_is_judged_anew_once_it_is_waived(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing = Landing(tmp_path)
    landing.deliver('{"id": "k", "seq": 1}')
    free: list[bool] = []
    unpublished = published.unpublished

    def look(layout: Any) -> Any:
        free.append(holder.holder(layout, patient=False) is None)
        return unpublished(layout)

    monkeypatch.setattr(checks.published, "unpublished", look)
    asked = landing.request(suite=SUITE, then=("check", "compact"))
    assert steps.run(asked, lambda _: spark) == Exit.DONE
    drained, judged = (store.read(landing.layout, "r", step) for step in ("drain", "check"))
    assert drained is not None and drained.outcome == "done" and drained.start == asked.start
    assert (
        judged is not None
        and judged.outcome == "failed"
        and judged.started_at >= drained.finished_at
    )
    assert judged.fused is not None and (judged.fused.drain, judged.fused.exit) == (
        asked.start,
        Exit.GATE_FAILED,
    )
    assert free == [True], "the lease is given back before the check begins"
    assert (
        store.read(landing.layout, "r", "compact") is None
        and published.published(landing.layout) is None
    )
    (failed,) = [
        one for one in (judged.check.expectations if judged.check else []) if not one.success
    ]
    waivers.waive(landing.layout, failed.name, reason="known", by="me")
    own = own_check(landing)
    assert attempt(own, lambda _: checks.check(own, spark))[1] == Exit.DONE
    anew = store.read(landing.layout, "r", "check")
    assert anew is not None and (anew.outcome, anew.fused, anew.start) == ("done", None, own.start)
    assert published.published(landing.layout) is not None


def own_check(landing: Landing) -> Request:
    """The request of a check's own driver."""
    return landing.request(suite=SUITE).model_copy(update={"step": "check"})
