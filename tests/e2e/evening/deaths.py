"""Processes that die or are told to end while a drain is at work: its own, those of its task, and
Airflow's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from draindown.drill.process import gone
from tests.e2e.evening.scene import Scene, action


def _driver(python: int) -> tuple[int, int, int, int]:
    """Process ids of a driver's Python and JVM, and of the runner and the supervisor of its
    task.
    """
    above = [process.pid for process in psutil.Process(python).parents()]
    jvm = next(pid for pid in above if _program(pid).endswith("java"))
    runner, supervisor = above[above.index(jvm) + 1 :][:2]
    return python, jvm, runner, supervisor


def _program(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def _struck(scene: Scene, number: signal.Signals, whom: Callable[[int], int]) -> str:
    """Strike a process of a drain that has one batch behind it and is inside the next; the run,
    which must end well.
    """
    with scene.held() as (run_id, python):
        jvm = _driver(python)[1]
        scene.shift.signal([whom(python)], number)
        scene.holds(
            "processes",
            "the driver ends, JVM and Python",
            (gone(python, 120), gone(jvm, 120)),
            (True, True),
        )
        scene.holds("ledger", "the first batch stands", len(scene.now().of_run(run_id)), 1)
    scene.ends(run_id)
    scene.holds(
        "ledger",
        "two batches by two starts",
        len({row["attempt"] for row in scene.now().of_run(run_id)}),
        2,
    )
    return run_id


def _tells_of_the_dead(scene: Scene, run_id: str) -> list[str]:
    """The first try's log says what the ledger has of it, or the next try's that it left no
    report.
    """
    first = next(row["attempt"] for row in scene.now().of_run(run_id))
    records = sum(row["records"] for row in scene.now().of_start(first))
    text = scene.shift.log(run_id, "drain", 1) + scene.shift.log(run_id, "drain", 2)
    told = (
        f"1 batch: {records} records" in text
        or "1 batch of it committed" in text
        or f"{records} records ->" in text
    )
    scene.holds("log", "what the try that died had committed", told)
    return [run_id]


@action("kill -9 the JVM of a drain")
def _jvm(scene: Scene) -> list[str]:
    return _tells_of_the_dead(
        scene, _struck(scene, signal.SIGKILL, lambda python: _driver(python)[1])
    )


@action("kill -9 the Python of a drain")
def _python(scene: Scene) -> list[str]:
    return _tells_of_the_dead(scene, _struck(scene, signal.SIGKILL, lambda python: python))


@action("kill the driver of a drain")
def _told(scene: Scene) -> list[str]:
    return [_struck(scene, signal.SIGTERM, lambda python: _driver(python)[1])]


@action("kill -9 the task runner of a drain")
def _runner(scene: Scene) -> list[str]:
    return _tells_of_the_dead(
        scene, _struck(scene, signal.SIGKILL, lambda python: _driver(python)[2])
    )


@action("kill -9 the supervisor of a drain's task")
def _supervisor(scene: Scene) -> list[str]:
    run_id = _struck(scene, signal.SIGKILL, lambda python: _driver(python)[3])
    _next_try_tells(scene, run_id)
    return [run_id]


@action("kill -9 the driver of a drain in the check that follows it")
def _check(scene: Scene) -> list[str]:
    version, left = scene.now().published["version"], scene.orders.notes("check")
    scene.orders.bring()
    run_id = scene.shift.press(scene.orders)
    scene.shift.until(
        lambda: bool(scene.orders.notes("check") - left), "a check at work", patience=900
    )
    scene.shift.signal(scene.shift.drivers(), signal.SIGKILL)
    scene.shift.until(lambda: not scene.shift.drivers(), "its driver gone")
    scene.holds("page", "nothing was published", scene.now().published["version"], version)
    text = scene.report("--run", run_id)
    scene.holds("card", "unfinished", text.startswith("DIED") and "check was at work since" in text)
    scene.holds("doctor", "not published", "unpublished" in scene.health()["symptoms"])
    scene.ends(run_id)
    scene.holds(
        "exit", "the drain is done all the same", scene.shift.task(run_id, "drain"), ("success", 1)
    )
    scene.holds("exit", "the check's own driver", scene.shift.task(run_id, "check"), ("success", 1))
    _next_try_tells(scene, run_id, "check")
    return [run_id]


@action("kill -9 all of Airflow while a drain is at work")
def _everything(scene: Scene) -> list[str]:
    with scene.held() as (run_id, python):
        scene.shift.signal(scene.shift.processes(), signal.SIGKILL)
        scene.holds("processes", "the driver ends", gone(python, 120))
        _dead_is_told(scene, run_id)
    scene.shift.start()
    scene.ends(run_id)
    _next_try_tells(scene, run_id)
    return [run_id]


def _next_try_tells(scene: Scene, run_id: str, step: str = "drain") -> None:
    """The log of the try that was struck may end anywhere: the next one tells how its driver
    ended.
    """
    text = scene.shift.log(run_id, step)
    told = (
        f"an earlier try left no report: {step} was at work" in text
        or "an earlier try failed at" in text
    )
    scene.holds("log", "the next try tells of the one before", told)


def _dead_is_told(scene: Scene, run_id: str) -> None:
    """With Airflow gone, the command line says of the run how its driver ended, what it committed
    and what to type.
    """
    scene.shift.until(lambda: not scene.shift.drivers(), "its driver gone")
    text = scene.report("--run", run_id)
    records = sum(row["records"] for row in scene.now().of_run(run_id))
    scene.holds("card", "red or unfinished", text.startswith(("DIED", "UNFINISHED", "FAILED")))
    # the JVM goes first: Python cannot tell who killed it
    how = ("its driver died", "drain: stopped", "drain: jvm-gone")
    scene.holds("card", "how its driver ended", any(words in text for words in how))
    told = "1 batch of it committed" in text or f"1 file, {records} records" in text
    scene.holds("card", "one batch is committed", told)
    scene.holds("card", "what to type", f"draindown run {scene.name}/f" in text)


@action("kill -9 the scheduler while a drain is at work")
def _scheduler(scene: Scene) -> list[str]:
    with scene.held() as (run_id, _):
        scene.shift.signal(scene.shift.leaders("scheduler"), signal.SIGKILL)
        scene.shift.start("scheduler")
    scene.ends(run_id)
    return [run_id]


@action("kill -9 the API server while a drain is at work")
def _server(scene: Scene) -> list[str]:
    with scene.held() as (run_id, _):
        scene.shift.signal(scene.shift.leaders("api-server"), signal.SIGKILL)
        scene.shift.start("api-server")
    scene.ends(run_id)
    return [run_id]


@action("stop Airflow while a drain is at work, and start it")
def _stop_and_start(scene: Scene) -> list[str]:
    with scene.held() as (run_id, _):
        scene.shift.stop(meanwhile=scene.orders.release)
    scene.holds("processes", "no driver is left", scene.shift.drivers(), set())
    scene.shift.start()
    scene.ends(run_id)
    return [run_id]
