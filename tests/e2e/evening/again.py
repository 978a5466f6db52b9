"""Input that is read again: replays by params and by command, backfills of dates with and without runs."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.evening.scene import Scene, action
from tests.e2e.evening.shift import Refusal

_LEAD = 60  # seconds in which Airflow must have read a schedule before its date comes


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
    scene.holds("ledger", "files read again", sum(row["units"] for row in made), files)
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
    with scene.orders.brake(after=1):
        run_id = scene.shift.press(scene.orders, **asked)
        scene.orders.await_held()
        scene.shift.clear(scene.orders, run_id, "drain")
    scene.ends(run_id)
    _replayed(scene, run_id, 3)
    return [run_id]


@action("a scheduled run, and backfills of its date", "dates")
def _dates(scene: Scene) -> list[str]:
    scene.orders.bring(2)
    date = _scheduled(scene)
    run_id = _run_of(scene, date)
    scene.ends(run_id)
    before = len(scene.now().ledger)
    _backfill(scene, date, "none")
    scene.holds(
        "exit", "a backfill of a date that ran does nothing", scene.shift.started_runs(scene.orders, "backfill"), []
    )
    scene.holds("ledger", "nor any batch", len(scene.now().ledger), before)
    _backfill(scene, date, "completed")
    scene.shift.until(lambda: bool(scene.shift.started_runs(scene.orders, "backfill")), "the run is a backfill's")
    scene.ends(run_id)
    again = [row for row in scene.now().of_run(run_id) if row["kind"] == "replay"]
    scene.holds("ledger", "the date's files were read again", bool(again))
    scene.holds("ledger", "and changed nothing", sum(row["applied"] for row in again), 0)
    _starts_are_kept(scene, run_id)
    return [run_id]


def _starts_are_kept(scene: Scene, run_id: str) -> None:
    """A run that a backfill did again has the reports of both times."""
    said = scene.shift.draindown("report", scene.name, "--run", run_id, "--json")
    plans = [one for one in said.document or [] if one["step"] == "plan"]
    scene.holds("report", "the plan of each time", len(plans) >= 2)


@action("a backfill of a date without a run", "dates")
def _date_without_run(scene: Scene) -> list[str]:
    if not scene.orders.document.get("schedule"):
        _scheduled(scene)
    _until_taken(scene, {"from": "2023-01-01T00:00:00Z", "to": "2024-01-01T00:00:00Z", "behaviour": "none"})
    made = lambda: scene.shift.started_runs(scene.orders, "backfill")  # noqa: E731
    scene.shift.until(lambda: any("2023" in run_id for run_id in made()), "a run of the backfill")
    run_id = next(run_id for run_id in made() if "2023" in run_id)
    scene.ends(run_id)
    scene.holds("ledger", "nothing was read", scene.now().of_run(run_id), [])
    return [run_id]


def _scheduled(scene: Scene) -> datetime:
    """Give the pipeline a date a year, which comes in a minute; when that is."""
    date = (datetime.now(UTC) + timedelta(seconds=_LEAD + 59)).replace(second=0, microsecond=0)
    scene.orders.write_yaml(schedule=f"{date.minute} {date.hour} {date.day} {date.month} *")
    scene.shift.until(lambda: datetime.now(UTC) > date, "the date has come")
    return date


def _run_of(scene: Scene, date: datetime) -> str:
    """The id of the scheduled run of the year that ends at a date."""
    text = f"{date.replace(year=date.year - 1):%Y-%m-%dT%H:%M}"
    scene.shift.until(lambda: any(text in run for run in scene.shift.started_runs(scene.orders, "scheduled")), text)
    return next(run for run in scene.shift.started_runs(scene.orders, "scheduled") if text in run)


def _backfill(scene: Scene, date: datetime, behaviour: str) -> None:
    began = date.replace(year=date.year - 1)
    around = {"from": (began - timedelta(minutes=1)).isoformat(), "to": (began + timedelta(minutes=1)).isoformat()}
    _until_taken(scene, {**around, "behaviour": behaviour})


def _until_taken(scene: Scene, asked: dict[str, str]) -> None:
    """Create a backfill; while another one is active, or SQLite is busy, once more."""
    content = {
        "dag_id": scene.name,
        "from_date": asked["from"],
        "to_date": asked["to"],
        "reprocess_behavior": asked["behaviour"],
        "max_active_runs": 1,
    }

    def taken() -> bool:
        try:
            scene.shift.call("POST", "/api/v2/backfills", content)
        except Refusal as refusal:
            assert refusal.status in (409, 500, 503), refusal
            time.sleep(1)
            return False
        return True

    scene.shift.until(taken, f"a backfill with {asked['behaviour']}")
