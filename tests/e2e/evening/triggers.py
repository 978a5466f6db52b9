"""Runs that people start, with params that are right and wrong, once and twice; and tasks that they
clear and mark.
"""

from __future__ import annotations

from draindown.drill.process import gone
from tests.e2e.evening.scene import Scene, action
from tests.e2e.evening.shift import Refusal

_RUNNING = "running"


@action("trigger with one file waiting")
def _one_file(scene: Scene) -> list[str]:
    scene.orders.bring()
    return [scene.green()]


@action("trigger with nothing waiting")
def _nothing(scene: Scene) -> list[str]:
    run_id = scene.green()
    scene.holds("xcom", "the drain is skipped", scene.shift.task(run_id, "drain")[0], "skipped")
    scene.holds("ledger", "no batch", scene.now().of_run(run_id), [])
    return [run_id]


@action("trigger from the command line")
def _typed(scene: Scene) -> list[str]:
    scene.orders.bring()
    said = scene.shift.airflow("dags", "trigger", scene.name, "--run-id", "typed_by_hand")
    scene.holds("exit", "airflow dags trigger", said.code, 0)
    scene.ends("typed_by_hand")
    return ["typed_by_hand"]


@action("trigger twice at once")
def _twice(scene: Scene) -> list[str]:
    scene.orders.bring(2)
    runs = [scene.shift.press(scene.orders), scene.shift.press(scene.orders)]
    scene.ends(*runs)
    return runs


@action("trigger again while a drain is at work")
def _again(scene: Scene) -> list[str]:
    with scene.held() as (first, _):
        second = scene.shift.press(scene.orders)
        scene.orders.bring()  # the first took in its input before
        said = scene.shift.draindown("report", scene.name, "--run", second)
        told = (said.code, "no-report" in said.err)
        scene.holds(
            "exit", "report knows nothing of a run that waits for its turn", told, (78, True)
        )
        scene.holds(
            "card", "the first is at work", "drain is at work since" in scene.report("--run", first)
        )
        plan = scene.shift.draindown("plan", scene.name, "--json").document or {}
        scene.holds("plan", "the holder", first in str(plan["flows"]["f"]["holder"]))
        scene.holds(
            "exit", "the second waits for the first", scene.shift.run_state(second), "queued"
        )
        scene.holds("ledger", "the second did nothing", scene.now().of_run(second), [])
    scene.ends(first, second)
    made = [sum(row["inputs"] for row in scene.now().of_run(run)) for run in (first, second)]
    scene.holds("ledger", "each drained what was there when it began", made, [2, 1])
    scene.holds(
        "exit",
        "nobody met the lease",
        [scene.shift.task(run, "drain")[1] for run in (first, second)],
        [1, 1],
    )
    return [first, second]


@action("trigger with max_batches 1 where three wait")
def _bounded(scene: Scene) -> list[str]:
    scene.orders.bring(3)
    first = scene.green(max_batches=1)
    so = scene.now()
    scene.holds("ledger", "one batch", len(so.of_run(first)), 1)
    scene.holds(
        "xcom",
        "the bound",
        "max_batches" in str((scene.shift.xcom(scene.orders, first, "drain") or {})["bound"]),
    )
    card = scene.report("--run", first)
    scene.holds("card", "stopped early", card.startswith("STOPPED EARLY"))
    scene.holds("card", "what is left", "-> 2 files" in card)
    return [first, scene.green()]


@action("trigger with no time at all")
def _no_time(scene: Scene) -> list[str]:
    scene.orders.bring(2)
    first = scene.green(max_minutes=0.0001)
    scene.holds("plan", "something is left", bool(scene.now().waiting))
    return [first, scene.green()]


@action("trigger for one flow, compacting")
def _compacting(scene: Scene) -> list[str]:
    scene.orders.bring()
    run_id = scene.green(flow="f", force_compact=True)
    told = scene.shift.xcom(scene.orders, run_id, "compact") or {}
    scene.holds(
        "xcom", "fewer files or as many", told.get("files_after", 1) <= told.get("files_before", 0)
    )
    return [run_id]


def _refused(scene: Scene, says: str, **conf: object) -> list[str]:
    """A run whose params can't be meant: red, nothing done, and the log says why."""
    scene.orders.bring()
    run_id = scene.shift.press(scene.orders, **conf)
    scene.ends(run_id, state="failed")
    text = scene.shift.log(run_id, "plan-all")
    scene.holds("log", "the code", "bad-params" in text)
    scene.holds("log", says, says in text)
    scene.holds("log", "the command that helps", f"airflow dags trigger {scene.name}" in text)
    scene.holds("ledger", "no batch", scene.now().of_run(run_id), [])
    return [run_id, scene.green()]


@action("trigger with a misspelt param", short=True)
def _misspelt(scene: Scene) -> list[str]:
    return _refused(scene, "max_batches", max_batchs=3)


@action("trigger a replay without a range")
def _no_range(scene: Scene) -> list[str]:
    return _refused(scene, "mode replay needs a time in from and a later one in to", mode="replay")


@action("trigger a drain with a range")
def _range_of_drain(scene: Scene) -> list[str]:
    moment = {"from": "2026-01-01T00:00:00Z"}
    return _refused(scene, "from, to and again are for mode replay; the mode is drain", **moment)


@action("trigger with values of the wrong kind")
def _wrong_kind(scene: Scene) -> list[str]:
    for conf in (
        {"max_batches": "three"},
        {"flow": "nosuch"},
        {"mode": "replay", "from": "yesterday", "to": "now"},
    ):
        try:
            scene.shift.press(scene.orders, **conf)
            status = 200
        except Refusal as refusal:
            status = refusal.status
        scene.holds("exit", f"Airflow refuses {conf}", status, 400)
    return []


@action("clear the drain of a run that is over")
def _clear_done(scene: Scene) -> list[str]:
    scene.orders.bring()
    run_id = scene.green()
    scene.shift.clear(scene.orders, run_id, "drain")
    scene.ends(run_id)
    scene.holds("ledger", "still one batch", len(scene.now().of_run(run_id)), 1)
    return [run_id]


@action("clear all of a run that is over, with new input")
def _clear_all(scene: Scene) -> list[str]:
    scene.orders.bring()
    run_id = scene.green()
    scene.orders.bring()
    scene.shift.clear(scene.orders, run_id)
    scene.ends(run_id)
    scene.holds("ledger", "a batch of each time", len(scene.now().of_run(run_id)), 2)
    return [run_id]


@action("clear the check of a run that is over")
def _clear_check(scene: Scene) -> list[str]:
    scene.orders.bring()
    run_id = scene.green()
    scene.shift.clear(scene.orders, run_id, "check")
    scene.ends(run_id)
    return [run_id]


@action("clear a drain that is at work")
def _clear_running(scene: Scene) -> list[str]:
    with scene.held() as (run_id, driver):
        scene.shift.clear(scene.orders, run_id, "drain")
        scene.holds("processes", "its driver ends", gone(driver, 120))
    scene.ends(run_id)
    return [run_id]


@action("mark a drain at work as failed")
def _mark_failed(scene: Scene) -> list[str]:
    with scene.held() as (run_id, driver):
        scene.shift.mark(scene.orders, run_id, "drain", "failed")
        scene.holds("processes", "its driver ends", gone(driver, 120))
    scene.ends(run_id, state="failed")
    scene.holds("ledger", "the first batch stands", len(scene.now().of_run(run_id)), 1)
    return [run_id, scene.green()]


@action("mark a drain at work as success")
def _mark_success(scene: Scene) -> list[str]:
    with scene.held() as (run_id, driver):
        scene.shift.mark(scene.orders, run_id, "drain", "success")
        scene.holds("processes", "its driver ends", gone(driver, 120))
    scene.shift.over(run_id)
    return [scene.green()]
