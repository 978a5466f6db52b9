"""The newest run is the one whose step began last, whatever the clocks and the names of runs
say.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from draindown.base.clock import now
from draindown.lake.home import FlowHome
from draindown.lake.local_store import LocalStore
from draindown.lake.store import Entry
from draindown.runs import report, request, starts, store
from draindown.runs.report import StepReport
from draindown.runs.request import Step, begun_at, new_start

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def layout(tmp_path: Path) -> FlowHome:
    return FlowHome(str(tmp_path), "p", "f", "t")


class Clock:
    """The clock of the host on which the next step begins."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at = NOON
        patch.setattr(request, "datetime", self)

    def now(self, zone: object) -> datetime:
        del zone
        return self.at

    strptime = staticmethod(datetime.strptime)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def began(layout: FlowHome, run_id: str, clock: Clock, step: Step = "drain") -> str:
    """Leave the report of a step that begins now by the host's clock."""
    start = store.next_start(layout)
    told = report.unreached(layout, run_id, step, clock.at, {"code": run_id})
    store.write(layout, told.model_copy(update={"start": start}))
    return start


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([0, -86_400], id="set back a day"),
        pytest.param([0, 3_600, 5, 3_610, 10], id="two hosts an hour apart"),
        pytest.param([0, 0, 0], id="a clock that stands"),
        pytest.param([0, 86_400 * 365 * 50, 60], id="once far ahead"),
    ],
)
def test_the_newest_run_is_that_which_began_last(
    layout: FlowHome, clock: Clock, offsets: list[int]
) -> None:
    runs = [
        f"{'zyxwv'[at]}-run" for at in range(len(offsets))
    ]  # names that sort the other way round
    for run, offset in zip(runs, offsets, strict=True):
        clock.at = NOON + timedelta(seconds=offset)
        began(layout, run, clock)
    assert store.runs(layout) == runs[::-1]


@pytest.mark.parametrize("offset", [-86_400, 0, 1])
def test_the_newest_start_of_a_step_and_the_order_of_starts_are_those_of_their_beginnings(
    layout: FlowHome, clock: Clock, offset: int
) -> None:
    first = began(layout, "r", clock)
    clock.at = NOON + timedelta(seconds=offset)
    second = began(layout, "r", clock)
    newest = store.read(layout, "r", "drain")
    assert newest is not None and newest.start == second
    assert [told.start for told in store.starts(layout, "r")] == [first, second]
    assert [one.start for one in starts.listed(layout, "r")] == [first, second]


def test_a_start_does_not_look_through_the_reports_of_all_runs(
    layout: FlowHome, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = began(layout, "a", clock)  # no directory yet, so it lists none
    second = began(layout, "b", clock)  # lists the reports once

    right = LocalStore.list

    def listed(store: LocalStore, prefix: str, after: str | None = None) -> Iterator[Entry]:
        assert not prefix.startswith(layout.reports), "the reports were listed"
        return right(store, prefix, after)

    clock.at = NOON - timedelta(days=1)
    monkeypatch.setattr(LocalStore, "list", listed)
    assert first < second < store.next_start(layout) < store.next_start(layout)


def test_a_torn_note_of_the_newest_start_is_made_again_from_the_reports(
    layout: FlowHome, clock: Clock
) -> None:
    newest = [began(layout, run, clock) for run in "abc"][-1]
    Path(layout.newest_start.path).write_text("{")
    clock.at = NOON - timedelta(days=1)
    assert newest < store.next_start(layout) < store.next_start(layout)


def test_a_start_begins_no_lake(layout: FlowHome) -> None:
    assert store.next_start(layout)
    assert not Path(layout.home).exists()


def test_a_start_in_the_same_driver_sorts_after_the_one_before(clock: Clock) -> None:
    before = new_start()
    clock.at = NOON - timedelta(days=1)
    after = new_start(before)
    assert after > before and (begun_at(after) or NOON) > NOON


def test_a_note_or_a_log_of_a_start_counts_as_its_report_does(
    layout: FlowHome, clock: Clock
) -> None:
    for ending in (".at-work", ".log"):
        path = Path(layout.run_reports("other"), f"drain@{store.next_start(layout)}{ending}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        clock.at -= timedelta(hours=1)
    began(layout, "r", clock)
    assert store.runs_and_silent(layout) == [("r", False), ("other", True)]


def test_reports_of_before_starts_had_ids_come_by_their_time(
    layout: FlowHome, clock: Clock
) -> None:
    for run, at in (("b", NOON - timedelta(days=2)), ("a", NOON - timedelta(days=1))):
        path = Path(store.write(layout, StepReport.model_validate({**_facts(run), "start": ""})))
        os.utime(path, (at.timestamp(), at.timestamp()))
    began(layout, "0", clock)
    assert store.runs(layout) == ["0", "a", "b"]


def _facts(run: str) -> dict[str, object]:
    who = {"pipeline": "p", "flow": "f", "run_id": run, "step": "drain", "outcome": "done"}
    return who | {"started_at": NOON, "finished_at": NOON}


def test_a_start_that_is_ahead_of_the_clock_is_forgotten_by_when_it_was_written(
    layout: FlowHome, clock: Clock
) -> None:
    clock.at = now() + timedelta(days=365)
    for run in ("a", "b"):
        path = Path(layout.start(run, "drain", began(layout, run, clock)).report.path)
        os.utime(path, (0, 0))
    assert store.forget_old(layout, keep=1) == 1
    assert store.runs(layout) == ["b"]
