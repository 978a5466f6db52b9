"""Steps that the driver of a drain does after it: taken over once, whatever is cleared, retried or
killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.observability import stats

from draindown.airflow import fused
from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.flow import quarantine
from draindown.gate.published import Published, publish
from draindown.gate.waivers import waive
from draindown.lake import delta
from draindown.planning import plan
from draindown.runs import report as reports
from draindown.runs import store
from draindown.runs.report import Backlog, Fused, PlanPart
from draindown.runs.request import Request
from tests.airflow.steps import Steps
from tests.airflow.test_operators import (
    calls,
    did,
    gone,
    log_of,
    operator,
    request_of,
    wait_for_pids,
)

DRAIN, CHECK, COMPACT = "first.drain", "first.check", "first.compact"
ALL = PlanPart(backlog=Backlog(units=2, bytes=10), batches=5, drain=True, check=True, compact=True)


@pytest.fixture
def steps(told: Path, database: None, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """A run whose plan wants every step."""
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (ALL, []))
    run = Steps(DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["good"])
    run.run("first.plan")
    return run


def test_a_check_after_its_drain_is_taken_over_once_with_numbers_event_metrics_and_log(
    told: Path, steps: Steps, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    gauges: list[str] = []
    monkeypatch.setattr(stats, "gauge", lambda name, number, tags: gauges.append(name))
    steps.run(DRAIN)
    assert did(told) == [DRAIN, CHECK] and calls(told) == [DRAIN]
    assert "draindown.check.rows" not in gauges, "what a check found is told by its task"
    capfd.readouterr()
    assert steps.run(CHECK)[CHECK] == "success" and calls(told) == [DRAIN]
    drain = Request.decode(json.loads((told / f"{DRAIN}.argv").read_text())[-1])
    assert (steps.events[CHECK]["version"], steps.events[CHECK]["rows"]) == (3, 7)
    assert steps.events[CHECK]["driver"] == f"drain {drain.start}"
    said = "".join(capfd.readouterr())
    assert f"done by the driver of drain {drain.start}" in said and "earlier try" not in said
    assert gauges.count("draindown.check.rows") == 1
    (log,) = log_of(drain, "drain").parent.glob("check@*.log")
    assert str(log) in said and "Spark's words about first.check" in log.read_text()
    assert "Spark's words about first.check" not in log_of(drain, "drain").read_text()
    assert steps.run(CHECK)[CHECK] == "success" and calls(told) == [DRAIN, CHECK]
    assert "driver" not in steps.events[CHECK]
    assert "an earlier try ended well" in "".join(capfd.readouterr())


def test_a_gate_that_fails_after_its_drain_is_red_in_its_own_task_and_judged_anew_when_cleared(
    told: Path, steps: Steps
) -> None:
    (told / f"{CHECK}.code").write_text(str(int(Exit.GATE_FAILED)))
    (told / f"{CHECK}.error").write_text("gate-failed")
    assert steps.run(DRAIN, CHECK) | {} == {
        "first.plan": "success",
        DRAIN: "success",
        CHECK: "failed",
    }
    assert "gate-failed: f" in steps.errors[CHECK] and calls(told) == [DRAIN]
    assert COMPACT not in did(told)
    (told / f"{CHECK}.code").unlink()
    (told / f"{CHECK}.error").unlink()
    assert steps.run(CHECK)[CHECK] == "success" and calls(told) == [DRAIN, CHECK]


@pytest.mark.parametrize("way", ["waived", "discarded"])
def test_a_gate_failure_is_not_taken_over_once_a_person_decided(
    told: Path, steps: Steps, way: str
) -> None:
    (told / f"{CHECK}.code").write_text(str(int(Exit.GATE_FAILED)))
    (told / f"{CHECK}.error").write_text("gate-failed")
    steps.run(DRAIN)
    drain = Request.decode(json.loads((told / f"{DRAIN}.argv").read_text())[-1])
    if way == "waived":
        waive(drain.layout, "delays", by="me", reason="known")
    else:
        row = {
            "quarantine_id": "q",
            "action": "discarded",
            "at": now(),
            "by": "me",
            "note": "",
            "run_id": "",
        }
        delta.append(
            drain.layout.tables.resolutions,
            pa.Table.from_pylist([row], quarantine.RESOLUTIONS),
        )
    for what in ("code", "error"):
        (told / f"{CHECK}.{what}").unlink()
    assert steps.run(CHECK)[CHECK] == "success" and calls(told) == [DRAIN, CHECK]


@pytest.mark.parametrize(
    "tasks", [(DRAIN,), (DRAIN, CHECK)], ids=["check never begun", "check killed"]
)
def test_what_a_run_published_is_announced_by_the_next_one_if_its_own_tasks_did_not(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, tasks: tuple[str, ...]
) -> None:
    """Airflow takes a task for failed, perhaps for good, whose driver has published."""
    if CHECK in tasks:
        (told / f"{CHECK}.silent").touch()
    steps.run(*tasks)
    _publish(told, 3, rows=7)
    later = _idle_run(told, steps, monkeypatch, 2)
    assert (later.states[CHECK], later.states[DRAIN]) == ("success", "skipped")
    assert (later.events[CHECK]["version"], later.events[CHECK]["rows"]) == (3, 7)
    assert CHECK in _idle_run(told, steps, monkeypatch, 3).skipped, "once"


@pytest.mark.parametrize(
    "tasks", [(DRAIN,), (DRAIN, CHECK)], ids=["check never begun", "check killed"]
)
@pytest.mark.parametrize("newer", [False, True])
def test_what_another_run_announced_is_not_announced_by_a_run_that_is_cleared(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, tasks: tuple[str, ...], newer: bool
) -> None:
    if CHECK in tasks:
        (told / f"{CHECK}.silent").touch()
    steps.run(*tasks)
    published = _publish(told, 3, rows=7)
    assert _idle_run(told, steps, monkeypatch, 2).events[CHECK]["version"] == 3
    if newer:  # of another run, and not announced yet
        later = {"changed_at": None, "at": now(), "run_id": "manual__3", "start": "s"}
        publish(
            published.layout, Published(version=4, table_id="t", rows=9, changed_rows=1, **later)
        )
    assert steps.run(CHECK)[CHECK] == "skipped" and CHECK not in steps.events


def test_a_check_that_is_killed_before_its_event_makes_it_when_it_is_retried(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.run(DRAIN)
    _publish(told, 3, rows=7)
    steps.run(CHECK)
    assert steps.events.pop(CHECK)["version"] == 3, "as if Airflow had not heard of it"
    (told / f"{CHECK}.outcome").write_text("idle")
    assert steps.run(CHECK)[CHECK] == "success" and steps.events[CHECK]["version"] == 3


def test_what_a_check_announced_or_a_person_published_is_not_announced_again(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.run(DRAIN)
    _publish(told, 3, rows=7)
    assert steps.run(CHECK)[CHECK] == "success" and steps.events[CHECK]["rows"] == 7
    assert CHECK in _idle_run(told, steps, monkeypatch, 2).skipped
    request = _publish(told, 4, rows=1, start="")
    assert (
        fused.unannounced(request.layout) is None
        and CHECK in _idle_run(told, steps, monkeypatch, 3).skipped
    )


def test_an_event_with_the_numbers_of_one_run_announces_nothing_of_another(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of a later run publishes before the task of this run's check takes over what its
    driver did.
    """
    steps.run(DRAIN)
    _publish(told, 3, rows=7)
    other = Steps(steps.dag, run_id="manual__2")
    other.run("first.plan", DRAIN)
    later = _publish(told, 4, rows=1)
    assert steps.run(CHECK)[CHECK] == "success"
    assert (steps.events[CHECK]["version"], steps.events[CHECK]["rows"]) == (3, 7)
    waiting = fused.unannounced(later.layout)
    assert waiting is not None and waiting.version == 4
    announced = _idle_run(told, steps, monkeypatch, 3)
    assert (announced.events[CHECK]["version"], announced.events[CHECK]["rows"]) == (4, 1)


def _publish(told: Path, version: int, *, rows: int, start: str | None = None) -> Request:
    """Do what the newest driver's check does that passes its gate. Return the request of its
    drain.
    """
    drain = Request.decode(json.loads((told / f"{DRAIN}.argv").read_text())[-1])
    assert drain.announces
    left = store.read(drain.layout, drain.run_id, "check")
    own = (left.start if left else drain.following("check").start) if start is None else start
    at = {"changed_at": None, "at": now(), "run_id": drain.run_id, "start": own}
    publish(drain.layout, Published(version=version, table_id="t", rows=9, changed_rows=rows, **at))
    return drain


def _idle_run(told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, number: int) -> Steps:
    """A later run that has nothing to do."""
    nothing = ALL.model_copy(update={"drain": False, "check": False, "compact": False})
    monkeypatch.setattr(plan, "plan", lambda request, now, source=None: (nothing, []))
    (told / f"{CHECK}.outcome").write_text("idle")
    (told / f"{CHECK}.silent").unlink(missing_ok=True)
    run = Steps(steps.dag, run_id=f"manual__{number}")
    run.run("plan-all")
    if "first.plan" not in run.skipped:
        run.run("first.plan", DRAIN, CHECK)
    return run


def test_a_driver_that_dies_after_its_drain_is_a_dead_check_and_no_red_drain(
    told: Path, steps: Steps, capfd: Any
) -> None:
    (told / f"{CHECK}.dies").touch()
    assert steps.run(DRAIN)[DRAIN] == "success"
    assert "the driver died after its drain was over" in "".join(capfd.readouterr())
    (told / f"{CHECK}.dies").unlink()
    assert steps.run(CHECK)[CHECK] == "success" and calls(told) == [DRAIN, CHECK]
    assert "an earlier try left no report: check was at work" in "".join(capfd.readouterr())


def test_a_drain_that_dies_or_fails_is_red_and_is_followed_by_nothing(
    told: Path, steps: Steps
) -> None:
    (told / f"{DRAIN}.dies").touch()
    assert steps.run(DRAIN)[DRAIN] == "failed" and "driver-died" in steps.errors[DRAIN]
    (told / f"{DRAIN}.dies").unlink()
    (told / f"{DRAIN}.code").write_text(str(int(Exit.NEEDS_PERSON)))
    (told / f"{DRAIN}.error").write_text("table-mismatch")
    assert steps.run(DRAIN)[DRAIN] == "failed" and did(told) == [DRAIN, DRAIN]


def test_what_the_plan_does_not_want_does_not_follow(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        plan,
        "plan",
        lambda request, now, source=None: (ALL.model_copy(update={"check": False}), []),
    )
    steps.run("first.plan", DRAIN, CHECK)
    assert steps.states[CHECK] == "skipped" and did(told) == [DRAIN]


def test_a_compaction_that_joined_is_taken_over_once(told: Path, steps: Steps) -> None:
    (told / "first.joins").touch()
    assert set(steps.run(DRAIN, CHECK, COMPACT).values()) == {"success"}
    assert did(told) == [DRAIN, CHECK, COMPACT] and calls(told) == [DRAIN]
    assert steps.run(COMPACT)[COMPACT] == "skipped", "its own look finds nothing left to compact"


@pytest.mark.parametrize(("step", "state"), [(DRAIN, "failed"), (CHECK, "success")])
def test_a_timeout_ends_the_driver_and_fails_a_drain_that_is_not_over(
    told: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, step: str, state: str
) -> None:
    def expire(*_: object) -> None:
        raise AirflowTaskTimeout("it took too long")

    before = signal.signal(signal.SIGALRM, expire)
    (told / f"{step}.sleep").touch()
    main, pids = threading.main_thread().ident or 0, list[int]()

    def alarm() -> None:
        pids.extend(wait_for_pids(told))
        signal.pthread_kill(main, signal.SIGALRM)

    thread = threading.Thread(target=alarm)
    thread.start()
    try:
        if state == "failed":
            with pytest.raises(AirflowTaskTimeout):
                steps.run(DRAIN)
        else:
            assert steps.run(DRAIN)[DRAIN] == "success"
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)
    assert pids and gone(pids)


@pytest.mark.parametrize("seed", range(40))
def test_a_report_is_of_the_newest_drain_and_taken_by_the_first_try_that_follows_it(
    project: Path,
    database: None,
    seed: int,
    ended: Callable[..., reports.StepReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a model: what the newest drain left, until a try of the check looked for it."""
    monkeypatch.chdir(project)
    chance = random.Random(seed)
    base = request_of(operator(), project).model_copy(update={"run_id": f"r{seed}"})
    drained: dict[str, Any] | None = None
    waits: str | None = None
    for _ in range(25):
        match chance.choice(("drain", "drain alone", "red drain", "check", "check")):
            case "check":
                asked = base.following("check").model_copy(update={"after": ""})
                found = fused.take(asked, drained)
                assert (found and found.start) == waits
                if found is None and chance.random() < 0.8:  # or its own driver dies, too
                    ended(asked)
                waits = None
            case "red drain":  # its task returned nothing
                drained = waits = None
            case how:
                asked = base.model_copy(update={"start": reports.new_start()})
                ended(asked)
                drained, waits = {"start": asked.start}, None
                if how == "drain":
                    waits = ended(asked.following("check")).start


@pytest.fixture
def ended() -> Callable[[Request], reports.StepReport]:
    """Write the report of a step as its driver does."""

    def write(request: Request) -> reports.StepReport:
        by = Fused(drain=request.after, exit=0) if request.after else None
        done = reports.of(request, now(), "done", fused=by)
        store.write(request.layout, done)
        return done

    return write
