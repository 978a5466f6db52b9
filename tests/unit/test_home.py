"""The home of a flow: which paths its tables and runs have, and what a view of it opens."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from draindown.base.clock import now
from draindown.lake.documents import Document
from draindown.lake.fenced import FencedDocument
from draindown.lake.home import FlowHome, Tables, safe_name
from draindown.runs import store
from draindown.runs.report import StepReport


def test_a_rebuild_has_its_own_tables_and_shares_what_is_read_and_decided() -> None:
    live = FlowHome("/lake", "p", "f", "t")
    staged = live.beside(7)
    apart = {name for name, path in _paths(staged).items() if path != _paths(live)[name]}
    assert apart == {
        "tables.target",
        "tables.tombstones",
        "tables.hidden",
        "tables.snapshots",
        "tables.quarantine",
        "tables.ledger",
        "replaying",
        "generation",
        "staging",
    }
    assert {Path(_paths(staged)[name]).parent for name in apart - {"staging"}} == {
        Path("/lake/_draindown/p/f/generations/0007/rebuilt")
    }
    assert (staged.live, staged.checkpoint(7)) == (live, live.checkpoint(7))


def _paths(home: FlowHome) -> dict[str, str]:
    own = {name: getattr(home, name) for name in _properties(FlowHome)}
    tables = {f"tables.{name}": getattr(home.tables, name).path for name in _properties(Tables)}
    return {
        name: str(path)
        for name, path in (own | tables).items()
        if isinstance(path, str | Document | FencedDocument)
    }


def _properties(kind: type) -> list[str]:
    return [name for name, member in vars(kind).items() if isinstance(member, property)]


def test_a_view_opens_a_table_once_and_a_home_anew_each_time() -> None:
    home = FlowHome("/lake", "p", "f", "t")
    view = home.view()
    assert view.tables.target is view.tables.target
    assert view.tables.target is view.tables.at("/lake/tables/t")
    assert view.beside(3).live.tables.target is view.tables.target, "a view of it is one too"
    assert view.beside(3).tables.target is not view.tables.target
    assert home.tables.target is not home.tables.target
    assert view.view() is view
    assert view == home


def test_a_view_does_not_keep_an_error() -> None:
    view, found = FlowHome("/lake", "p", "f", "t").view(), iter([OSError(), "content"])

    def read() -> str:
        result = next(found)
        if isinstance(result, OSError):
            raise result
        return str(result)

    with pytest.raises(OSError):
        view.once("key", read)
    assert view.once("key", read) == "content"
    assert view.once("key", read) == "content"


@pytest.mark.parametrize("run_id", ["manual__1", "20130101T000000-ab12", "a.b+c=d-e", "x" * 250])
def test_a_safe_id_is_its_own_name(run_id: str) -> None:
    assert safe_name(run_id) == run_id


@pytest.mark.parametrize(
    "run_id", ["a:b", "a/b", "../../x", "..", ".", "", "é" * 250, "a:" + "x" * 300, "\udcff"]
)
def test_any_other_id_becomes_a_name_that_stays(run_id: str) -> None:
    name = safe_name(run_id)
    assert name != run_id
    assert name.isascii()
    assert name.strip(".")
    assert len(name) <= 255
    assert "/" not in name
    assert safe_name(name) == name


def test_ids_that_differ_in_unsafe_characters_alone_get_two_names() -> None:
    ids = [
        "scheduled__2026-01-01T00:00:00+00:00",
        "scheduled__2026-01-01T00_00_00+00_00",
        "..",
        "_..",
    ]
    ids += ["é" * 250, "é" * 249 + "è"]
    assert len({safe_name(run_id) for run_id in ids}) == len(ids)


def test_a_report_is_found_by_its_id_and_by_its_listed_name(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "t")
    at = now()
    ids = ["scheduled__2026-01-01T00:00:00+00:00", "scheduled__2026-01-01T00_00_00+00_00"]
    for run_id in ids:
        facts = {
            "pipeline": "p",
            "flow": "f",
            "step": "drain",
            "outcome": "done",
            "started_at": at,
            "finished_at": at,
        }
        store.write(layout, StepReport.model_validate({**facts, "run_id": run_id}))
    listed = [store.read(layout, name, "drain") for name in store.runs(layout)]
    assert {found.run_id for found in listed if found} == set(ids)
    assert [found.run_id for run_id in ids if (found := store.read(layout, run_id, "drain"))] == ids


def test_old_runs_are_forgotten_beyond_the_newest(tmp_path: Path) -> None:
    layout = FlowHome(str(tmp_path), "p", "f", "t")
    for day in range(6):
        for file in (
            Path(layout.start(f"r{day}", "plan").report.path),
            Path(layout.all_validations, f"r{day}", "index.html"),
        ):
            file.parent.mkdir(parents=True)
            file.touch()
            os.utime(file, (day * 86400, day * 86400))
    young = time.time() - 2.5 * 86400
    assert store.forget_old(layout, keep=2, age=timedelta(seconds=young)) == 2 * 3
    assert store.runs(layout) == ["r5", "r4", "r3"]
    assert sorted(path.name for path in Path(layout.reports).iterdir()) == ["r3", "r4", "r5"]
    assert store.forget_old(layout, keep=2, age=timedelta(seconds=young)) == 0
