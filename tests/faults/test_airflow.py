"""Airflow restarted while the drivers of two of its runs are inside their batches (F16).

One run drains the keyed table, the other its witness. Nobody does anything but start Airflow again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from draindown.drill.process import alive, gone
from tests.faults import lakes
from tests.faults.deployment import Airflow
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import Landing

_SETTINGS = {"DRAINDOWN_DRIVER_MEMORY": "768m"}
_GRACE = 90  # seconds, as in docker-compose.yaml
_PATIENCE = 600

Blow = Callable[[Airflow, Landing, Trial], None]


def _everything(airflow: Airflow, landing: Landing, trial: Trial) -> None:
    """Also the processes that tasks run in, as when a container goes down; of two drivers one can't
    die for now.
    """
    drivers, frozen = airflow.drivers(), _session(landing)
    os.killpg(frozen, signal.SIGSTOP)  # it might wait for a disk
    stuck = {pid for pid in drivers if os.getsid(pid) == frozen}
    airflow.signal(airflow.processes(), signal.SIGKILL)
    trial.promise("drivers end with their tasks", all(map(gone, drivers - stuck)))
    before = len(landing.ledger())
    airflow.start()
    airflow.until(
        lambda: airflow.states("f.drain")["p"] == "up_for_reschedule", "waiting for the lease"
    )
    trial.promise(
        "a retry waits while a driver can't die", alive(frozen) and len(landing.ledger()) == before
    )
    os.killpg(frozen, signal.SIGCONT)
    trial.promise("that driver ends once it can", all(map(gone, stuck)))


def _all_but_tasks(airflow: Airflow, landing: Landing, trial: Trial) -> None:
    """What tells Airflow about the tasks is gone; they and their drivers live."""
    drivers, left = airflow.drivers(), airflow.tasks()
    airflow.signal(airflow.processes() - left, signal.SIGKILL)
    airflow.start()
    # each ends once its driver has something to tell, which is after its batch; until then its next
    # try waits
    trial.promise("tasks that nobody looks after end", all(gone(task, 240) for task in left))
    trial.promise("drivers end with their tasks", all(map(gone, drivers)))


def _scheduler(airflow: Airflow, landing: Landing, trial: Trial) -> None:
    """Its workers live on, and with them tasks and drivers; the server takes what they report."""
    airflow.signal(airflow.leaders("scheduler"), signal.SIGKILL)
    airflow.start("scheduler")


def _told_to_end(airflow: Airflow, landing: Landing, trial: Trial) -> None:
    """All at once, as when a host goes down: no server takes what a task reports; what outlasts the
    grace is killed.
    """
    airflow.signal(airflow.leaders(), signal.SIGTERM)
    airflow.ended(_GRACE)
    airflow.signal(airflow.processes(), signal.SIGKILL)
    trial.promise("no driver stays", all(map(gone, airflow.drivers())))
    airflow.start()


def _told_to_end_in_order(airflow: Airflow, landing: Landing, trial: Trial) -> None:
    """As compose does: the server last. The scheduler takes nothing new and lets its tasks end."""
    airflow.signal(airflow.leaders("scheduler", "dag-processor"), signal.SIGTERM)
    trial.promise("the scheduler ends by itself", airflow.part("scheduler").wait(_PATIENCE) == 0)
    trial.promise("its tasks ended well", set(airflow.states("f.drain").values()) == {"success"})
    airflow.signal(airflow.leaders("api-server"), signal.SIGTERM)
    airflow.ended(_PATIENCE)
    airflow.signal(airflow.processes(), signal.SIGKILL)
    airflow.start()


BLOWS: dict[str, Blow] = {
    "SIGKILL, all": _everything,
    "SIGKILL, all but tasks": _all_but_tasks,
    "SIGKILL, the scheduler": _scheduler,
    "SIGTERM, all": _told_to_end,
    "SIGTERM, the server last": _told_to_end_in_order,
}


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("place", BLOWS)
def test_runs_end_well_after_airflow_was_restarted(
    tmp_path: Path, control: Control, place: str
) -> None:
    landing = lakes.lake(tmp_path / "lake")
    witness = lakes.witness(landing.home)
    signals, whom = place.split(", ")
    trial = Trial(
        "F16", place, f"{signals} of {whom} while drivers are inside their batches, then a start"
    )
    with Airflow(landing, witness, settings=_SETTINGS) as airflow:
        airflow.start()
        airflow.trigger("p", "w")
        airflow.until(
            lambda: all(lake.ledger() for lake in (landing, witness)), "inside their batches"
        )
        assert set(airflow.states("f.drain").values()) == {"running"} and airflow.drivers()
        done, scheduler = (
            [len(lake.ledger()) for lake in (landing, witness)],
            airflow.part("scheduler"),
        )
        began = time.monotonic()
        BLOWS[place](airflow, landing, trial)
        code = scheduler.wait(60)
        trial.ran(code)
        airflow.until(
            lambda: set(airflow.states().values()) <= {"success", "failed"}, "over", _PATIENCE
        )
        states = airflow.states()
        trial.ran(0 if set(states.values()) == {"success"} else 1, seconds=time.monotonic() - began)
        trial.fired = f"after batches {done} the scheduler ended with {code}; {airflow.history()}"
        trial.promise("both runs end in success", set(states.values()) == {"success"})
        trial.promise("no driver is left", not airflow.drivers())
    lakes.hold(trial, landing, control, beside=True)
    conclude(trial)


def _session(landing: Landing) -> int:
    """The session of the driver that holds the lease, which is a process group too; its JVM leads
    it.
    """
    owner = json.loads(Path(landing.layout.lease, "owner.json").read_text())
    return os.getsid(owner["pid"])
