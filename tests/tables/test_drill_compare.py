"""What a drill finds: every way in which a copy can differ from the control, and every change
beside its copies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from draindown.audit.model import Audit, Residue
from draindown.base import clock
from draindown.config.lease import LeaseSpec
from draindown.drill import campaign, injections, isolation
from draindown.drill.baseline import Baseline
from draindown.drill.compare import Control
from draindown.drill.faults import named
from draindown.drill.injections import Injection
from draindown.drill.sandbox import Project, Scratch
from draindown.lake.home import FlowHome
from draindown.recovery.opening import lease_of
from draindown.runs import report, store
from draindown.runs.request import Request
from tests import flowfiles


@pytest.fixture
def control(tmp_path: Path) -> Request:
    (tmp_path / "control").mkdir()
    return flowfiles.drained(tmp_path / "control")


@pytest.fixture
def other(control: Request, tmp_path: Path) -> Request:
    """The same lake once more, over the same files."""
    shutil.copytree(control.spec.lake, tmp_path / "other" / "lake")
    spec = control.spec.model_copy(update={"lake": str(tmp_path / "other" / "lake")})
    return control.model_copy(update={"spec": spec})


def _differences(control: Request, other: Request, *, reset: bool = False) -> list[str]:
    return Control(control.layout, control.flow_spec).differences(other.layout, reset=reset)


def test_a_lake_that_took_other_ways_to_the_same_is_no_different(
    control: Request, tmp_path: Path
) -> None:
    (tmp_path / "again").mkdir()
    again = flowfiles.drained(tmp_path / "again")
    DeltaTable(again.layout.tables.target.path).optimize.compact()
    assert _differences(control, again) == []
    assert _differences(control, again, reset=True) == []


def _append(path: Callable[[FlowHome], str], **row: Any) -> Callable[[Request], None]:
    return lambda asked: write_deltalake(
        path(asked.layout), pa.table({k: [v] for k, v in row.items()}), mode="append"
    )


_REFUSED = ("reason", "field", "detail", "raw", "raw_bytes", "raw_length", "origin")


def _change(asked: Request) -> None:
    DeltaTable(asked.layout.tables.target.path).update({"n": "7"}, predicate="id = '0'")


def _remove(path: Callable[[FlowHome], str], where: str) -> Callable[[Request], None]:
    return lambda asked: DeltaTable(path(asked.layout)).delete(where) and None


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (flowfiles.foreign, "table: 0 rows of the control missing, 1 there"),
        (_change, "table: 1 row of the control missing, 1 there"),
        (
            _remove(lambda at: at.tables.target.path, "id = '1'"),
            "table: 1 row of the control missing, 0 there",
        ),
        (
            lambda asked: shutil.rmtree(asked.layout.tables.target.path),
            "table: 2 rows of the control missing",
        ),
        (
            _append(
                lambda at: at.tables.tombstones.path,
                id="0",
                n=1,
                _generation=1,
                _batch=0,
                _kind="drain",
            ),
            "tombstones: 0 rows",
        ),
        (
            _append(
                lambda at: at.tables.quarantine.path,
                quarantine_id="x",
                **dict.fromkeys(_REFUSED, "x"),
            ),
            "quarantine: 0 rows",
        ),
        (
            _remove(lambda at: at.tables.ledger.path, "batch = 1"),
            "ledger: 1 row of the control missing",
        ),
        (lambda asked: flowfiles.commit(asked, 1, recorded=False), "is committed 2 times"),
        (
            lambda asked: flowfiles.commit(asked, 2, recorded=False),
            "log: 3 committed batches, 2 in the control",
        ),
    ],
    ids=["more", "other", "fewer", "no-table", "tombstone", "refused", "ledger", "twice", "batch"],
)
def test_every_difference_is_found_and_named(
    control: Request, other: Request, harm: Callable[[Request], None], found: str
) -> None:
    harm(other)
    assert any(found in text for text in _differences(control, other)), _differences(control, other)


def test_a_state_between_two_batches_is_found_although_it_was_put_right(
    control: Request, other: Request
) -> None:
    flowfiles.foreign(other)
    DeltaTable(other.layout.tables.target.path).delete("id = '9'")
    assert _differences(control, other) == [
        "table: 1 of its versions are no state after a whole batch"
    ]


def test_after_a_reset_only_the_newest_generation_must_have_read_the_same(
    control: Request, other: Request
) -> None:
    for batch in (0, 1):  # as a new generation commits what the table has already
        flowfiles.commit(other, batch, generation=2)
    DeltaTable(other.layout.tables.target.path).restore(2)
    found = _differences(control, other, reset=True)
    assert found == [
        "table: 2 of its versions are no state after a whole batch"
    ]  # those doubled rows, here
    flowfiles.commit(other, 2, generation=2)
    DeltaTable(other.layout.tables.target.path).restore(2)
    assert "ledger: 0 rows of the control missing, 1 there that it doesn't have" in _differences(
        control, other, reset=True
    )


def test_what_a_drill_leaves_alone_is_told_from_what_it_does_not(
    control: Request, tmp_path: Path
) -> None:
    source = sorted(map(str, (tmp_path / "control" / "in").iterdir()))
    before = isolation.look(control.layout, source)
    assert before.changes() == ([], [])
    os.utime(source[0], (1, 1))
    Path(control.layout.tables.target.path, "new").touch()
    changed, unsure = before.changes()
    assert [text.partition(":")[0] for text in changed] == ["source", "lake"] and not unsure
    Path(source[1]).unlink()
    assert [text.partition(":")[0] for text in before.changes()[0]] == ["source", "source", "lake"]


def test_a_lake_whose_own_pipeline_ran_meanwhile_can_not_be_judged(control: Request) -> None:
    before = isolation.look(control.layout, ())
    with lease_of(control.layout, LeaseSpec(), owner="someone", run_id="r2"):
        changed, unsure = before.changes()
        assert not changed and "ran meanwhile" in unsure[0]
    done = report.of(control.model_copy(update={"run_id": "r3"}), clock.now(), "idle")
    store.write(control.layout, done)
    Path(control.layout.tables.target.path, "new").touch()
    changed, unsure = before.changes()
    assert not changed and "ran meanwhile" in unsure[0]


def _baseline(control: Request, tmp_path: Path) -> Baseline:
    ledger = [{"table_version": n + 1, "inserted": 1, "updated": 0, "deleted": 0} for n in (0, 1)]
    held = Control(control.layout, control.flow_spec)
    project = Project(tmp_path / "control", control.spec, "f")
    scratch = Scratch(tmp_path, tmp_path, control.spec, "f", ())
    return Baseline(scratch, held, project, tuple(ledger), 1, 1.0, 3, 1, lambda _: None)


@pytest.mark.parametrize(
    ("fired", "harm", "residues", "held"),
    [
        ("seen", lambda asked: None, 0, True),
        ("", lambda asked: None, 0, False),
        ("seen", flowfiles.foreign, 0, False),
        ("seen", _remove(lambda at: at.tables.ledger.path, "batch = 1"), 0, False),
        ("seen", lambda asked: None, 1, False),
        (
            "seen",
            lambda asked: Path(
                asked.layout.tables.target.path, "_delta_log", f"{1:020}.json"
            ).write_text("{"),
            0,
            False,
        ),
    ],
    ids=["nothing", "not fired", "row", "ledger", "audit", "torn"],
)
def test_a_fault_held_only_if_it_fired_and_nothing_differs(
    control: Request,
    other: Request,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fired: str,
    harm: Callable[[Request], None],
    residues: int,
    held: bool,
) -> None:
    injection = Injection(
        Project(Path(control.root), other.spec, "f"),
        "batch 1 of 2",
        fired,
        last=lambda: harm(other),
    )
    monkeypatch.setattr(injections, "inject", lambda baseline, fault: injection)
    found = Audit("p", "f", [Residue("lost-key", "a", "1", "0")] * residues)
    monkeypatch.setattr(campaign, "audit", lambda spec, flow, root: found)
    result = campaign._inject(_baseline(control, tmp_path), named("kill-after-merge"))
    assert result.held == held, result
    assert held or not fired or result.wrong
    assert json.loads(json.dumps(result.as_dict()))["held"] == held


def test_a_way_back_that_fails_did_not_hold(
    control: Request, other: Request, tmp_path: Path
) -> None:
    project = Project(Path(control.root), other.spec, "f")
    injection = Injection(
        project, "batch 1 of 2", "seen", recovery=(("plan", "nothing"), ("plan", "never-typed"))
    )
    seconds = list(campaign._recover(_baseline(control, tmp_path), injection))
    assert len(seconds) == 1 and seconds[0] > 0
    assert "ended with 78: pipeline-not-found" in injection.wrong[0]
