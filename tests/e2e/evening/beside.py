"""The command line beside the DAG: runs, looks and compactions while the other one is at work."""

from __future__ import annotations

import os
import signal

from draindown.drill.process import end_group, gone
from tests.e2e.evening.scene import Scene, action
from tests.e2e.evening.shift import wait_for


@action("draindown run with a file waiting")
def _run(scene: Scene) -> None:
    scene.orders.bring()
    told = scene.type("run", scene.name)
    scene.holds("ledger", "one batch", len(scene.now().of_run(told["run_id"])), 1)


@action("draindown run with nothing waiting")
def _idle(scene: Scene) -> None:
    told = scene.type("run", scene.name)
    scene.holds("report", "only a plan", [one["step"] for one in told["reports"]], ["plan"])


@action("draindown run, compact and audit while the DAG drains", short=True)
def _beside_dag(scene: Scene) -> list[str]:
    with scene.held() as (run_id, _):
        before = len(scene.now().ledger)
        for verb in ("run", "compact"):
            told = scene.shift.draindown(verb, scene.name, "--json")
            scene.holds("exit", f"{verb} leaves at once", told.code, 75)
            error = (told.document or {}).get("reports", [{}])[-1].get("error") or {}
            scene.holds("report", f"{verb}: whom it met", error.get("code"), "lease-held")
            scene.holds("report", f"{verb}: the owner by name", run_id in str(error))
        scene.holds("exit", "audit leaves", scene.shift.draindown("audit", scene.name).code, 75)
        scene.holds("ledger", "nothing was done", len(scene.now().ledger), before)
        _at_work(scene, run_id)
    scene.ends(run_id)
    return [run_id]


def _at_work(scene: Scene, run_id: str) -> None:
    """While a drain is at work, everybody who is asked says so."""
    text = scene.report("--run", run_id)
    scene.holds("card", "at work", text.startswith("AT WORK") and "drain is at work since" in text)
    scene.holds("doctor", "at work", "drain-at-work" in scene.health()["symptoms"])
    plan = scene.shift.draindown("plan", scene.name, "--json").document or {}
    scene.holds("plan", "the holder", run_id in str(plan["flows"]["f"]["holder"]))
    scene.holds("page", "at work", "drain is at work" in scene.shift.page(scene.orders))


@action("trigger while draindown run is at work")
def _dag_beside(scene: Scene) -> list[str]:
    with scene.typed_and_held() as (command, _):
        run_id = scene.shift.press(scene.orders)
        scene.shift.until(
            lambda: scene.shift.task(run_id, "drain")[0] == "up_for_reschedule",
            "waiting for the lease",
        )
        scene.holds("log", "whom it met", "lease-held" in scene.shift.log(run_id, "drain"))
        scene.orders.release()
        told = scene.was_told(wait_for(command))
    scene.holds("ledger", "the command drained both", len(scene.now().of_run(told["run_id"])), 2)
    scene.ends(run_id)
    scene.holds("exit", "the wait cost no try", scene.shift.task(run_id, "drain")[1], 1)
    return [run_id]


@action("Ctrl-C of draindown run at work")
def _interrupted(scene: Scene) -> list[str]:
    with scene.typed_and_held(3) as (command, python):
        os.kill(python, signal.SIGINT)
        scene.orders.release()
        told = scene.was_told(wait_for(command))
    made = len(scene.now().of_run(told["run_id"]))
    scene.holds("ledger", "whole batches, not all", made in (1, 2))
    return [scene.green()]


@action("kill -9 of draindown run at work")
def _killed(scene: Scene) -> list[str]:
    with scene.typed_and_held() as (command, python):
        end_group(command)
        scene.holds("processes", "it is gone, JVM and all", gone(python))
        scene.holds("doctor", "the lease is free", scene.health()["looked"]["lease"], "free")
        text = scene.report()
        scene.holds(
            "card", "its driver died", text.startswith("DIED") and "its driver died" in text
        )
    return [scene.green()]


@action("audit at rest")
def _audit(scene: Scene) -> None:
    scene.holds("doctor", "audit is clean", (scene.does("audit", scene.name) or {}).get("clean"))
