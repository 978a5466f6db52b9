"""One look at all flows: a source that hangs holds up its own flow, and what reads of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draindown.base.findings import Finding
from draindown.config.models import PipelineSpec
from draindown.planning import plan
from draindown.planning.idle import _AT_ONCE, idle
from draindown.runs.report import Backlog, PlanPart
from draindown.runs.request import Request

IDLE = PlanPart(backlog=Backlog(), reasons={"drain": "nothing is waiting"})


def spec(root: Path, files: int) -> PipelineSpec:
    """A pipeline of flows that read files, and one that reads the first."""
    columns = {"id": "string not null", "at": "timestamp"}
    flows: dict[str, Any] = {
        f"f{number}": {"source": {"files": "in/*", "format": "json"}, "columns": columns}
        for number in range(files)
    }
    window = {"time": "at", "size": "1 hour", "measures": {"n": "count(*)"}}
    flows["hourly"] = {"source": {"table": "f0"}, "window": window}
    return PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(root / "lake"), "flows": flows}
    )


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The flows whose source answers once the test is over."""
    over, flows = threading.Event(), set[str]()

    def made(request: Request, _now: Any, _source: Any = None) -> tuple[PlanPart, list[Finding]]:
        if request.flow in flows:
            over.wait()
        return IDLE, []

    monkeypatch.setattr(plan, "plan", made)
    yield flows
    over.set()


def looked(root: Path, files: int, **more: Any) -> tuple[set[str], list[str]]:
    """The flows that are idle, and what was warned of."""
    pipeline, warned = spec(root, files), list[str]()
    requests = {
        flow: Request(spec=pipeline, flow=flow, step="plan", run_id="r", root=str(root))
        for flow in pipeline.flows
    }
    return set(idle(requests, pipeline.graph, warned.append, **more)), warned


def test_a_source_that_hangs_holds_up_its_own_flow_and_what_reads_of_it(
    tmp_path: Path, hanging: set[str]
) -> None:
    hanging.add("f0")
    found, (warned,) = looked(tmp_path, 3, seconds=2)
    assert found == {"f1", "f2"}
    assert warned.endswith(": f0")


def test_as_many_as_are_looked_at_at_once_hold_up_all(tmp_path: Path, hanging: set[str]) -> None:
    hanging |= {f"f{number}" for number in range(_AT_ONCE)}
    found, (warned,) = looked(tmp_path, _AT_ONCE + 2, seconds=0.2)
    assert not found and "f9" in warned and "hourly" in warned


def test_where_none_hangs_nothing_is_said(tmp_path: Path, hanging: set[str]) -> None:
    assert looked(tmp_path, 20) == ({*(f"f{number}" for number in range(20)), "hourly"}, [])


_PROGRAM = """
import sys, threading
from pathlib import Path
from draindown.planning import plan
from tests.unit.test_idle import looked

plan.plan = lambda *_: threading.Event().wait()
found, warned = looked(Path(sys.argv[1]), 3, seconds=0.1)
print(found, len(warned))
"""


def test_a_source_that_hangs_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (made.stdout.strip(), made.returncode) == ("set() 1", 0), made.stderr
