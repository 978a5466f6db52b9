"""Input that is read again: replays by params and by command, backfills of dates with and without
runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.evening.scene import Scene, action
from tests.e2e.evening.shift import Refusal


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _range(scene: Scene, files: int = 2) -> dict[str, Any]:
    """Params of a replay of the files that are delivered and drained now."""
    since = _stamp()
    scene.orders.bring(files)
    scene.green()
    return {"mode": "replay", "from": since, "to": _stamp()}


def _replayed(scene: Scene, run_id: str, files: int) -> None:
    made = [row for row in scene.now().of_run(run_id) if row["kind"] == "replay"]
    scene.holds("ledger", "files read again", sum(row["inputs"] for row in made), files)
    scene.holds("ledger", "nothing changed", sum(row["applied"] for row in made), 0)


@action("replay a range by params, twice, and again")
def _by_params(scene: Scene) -> list[str]:
    asked = _range(scene)
    scene.orders.bring()  # waits, and stays waiting
    first = scene.green(**asked)
    _replayed(scene, first, 2)
    scene.holds("plan", "what waits is left alone", len(scene.now().waiting), 1)
    second = scene.green(**asked)
    _replayed(scene, second, 0)
    third = scene.green(**asked, again=True)
    _replayed(scene, third, 2)
    return [first, second, third, scene.green()]


@action("replay a range in which nothing came")
def _of_nothing(scene: Scene) -> list[str]:
    asked = {"mode": "replay", "from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}
    run_id = scene.green(**asked)
    _replayed(scene, run_id, 0)
    return [run_id]


@action("replay a range from the command line")
def _by_command(scene: Scene) -> None:
    asked = _range(scene)
    told = scene.type("replay", scene.name, "--from", asked["from"], "--to", asked["to"], "--yes")
    _replayed(scene, told["run_id"], 2)


@action("clear a replay that is at work")
def _cleared(scene: Scene) -> list[str]:
    asked = _range(scene, 3)
    with scene.held(0, **asked) as (run_id, _):
        scene.shift.clear(scene.orders, run_id, "drain")
    scene.ends(run_id)
    _replayed(scene, run_id, 3)
    return [run_id]


@action("a scheduled run, and backfills of its date", "dates")
def _dates(scene: Scene) -> list[str]:
    scene.orders.bring(2)
    date, run_id = _dated(scene)
    before, made = len(scene.now().ledger), scene.shift.started_runs(scene.orders, "backfill")
    _backfill(scene, date, "none")
    now = scene.shift.started_runs(scene.orders, "backfill")
    scene.holds("exit", "a backfill of a date that ran does nothing", now, made)
    scene.holds("ledger", "nor any batch", len(scene.now().ledger), before)
    _read_again(scene, run_id, lambda: _backfill(scene, date, "completed", again=True))
    return [run_id]


@action("a backfill of a date that ran, typed as a command of Airflow", "dates")
def _typed(scene: Scene) -> list[str]:
    date, run_id = _dated(scene)
    since, until = _around(date)
    words = [
        "--dag-id",
        scene.name,
        "--from-date",
        since,
        "--to-date",
        until,
        "--max-active-runs",
        "1",
    ]
    words += ["--reprocess-behavior", "completed", "--dag-run-conf", '{"again": true}']
    # while another backfill is active, or SQLite is busy, the command fails
    typed = lambda: scene.shift.airflow("backfill", "create", *words).code == 0  # noqa: E731
    _read_again(scene, run_id, lambda: scene.shift.until(typed, "the command to be obeyed"))
    return [run_id]


def _read_again(scene: Scene, run_id: str, create: Callable[[], None]) -> None:
    """Create a backfill of a date that ran: its files are read and change nothing, and each time
    leaves its reports.
    """
    before = _plans(scene, run_id)
    create()
    scene.shift.until(lambda: len(_plans(scene, run_id)) > len(before), "the run planned again")
    scene.ends(run_id)
    plans = _plans(scene, run_id)
    scene.holds("report", "the plans of each time", plans[:-1], before)
    again = [row for row in scene.now().of_run(run_id) if row["kind"] == "replay"]
    since = [row for row in again if row["started_at"].isoformat() > plans[-1]["started_at"]]
    scene.holds("ledger", "the date's files were read again", bool(since))
    scene.holds("ledger", "and changed nothing", sum(row["applied"] for row in again), 0)


def _plans(scene: Scene, run_id: str) -> list[dict[str, Any]]:
    said = scene.shift.draindown("report", scene.name, "--run", run_id, "--json")
    return [one for one in (said.document or {}).get("reports", []) if one["step"] == "plan"]


@action("a backfill of a date without a run", "dates")
def _date_without_run(scene: Scene) -> list[str]:
    date, _ = _dated(scene)
    _backfill(scene, earlier := date.replace(year=date.year - 3), "none")
    scene.shift.until(lambda: scene.run_of(earlier) is not None, "a run of the backfill")
    run_id = str(scene.run_of(earlier))
    scene.ends(run_id)
    scene.holds("ledger", "nothing was read", scene.now().of_run(run_id), [])
    return [run_id]


def _dated(scene: Scene) -> tuple[datetime, str]:
    """A date of the pipeline, after what it drained first, and the run of it, which is over."""
    if cron := scene.orders.document.get("schedule"):
        minute, hour, day, month = (int(number) for number in cron.split()[:4])
        date = datetime(datetime.now(UTC).year, month, day, hour, minute, tzinfo=UTC)
        due = lambda: scene.run_of(date)  # noqa: E731
    else:
        date, due = scene.schedule()
    scene.shift.until(lambda: due() is not None, f"a run of {date}")
    run_id = str(due())
    scene.ends(run_id)
    return date, run_id


def _around(date: datetime) -> tuple[str, str]:
    """From and to of a backfill of one date of a year: Airflow takes the beginning of its
    interval.
    """
    began = date.replace(year=date.year - 1)
    return (began - timedelta(minutes=1)).isoformat(), (began + timedelta(minutes=1)).isoformat()


def _backfill(scene: Scene, date: datetime, behaviour: str, **conf: Any) -> None:
    """Create a backfill of one date; while another one is active, or SQLite is busy, once more."""
    since, until = _around(date)
    content = {
        "dag_id": scene.name,
        "from_date": since,
        "to_date": until,
        "reprocess_behavior": behaviour,
        "max_active_runs": 1,
        "dag_run_conf": conf,
    }

    def taken() -> bool:
        try:
            scene.shift.call("POST", "/api/v2/backfills", content)
        except Refusal as refusal:
            assert refusal.status in (409, 500, 503), refusal
            time.sleep(1)
            return False
        return True

    scene.shift.until(taken, f"a backfill with {behaviour}")
