"""A table that another flow of the lake writes is refused by name at the first drain, from its log
and its home.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.doctor.examination import examine
from draindown.flow import owner
from draindown.lake.home import FlowHome
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from draindown.planning import compaction
from draindown.planning.plan import plan
from draindown.recovery import rebuild, replay, reset
from draindown.recovery.opening import Needs, open_flow
from draindown.runs.request import Again, Request

NOW = datetime(2026, 5, 1, tzinfo=UTC)
_BARRIERS: tuple[Any, ...] = ()


def _spec(
    lake: Path, pipeline: str, flow: str = "orders", table: str | None = None
) -> PipelineSpec:
    landing: dict[str, Any] = {
        "source": {"files": f"{lake}/in/*", "format": "json"},
        "columns": {"id": "bigint not null"},
        "target": {"keys": ["id"], "sequence_by": ["id"]} | ({"table": table} if table else {}),
    }
    return PipelineSpec.model_validate(
        {"pipeline": pipeline, "lake": str(lake), "flows": {flow: landing}}
    )


def _row(layout: FlowHome, batch: int, **counts: int) -> BatchRow:
    pipeline, flow = layout.pipeline, layout.flow
    return BatchRow(
        pipeline=pipeline, flow=flow, generation=1, batch=batch, kind="drain", run_id="r", **counts
    )


def _drained(layout: FlowHome, batch: int = 0, **counts: int) -> None:
    """What a drain leaves: a commit that carries its ledger row, the ledger, a home."""
    row = _row(layout, batch, **counts)
    note = CommitProperties(
        custom_metadata={"userMetadata": row.as_metadata()},
        app_transactions=[Transaction(layout.app_id(1, "rows"), batch)],
    )
    write_deltalake(
        layout.tables.target.path, pa.table({"id": [batch]}), mode="append", commit_properties=note
    )
    ledger_table.record(layout, [row])
    Path(layout.lease).mkdir(parents=True, exist_ok=True)
    Path(layout.lease, "driver.lock").touch()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "in").mkdir()
    return tmp_path


def _is_refused(spec: PipelineSpec, flow: str = "orders") -> bool:
    """Whether plan and opening refuse the flow for its table: both do, or neither."""
    found = []
    for act in (_plan, _open):
        try:
            act(spec, flow)
            found.append(False)
        except TerminalError as error:  # a flow of these tests has no checkpoint
            found.append(error.code == "table-of-another-flow")
    assert found[0] == found[1]
    return found[0]


def _plan(spec: PipelineSpec, flow: str) -> None:
    plan(Request(spec=spec, flow=flow, step="plan", run_id="r", root="/"), NOW)


def _open(spec: PipelineSpec, flow: str) -> None:
    with open_flow(spec, flow, Needs.LEASE, owner="me", run_id="r"):
        pass


@pytest.mark.parametrize(
    ("pipeline", "flow", "table"),
    [("web", "orders", None), ("web", "sales", "orders"), ("web", "orders", "sales")],
    ids=["the same names", "the same table", "the same ledger"],
)
def test_the_second_project_is_refused_at_its_first_drain(
    lake: Path, pipeline: str, flow: str, table: str | None
) -> None:
    first, second = _spec(lake, "shop"), _spec(lake, pipeline, flow, table)
    assert not _is_refused(second, flow)
    _drained(first.layout("orders"))
    assert not _is_refused(first) and _is_refused(second, flow)
    with pytest.raises(TerminalError) as error:
        owner.refuse_other(second.layout(flow))
    home = first.layout("orders").home
    assert (
        f"flow shop/orders writes it: its batches are in the table, its home is {home}"
        in error.value.found
    )
    assert f"mv {home} " in "\n".join(error.value.next)
    shutil.rmtree(home)
    assert not _is_refused(second, flow), "its owner is gone for good"


@pytest.mark.parametrize(
    ("flow", "table"),
    [("orders", None), ("sales", "orders"), ("orders", "sales")],
    ids=["both", "table", "ledger"],
)
def test_while_a_flow_is_at_work_on_its_first_batch_no_other_begins(
    lake: Path, flow: str, table: str | None
) -> None:
    first, second = _spec(lake, "shop"), _spec(lake, "web", flow, table)
    with open_flow(first, "orders", Needs.LEASE, owner="me", run_id="r"):
        with pytest.raises(TerminalError) as error:
            _open(second, flow)
        assert error.value.code == "table-of-another-flow"
        assert (
            f"flow shop/orders writes it: it is at work on its first batch, its home is {lake}"
            in error.value.found
        )
    _open(second, flow)  # the first one ended without a batch: nobody owns the table
    _open(first, "orders")
    _drained(second.layout(flow))
    assert _is_refused(first)


@pytest.mark.full
def test_of_first_drains_at_one_moment_one_goes_on(lake: Path) -> None:
    """Each is a process of its own: it opens, writes its first batch where it may, and waits for
    the others.
    """
    specs = [_spec(lake, name) for name in ("shop", "web", "store")]
    context = multiprocessing.get_context("spawn")
    for number in range(3):
        table = f"t{number}"
        own = [
            spec.model_copy(update={"flows": _spec(lake, "x", f"f{number}", table).flows})
            for spec in specs
        ]
        start, end = context.Barrier(len(own)), context.Barrier(len(own))
        with context.Pool(len(own), initializer=_share, initargs=(start, end)) as pool:
            found = pool.map(_first_drain, [spec.model_dump_json() for spec in own], chunksize=1)
        assert sorted(found) == ["done", "table-of-another-flow", "table-of-another-flow"]
        written = {row.pipeline for row in ledger_table.recent(own[0].layout(f"f{number}"), 9)}
        assert written == {own[found.index("done")].pipeline}


def _share(*barriers: Any) -> None:
    global _BARRIERS
    _BARRIERS = barriers


def _first_drain(text: str) -> str:
    spec = PipelineSpec.model_validate_json(text)
    (flow,) = spec.flows
    start, end = _BARRIERS
    start.wait(60)
    try:
        with open_flow(spec, flow, Needs.LEASE, owner="me", run_id="r"):
            end.wait(60)
            _drained(spec.layout(flow))
        return "done"
    except TerminalError as error:
        end.wait(60)
        return error.code


def test_a_flow_with_batches_in_the_table_is_not_refused(lake: Path) -> None:
    """Both wrote before anybody looked: doctor names the other's commits, and neither stops."""
    first, second = _spec(lake, "shop"), _spec(lake, "web")
    _drained(first.layout("orders"))
    _drained(second.layout("orders"), 1)
    assert not _is_refused(first) and not _is_refused(second)


def _with_a_refused_row(layout: FlowHome) -> None:
    """What a drain leaves that refused one record."""
    _drained(layout, quarantined=1)
    quarantined = CommitProperties(
        app_transactions=[Transaction(layout.app_id(1, "quarantine"), 0)]
    )
    write_deltalake(
        layout.tables.quarantine.path, pa.table({"id": [0]}), commit_properties=quarantined
    )


def _asked(spec: PipelineSpec, flow: str = "orders") -> Request:
    return Request(spec=spec, flow=flow, step="plan", run_id="r", root="/")


_OF_A_FLOW: dict[str, Callable[[PipelineSpec, str], object]] = {
    "plan": lambda spec, flow: plan(_asked(spec, flow), NOW),
    "open": lambda spec, flow: _open(spec, flow),
    "reset": lambda spec, flow: reset.plan(_asked(spec, flow)),
    "reset --table-aside": lambda spec, flow: reset.plan(_asked(spec, flow), table_aside=True),
    "rebuild": lambda spec, flow: rebuild.plan(_asked(spec, flow)),
    "replay": lambda spec, flow: replay.find(
        _asked(spec, flow).model_copy(update={"replay": Again(since=NOW)})
    ),
    "compact": lambda spec, flow: compaction.idle(_asked(spec, flow)),
    "audit": lambda spec, flow: audit(spec, flow, root=Path("/")),
}


@pytest.mark.parametrize("harm", ["none", "the target is torn", "a table beside is torn"])
def test_a_renamed_pipeline_is_told_whose_the_table_is(lake: Path, harm: str) -> None:
    """The quarantine lacks batches of the new name, which is no damage: a reset would be refused,
    and told to reset.
    """
    first, second = _spec(lake, "shop"), _spec(lake, "web")
    _open(first, "orders")
    _with_a_refused_row(first.layout("orders"))
    if harm != "none":
        _torn(
            first.layout("orders").tables.target.path
            if harm == "the target is torn"
            else first.layout("orders").tables.quarantine.path
        )
    told = {}
    for kind, spec in {"keyed": second, "append": _appending(second)}.items():
        for name, act in _OF_A_FLOW.items():
            with pytest.raises(TerminalError) as error:
                act(spec, "orders")
            told[kind, name] = error.value.code
    assert set(told.values()) == {"table-of-another-flow"}, told


def _appending(spec: PipelineSpec) -> PipelineSpec:
    content = spec.model_dump(mode="json", exclude_unset=True)
    content["flows"]["orders"]["target"] = {}
    return PipelineSpec.model_validate(content)


def _torn(table: str) -> None:
    newest = max(Path(table, "_delta_log").glob("*.json"))
    newest.write_bytes(b"")


def test_doctor_names_the_owner_and_nothing_that_follows_from_it(lake: Path) -> None:
    first, second = _spec(lake, "shop"), _spec(lake, "web")
    _with_a_refused_row(first.layout("orders"))
    found = examine(_asked(second))
    assert [one.code for one in found.symptoms if one.level == "wrong"] == ["table-of-another-flow"]


def test_a_retired_flow_gives_its_name_away_by_the_command_that_is_printed(lake: Path) -> None:
    first, second = _spec(lake, "shop"), _spec(lake, "web")
    _with_a_refused_row(first.layout("orders"))
    with pytest.raises(TerminalError) as error:
        plan(_asked(second), NOW)
    command = error.value.next[-1].partition(": ")[2].rpartition(", then:")[0]
    subprocess.run(command.replace("SOMEWHERE-ELSE", f"{lake}/elsewhere"), shell=True, check=True)
    assert not plan(_asked(second), NOW)[0].drain
    ledger_table.record(second.layout("orders"), [_row(second.layout("orders"), 0)])
    assert [row.pipeline for row in ledger_table.recent(second.layout("orders"), 9)] == ["web"]


def test_batches_are_found_behind_commits_of_others(lake: Path) -> None:
    first, second = _spec(lake, "shop"), _spec(lake, "web")
    _drained(first.layout("orders"))
    for number in range(3):
        write_deltalake(
            first.layout("orders").tables.target.path, pa.table({"id": [number]}), mode="append"
        )
    assert _is_refused(second)
