"""Paths of runs: every run has its own, whatever its id."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from draindown.base.clock import now
from draindown.lake.layout import FlowLayout, safe_name
from draindown.runs import store
from draindown.runs.report import StepReport


def test_a_generation_that_is_rebuilt_shares_what_is_read_and_decided_and_nothing_that_is_written() -> (
    None
):
    live = FlowLayout("/lake", "p", "f", "t")
    staged = live.beside(7)
    names = [name for name, kind in vars(FlowLayout).items() if isinstance(kind, property)]
    paths = {name: getattr(staged, name) for name in names if isinstance(getattr(live, name), str)}
    apart = {name for name, path in paths.items() if path != getattr(live, name)}
    assert apart == {
        "table",
        "tombstones",
        "hidden",
        "snapshots",
        "quarantine",
        "ledger",
        "replaying",
        "generation",
        "staging",
    }
    assert {Path(paths[name]).parent for name in apart - {"staging"}} == {
        Path("/lake/_draindown/p/f/generations/0007/rebuilt")
    }
    assert (staged.live, staged.checkpoint(7)) == (live, live.checkpoint(7))


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
    layout = FlowLayout(str(tmp_path), "p", "f", "t")
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
    layout = FlowLayout(str(tmp_path), "p", "f", "t")
    for day in range(6):
        for file in (
            Path(layout.report(f"r{day}", "plan")),
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
