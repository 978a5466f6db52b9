"""What errors of a derived batch tell people to type. Its versions are pinned: a run reads the same
rows again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from draindown.config.derived import DerivedFlow
from draindown.lake.home import FlowHome
from draindown.spark.derived.batch import DeriveBatch, TableSlice, Versions
from draindown.spark.derived.remedies import not_computed, once_corrected
from draindown.spark.targets.delta_target import TableWriter

LAYOUT = FlowHome("/lake", pipeline="p", flow="d", table_name="d")
FLOW = DerivedFlow.model_validate(
    {"source": {"table": "t"}, "query": {"keys": ["k"], "sql": "select k from t"}}
)


def _batch(number: int, kind: str = "drain", layout: FlowHome = LAYOUT) -> DeriveBatch:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    writer = TableWriter(layout, FLOW, 1, number, kind)
    piece = TableSlice(1, [Versions("/lake/tables/t", None, 5)])
    return DeriveBatch(
        writer=writer, flow=FLOW, slice=piece, run_id="r", changed_at=at, started_at=at
    )


STAGED = replace(LAYOUT, staged=2)


@pytest.mark.parametrize(
    ("batch", "source", "query"),
    [
        (_batch(3), "reset p/d", ["reset p/d"]),
        (_batch(0, "replay"), "reset p/d", ["reset p/d"]),
        (_batch(0), "reset p/d", ["run p/d", "reset p/d"]),
        (
            _batch(0, layout=STAGED),
            "rebuild p/d --abort --yes",
            ["rebuild p/d --abort --yes"],
        ),
    ],
    ids=["later", "replay", "first", "rebuild"],
)
def test_a_corrected_source_is_read_by_a_command_that_pins_it_anew(
    batch: DeriveBatch, source: str, query: list[str]
) -> None:
    assert [step.partition("   #")[0] for step in once_corrected(batch)] == [
        f"draindown {one}" for one in query
    ]
    rows, expression = not_computed(batch, "q of group k 1: division by zero").next
    assert f"then draindown {source}" in rows and "draindown run" not in rows
    assert f"then draindown {'run' if len(query) > 1 else 'rebuild'} p/d" in expression
