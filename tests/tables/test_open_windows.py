"""Windows and sessions that rows in time may still change, by the version that a check judges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.base.clock import now
from draindown.config.derived import DerivedFlow
from draindown.config.models import PipelineSpec
from draindown.flow.open_windows import open_windows
from draindown.lake.home import table_unit
from draindown.lake.table import Table
from draindown.sources import intake
from draindown.sources.tables.source import OWN

LANDING = {
    "source": {"files": "landing/*", "format": "json"},
    "columns": {"id": "bigint not null", "at": "timestamp"},
    "target": {"keys": ["id"], "sequence_by": ["id"]},
}
COUNT = {"measures": {"n": "count(*)"}}
PARTS: dict[str, dict[str, Any]] = {
    "window": {"time": "at", "size": "1 hour", **COUNT},
    "session": {"time": "at", "gap": "1 hour", "group_by": ["id"], **COUNT},
}


@pytest.mark.parametrize("kind", PARTS)
def test_windows_that_end_after_the_source_was_written_are_open(tmp_path: Path, kind: str) -> None:
    derived = {"source": {"table": "t"}, kind: PARTS[kind]}
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path / "lake"), "flows": {"t": LANDING, "d": derived}}
    )
    flow, layout, source = spec.declared("d"), spec.layout("d"), spec.layout("t").tables.target.path
    assert isinstance(flow, DerivedFlow)
    ends = [now() + timedelta(hours=hours) for hours in (-1, 1, 2)]
    for number in range(3):  # the newest was not read yet
        write_deltalake(source, pa.table({"id": [number]}), mode="append")
    intake.create(layout, 1, OWN)
    for batch, known in enumerate((ends[:1], ends[1:])):
        unit = {
            "input": table_unit("t"),
            "start": batch - 1,
            "until": batch,
            "arrived_at": now(),
            "bytes": 0,
        }
        intake.append(
            layout,
            1,
            OWN,
            [{**dict.fromkeys(OWN.names), "records": None, "unpacked": 0, **unit}],
            now(),
            batch + 1,
        )
        times = {
            f"{kind}_{name}": [end - timedelta(hours=back) for end in known]
            for name, back in {"start": 1, "end": 0}.items()
        }
        rows = pa.table(
            {name: pa.array(some, pa.timestamp("us", "UTC")) for name, some in times.items()}
        )
        once = CommitProperties(app_transactions=[Transaction(layout.app_id(1, "rows"), batch)])
        write_deltalake(layout.tables.target.path, rows, mode="append", commit_properties=once)
    read = datetime.fromtimestamp(Table(source, 1).commits(1)[0].timestamp / 1000, UTC)
    assert open_windows(layout, flow, 0) == "", "the only one had ended"
    since = (ends[1] - timedelta(hours=1)).isoformat()[:16]
    assert open_windows(layout, flow, 1) == (
        f"2 {kind}s from {since} on end after the source was written ({read:%H:%M} UTC)"
    )
