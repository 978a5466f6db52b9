"""kill -9 in every gap of a batch: the next run is right, as if nothing had happened."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draindown.audit import audit
from tests.faults import lakes
from tests.landing import Landing

_GAPS = [
    ("intake", 1),
    ("read", 2),
    ("quarantined", 2),
    ("remembered", 2),
    ("merged", 2),
    ("recorded", 2),
    ("commit", 1),
    ("commit", 2),
]


def _crash(home: Path, place: tuple[str, int], batches: int) -> Path:
    lakes.lake(home, batches)
    driver = lakes.start(home, fault=place, act="kill")
    jvm = lakes.fired(home, driver)
    assert driver.wait(30) == -signal.SIGKILL
    assert lakes.gone(jvm)
    return home


def _crash_all_and_heal(where: Path, gaps: list[tuple[str, int]], batches: int = 2) -> None:
    control = where / "control"
    lakes.lake(control, batches)
    with ThreadPoolExecutor(2) as pool:
        homes = list(pool.map(lambda gap: _crash(where / f"{gap[0]}-{gap[1]}", gap, batches), gaps))
    lakes.heal([control, *homes], where)
    undisturbed = lakes.state(control)
    assert undisturbed["totals"]["quarantined"] and undisturbed["tombstones"] and undisturbed["rows"]
    for home in homes:
        assert lakes.state(home) == undisturbed, home.name
        landing = Landing(home, **lakes.FLOW)
        found = audit(landing.spec, "f", root=home)
        assert found.clean, f"{home.name}: {found}"


@pytest.mark.timeout(600)
def test_run_after_kill_is_right(tmp_path: Path) -> None:
    _crash_all_and_heal(tmp_path, [("merged", 1)], batches=1)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_run_after_kill_in_any_gap_is_right(tmp_path: Path) -> None:
    _crash_all_and_heal(tmp_path, _GAPS)
