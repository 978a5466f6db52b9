"""What `explain` says that the next run reads, where no row changed or none can be read yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.cli.explaining import _next
from draindown.cli.physical import _batch
from draindown.config.derived import DerivedFlow
from draindown.flow.state import FlowState
from draindown.ledger.rows import Swap
from draindown.planning.explanation import Explanation, explain, next_pieces
from draindown.runs.request import Request
from draindown.sources import intake
from draindown.sources.tables import followed, late
from draindown.sources.tables.followed import Followed
from draindown.sources.tables.late import Place
from draindown.sources.tables.upstream import Upstream
from draindown.spark.derived.batch import DeriveBatch
from tests.flowfiles import checkpoint
from tests.tables.test_late import told
from tests.tables.test_table_source import NOW, Project

FLOWS: dict[str, Any] = {
    "t": {
        "source": {"files": "landing/*", "format": "json"},
        "columns": {"id": "bigint", "at": "timestamp"},
    },
    "d": {
        "source": {"table": "t"},
        "window": {"time": "at", "size": "1 hour", "measures": {"n": "count(*)"}},
        "allowed_lateness": "2 hours",
    },
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A flow that accepts two hours, over a table that is appended to."""
    return Project(tmp_path, **FLOWS)


def _flow(project: Project) -> DerivedFlow:
    flow = project.spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    return flow


def explained(project: Project) -> tuple[Explanation, list[str]]:
    found = explain(FlowState.of(project.layout), _flow(project), NOW)
    return found, [text for _, text in _next(found)]


def planned(project: Project) -> DeriveBatch:
    """The batch whose physical plan would be shown."""
    flow, state = _flow(project), FlowState.of(project.layout)
    tables = [Followed(one, state) for one in flow.source.read]
    return _batch(project.spec, flow, "d", 1, tables, next_pieces(state, flow, tables, NOW))


def read(project: Project) -> None:
    """Pin what is new, and be done with it."""
    project.pin()
    number = intake.newest(project.layout, 1)
    asked = Request(spec=project.spec, flow="d", step="drain", run_id="r", root="/")
    checkpoint(asked, 1, offsets=number, commits=number)


def test_a_table_that_is_waited_for_is_told_with_the_reason(project: Project) -> None:
    assert explained(project)[1][0].startswith(
        "table t has published nothing yet: this flow waits for"
    )
    project.write([1], feed=False)
    project.publish()
    found, (text,) = explained(project)
    assert (
        text.startswith("table t has no change feed yet: this flow waits for") and not found.sources
    )


def test_late_rows_that_were_applied_are_what_the_next_run_reads(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    read(project)
    assert explained(project)[1] == [
        "reads nothing: no published row of its sources changed since its newest batch"
    ]
    assert planned(project).slice.is_fill, "a comparison of all rows, where nothing changed"
    for rows in (told(1, 2), told(2, 3)):
        late.decide(Place(project.layout, 1, 2), rows, "released", by="me", note="", at=NOW)
    found, (text,) = explained(project)
    assert found.applied == 1 + 2 and text.startswith(
        "recomputes what 3 late rows touch that were released"
    )
    assert project.look().units == 1, "a plan says so too"
    piece = planned(project).slice
    assert not piece.is_fill and piece.decided == (0, 2)

    project.write([3])
    project.publish()
    found, (first, *rest) = explained(project)
    assert first == text and "1 row changed since version 0" in rest[0] and found.sources
    read(project)
    assert explained(project)[0].applied == 0


def test_a_flow_that_was_edited_is_explained_with_what_it_needs_first(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    read(project)
    project.write([3])
    project.publish()
    edited = {**FLOWS, "d": {**FLOWS["d"], "window": {**FLOWS["d"]["window"], "size": "2 hours"}}}
    flow = Project(Path(project.spec.lake).parent, **edited).spec.declared("d")
    assert isinstance(flow, DerivedFlow)
    assert explain(FlowState.of(project.layout), flow, NOW).sources[0].since is None, (
        "no batch is in the table yet"
    )
    done = CommitProperties(app_transactions=[Transaction(project.layout.app_id(1, "rows"), 0)])
    write_deltalake(project.layout.tables.target.path, pa.table({"n": [1]}), commit_properties=done)
    found = explain(FlowState.of(project.layout), flow, NOW)
    first, *then = [text for _, text in _next(found)]
    assert first.startswith("derivation-changed: ") and "draindown reset p/d" in " ".join(then)
    assert "windows of 2 h" in found.query and not found.sources and found.seconds is None


def test_each_source_is_looked_at_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write([1, 2])
    project.publish()
    read(project)
    opened = list[str]()

    class Counted(Upstream):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            opened.append(self.layout.table_name)

    monkeypatch.setattr(followed, "Upstream", Counted)
    assert not explained(project)[0].waits and opened == ["t"]


def test_a_source_that_was_rebuilt_to_no_rows_is_compared(project: Project) -> None:
    project.write([1, 2])
    project.publish()
    read(project)
    project.write([], mode="overwrite", note=Swap("p", "t", 2, 1, 0, "r").as_metadata())
    version = project.publish()
    found, texts = explained(project)
    assert texts[0] == f"t: all rows, at version {version}" and found.sources[0].since is None
    assert planned(project).slice.is_fill
