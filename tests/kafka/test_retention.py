"""What a bounded drain leaves unread, where the topic will have deleted it before the next run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.planning import plan
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KafkaFlow


@pytest.mark.long
def test_a_drain_that_retention_overtakes_is_red_when_it_has_done_all_that_it_may(
    cluster: Cluster, topic: str, flow: Callable[..., KafkaFlow]
) -> None:
    cluster.create(topic, retention_ms=3_600_000)
    written = datetime.now(UTC) - timedelta(minutes=50)
    for n in range(4):  # the last is young enough to wait for the next run
        at = written if n < 3 else datetime.now(UTC)
        cluster.send(topic, [{"value": b'{"n": %d}' % n, "timestamp": int(at.timestamp() * 1000)}])
    f = flow(source={"max_offsets_per_trigger": 2}, max_batches=1)
    f.document["schedule"] = (
        f"{(datetime.now(UTC) - timedelta(minutes=1)).minute} * * * *"  # in 59 minutes
    )
    f.spec = PipelineSpec.model_validate(f.document)
    found, findings = plan.plan(f.request(), now())
    assert found.drain and [one.kind for one in findings] == ["retention"], (
        "it warns, and lets the drain begin"
    )

    with pytest.raises(TerminalError) as red:
        f.run()
    assert red.value.code == "backlog-expires"
    assert len(f.offsets()) == 2, "what it might drain is in the table"

    cluster.send(topic, [{"value": b'{"n": 4}'}])
    assert f.run().outcome == "stopped", "what is left is young enough for the next run"
    f.run()
    assert len(f.offsets()) == 5
