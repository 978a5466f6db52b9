"""kill -9 in every gap of a rebuild: until the swap the old table stands whole, and the same
command ends it right.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.doctor.examination import examine
from draindown.drill.process import gone
from tests.faults import lakes
from tests.landing import KEYED, Landing

NEW: dict[str, Any] = lakes.FLOW | {
    "rules": {"sane": "a is null or a < 12"},
    "target": KEYED | {"partition_by": ["part"]},
}
_SWAP = 2  # the table was made in version 0, and one batch came
_BEFORE = [("read", 1), ("quarantined", 2), ("merged", 1), ("recorded", 2), ("staged", 1)]
_AT = [("commit", _SWAP)]
_AFTER = [(step, 1) for step in ("swapped", "tombstones", "moved", "decided", "ledger", "named")]


def _entry(home: Path, flow: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"home": str(home), "flow": flow, "rebuild": flow is NEW, **more}


def _do(where: Path, homes: Iterable[Path], flow: dict[str, Any]) -> None:
    """Drain the lakes, or rebuild them under the new contract, in one process that nothing happens
    to.
    """
    assert lakes.Driver(where / "driver", *[_entry(home, flow) for home in homes]).wait() == 0


def _state(home: Path) -> dict[str, Any]:
    return lakes.state(Landing(home, **lakes.FLOW))


def _kill(home: Path, place: tuple[str, int]) -> None:
    driver = lakes.Driver(home, _entry(home, NEW, fault=place))
    jvm = driver.fired()
    assert driver.wait(60) == -signal.SIGKILL
    assert gone(jvm)


def _kill_all_and_go_on(where: Path, gaps: list[tuple[str, int]], batches: int) -> None:
    homes = {gap: where / f"{gap[0]}-{gap[1]}" for gap in gaps}
    control = where / "control"
    for home in (control, *homes.values()):
        lakes.lake(home, batches)
    _do(where, [control, *homes.values()], lakes.FLOW)
    old = _state(control)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_kill, homes.values(), gaps))
    for gap in set(gaps) & set(_BEFORE):
        assert _state(homes[gap]) == old, gap
    _do(where, [control, *homes.values()], NEW)
    new = _state(control)
    assert new["rows"] != old["rows"] and new["tombstones"] and new["rows"]
    for home in homes.values():
        assert _state(home) == new, home.name
        landing = Landing(home, **NEW)
        found = audit(landing.spec, "f", root=home)
        assert found.clean, f"{home.name}: {found}"
        assert examine(landing.request()).exit == 0, home.name
        assert {row["_generation"] for row in landing.tombstones()} == {2}


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_rebuild_killed_before_its_swap_is_ended_by_the_same_command(tmp_path: Path) -> None:
    _kill_all_and_go_on(tmp_path, _BEFORE, batches=2)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "gaps", [[*_AT, *_AFTER[:2]], _AFTER[2:4], _AFTER[4:]], ids=["swap", "decisions", "names"]
)
def test_a_rebuild_killed_after_its_swap_is_ended_by_the_same_command(
    tmp_path: Path, gaps: list[tuple[str, int]]
) -> None:
    _kill_all_and_go_on(tmp_path, gaps, batches=1)
