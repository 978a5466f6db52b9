"""Flows with sinks: drivers that die (F39) or stand still (F40) in a gap, servers that fail in a
batch (F41).
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from draindown.lease import locks
from scripts.postgres_server import USER, WORD, PostgresServer
from tests.faults.lakes import Driver
from tests.faults.trial import Trial, conclude
from tests.kafka import sinks
from tests.kafka.cluster import Cluster
from tests.kafka.sinks import BATCHES, GAPS
from tests.landing import Landing

SEEDS, KILLS = 20, 3
PLACES = ("Postgres restarted", "Postgres gone", "Postgres frozen", "Postgres, another password")
PLACES += ("broker gone", "broker gone, sent once", "broker frozen")
_LEASE = {"mode": "shared", "duration": 5}
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker that is up, and what tests say to it."""
    started = Cluster.start(tmp_path_factory.mktemp("broker"))
    yield started
    started.broker.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with sinks.postgres() as found:
        yield found


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sinks.SECRET.items():
        monkeypatch.setenv(name, value)


def laden(
    home: Path, cluster: Cluster, topic: str, postgres: PostgresServer, seed: Any, **more: Any
) -> Landing:
    flow = sinks.flow_of(home, cluster, topic, postgres, **more)
    for number in range(BATCHES):
        sinks.deliver(flow, random.Random(f"{seed} {number}"), number)
    return flow


def agree(
    trial: Trial, flow: Landing, cluster: Cluster, topic: str, postgres: PostgresServer
) -> None:
    found = sinks.differences(flow, cluster, topic, postgres)
    for what in found:
        trial.promise(what, False)
    trial.promise("table, tables of Postgres, topics and ledger agree", not found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_flow_whose_drivers_were_killed_and_its_sinks_agree(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, postgres: PostgresServer, seed: int
) -> None:
    chance, topic = random.Random(seed), f"f39s{seed}"
    flow = laden(tmp_path / "project", cluster, topic, postgres, seed)
    # of 20 seeds each gap has two turns or three; which batches die is drawn
    gaps = [GAPS[(seed * KILLS + at) % len(GAPS)] for at in range(KILLS)]
    places = sorted(
        ((gap, chance.randrange(BATCHES)) for gap in gaps),
        key=lambda one: (one[1], GAPS.index(one[0])),
    )
    trial = Trial(
        "F39", f"seed {seed}", f"SIGKILL of Python and JVM at {' and '.join(map(str, places))}"
    )
    for at, place in enumerate(places):
        trial.ran(sinks.killed(flow, tmp_path / f"run{at}", place))
    trial.fired = f"exit -9, {len(places)} times"
    trial.run(flow, spark)
    agree(trial, flow, cluster, topic, postgres)
    conclude(trial)


@pytest.mark.parametrize("half", range(2))
def test_a_driver_that_stood_still_in_any_gap_changes_nothing_when_it_thaws(
    tmp_path: Path, spark: SparkSession, cluster: Cluster, postgres: PostgresServer, half: int
) -> None:
    """A shared lease runs out meanwhile, and a driver on another host drains all."""
    gaps = dict(list(enumerate(GAPS))[half::2])
    flows = {
        gap: laden(tmp_path / gap, cluster, f"f40n{at}", postgres, gap, lease=_LEASE)
        for at, gap in gaps.items()
    }
    entries = [
        {
            "home": str(flow.home),
            "flow": flow.document["flows"]["f"] | {"lease": _LEASE},
            "place": [gap, 1],
        }
        for gap, flow in flows.items()
    ]
    trials = []
    with Driver(tmp_path, *[one | {"act": "wait"} for one in entries], **sinks.SECRET) as driver:
        for at, gap in gaps.items():
            flow = flows[gap]
            driver.fired(flow.home)
            trial = Trial("F40", gap, "SIGSTOP in a gap, a driver on another host, SIGCONT")
            driver.signal(signal.SIGSTOP)
            with mock.patch.object(locks, "_kernel", lambda: "another host"):
                trial.run(flow, spark)
            agree(trial, flow, cluster, f"f40n{at}", postgres)
            (flow.home / "go").touch()
            driver.signal(signal.SIGCONT)
            driver.until(lambda home=flow.home: (home / "outcome.json").exists())  # type: ignore[misc]
            outcome = driver.outcome(flow.home)
            trial.ran(outcome["code"], outcome["error"])
            code = outcome["error"] and outcome["error"]["code"]
            trial.fired = f"it woke with epoch 2 begun, and ended with {outcome['code']}, {code}"
            trial.promise(
                "the one that woke ends by name",
                (outcome["code"], code) in ((75, "lease-lost"), (75, "sink-fenced")),
            )
            trial.run(flow, spark)
            agree(trial, flow, cluster, f"f40n{at}", postgres)
            trials.append(trial)
        driver.wait()
    conclude(*trials)


@pytest.mark.parametrize("place", PLACES)
def test_a_server_that_fails_in_a_batch_ends_it_by_name_and_the_next_run_is_right(
    tmp_path: Path, spark: SparkSession, place: str
) -> None:
    own, topic = Cluster.start(tmp_path / "broker"), "f41"
    try:
        with sinks.postgres() as server:
            gap, strike, repair, ends = _faults(own, server)[place]
            flow = laden(tmp_path / "project", own, topic, server, place)
            _quick(flow)
            trial = Trial("F41", place, f"at `{gap}` of the second batch")
            trial.run(flow, spark, reached=_second(gap, strike))
            trial.fired = f"ended with {trial.runs[0].code}, {trial.runs[0].error}"
            trial.promise(f"{ends}, by name", (trial.runs[0].code, trial.runs[0].error) in ends)
            repair()
            trial.run(flow, spark)
            agree(trial, flow, own, topic, server)
    finally:
        own.broker.stop()
    conclude(trial)


Fault = tuple[str, Callable[[], Any], Callable[[], Any], list[tuple[int, str]]]


def _faults(own: Cluster, server: PostgresServer) -> dict[str, Fault]:
    """By its place: the gap, what happens there, what repairs it, and how the run may end."""
    later, auth = [(75, "sink-unreachable")], [(78, "sink-auth")]
    frozen = server.frozen()

    def other_password() -> None:
        server.execute(f"alter role {USER} password 'another'")
        server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", USER
        )

    def same_password() -> None:
        server.execute(f"alter role {USER} password '{WORD}'")

    def start_again() -> None:
        own.start_again("f41", "f41-once")

    def nothing() -> None: ...

    kill, thaw = own.broker.kill, partial(frozen.__exit__, None, None, None)
    return {
        "Postgres restarted": (
            "portion-mirror",
            lambda: (server.stop("immediate"), server.start()),
            nothing,
            later,
        ),
        "Postgres gone": ("connecting", lambda: server.stop("immediate"), server.start, later),
        "Postgres frozen": ("portion-mirror", frozen.__enter__, thaw, later),
        "Postgres, another password": ("connecting", other_password, same_password, auth),
        "broker gone": ("portion-events", kill, start_again, later),
        "broker gone, sent once": (
            "portion-once",
            kill,
            start_again,
            [*later, (75, "sink-fenced")],
        ),
        "broker frozen": ("portion-once", own.broker.freeze, own.broker.thaw, later),
    }


def _second(gap: str, strike: Callable[[], Any]) -> Callable[[str], None]:
    """A hook that strikes once, the first time that the second batch reaches the gap."""
    waited = iter(("recorded", gap))
    wanted = [next(waited)]

    def reached(step: str) -> None:
        if wanted == [step]:
            wanted[:] = list(islice(waited, 1))
            if not wanted:
                strike()

    return reached


def _quick(flow: Landing) -> None:
    """Have its sinks give up within seconds."""
    for sink in flow.document["flows"]["f"]["sinks"].values():
        if "postgres" in sink:
            sink["postgres"]["timeout"] = 3
        else:
            sink["kafka"] |= {"request_timeout": 5}
    flow.spec = type(flow.spec).model_validate(flow.document)
