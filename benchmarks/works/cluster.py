"""A landing and a derived flow on Spark clusters of one and two workers of one core each, beside
one machine (W13).

Driver, master, workers and executors share this machine, so that with two cores the second worker
competes with the driver: what two workers gain is a lower bound.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.contenders import Contender, draindown
from benchmarks.measure import Cost, apart, watched
from benchmarks.place import FLIGHTS, Place
from benchmarks.samples import Row, Sample, kinds, median, of, ratio
from benchmarks.work import Asked, Bench, Finding, Work, say
from examples.flights import events
from scripts.spark_cluster import SparkCluster

_MEMORY = 2048
"""MiB of each worker; draindown's executors take 1 GB of it unless told otherwise, as here."""
_ONE, _TWO = "1 worker", "2 workers"
_EXECUTORS = "executors_cpu_s"
_LANDING, _DERIVED = "a year of flights, from nothing", "departures_hourly, first fill"
_FLOWS = {_LANDING: "flights", _DERIVED: "departures_hourly"}


def _nothing(place: Place) -> Cost:
    raise AssertionError(f"{place.home}: runs of this work name their flow")


CONTENDERS = (
    Contender("draindown, local[1]", "one JVM with one task at a time", _nothing),
    Contender("draindown, local[2]", "one JVM with two", _nothing),
    Contender(
        f"draindown, {_ONE}",
        "a standalone cluster: driver, master, one executor of one core",
        _nothing,
    ),
    Contender(f"draindown, {_TWO}", "the same with two executors of one core", _nothing),
)


@contextmanager
def _cluster(contender: Contender, place: Place) -> Iterator[SparkCluster | None]:
    """Start the cluster of a contender, and end it with the block; None for one that has none."""
    if not contender.name.endswith((_ONE, _TWO)):
        yield None
        return
    cluster = SparkCluster(place.home / "cluster", memory=_MEMORY)
    try:
        yield cluster.start(1 if contender.name.endswith(_ONE) else 2)
    finally:
        cluster.stop()


def _measure(bench: Bench) -> list[Sample]:
    landing = bench.scratch / f"landing-{bench.asked.fraction:g}"
    made = apart(events.generate, landing, bench.asked.fraction)
    say(f"{made.events:,} events in {len(made.files)} files")
    return [
        sample
        for turn in range(bench.asked.repeat)
        for contender in bench.contenders
        for sample in _series(
            bench,
            contender,
            bench.place(f"cluster-{turn}-{contender.name}", FLIGHTS, landing),
            turn,
        )
    ]


def _series(bench: Bench, contender: Contender, place: Place, turn: int) -> list[Sample]:
    samples = []
    with _cluster(contender, place) as cluster:
        master = cluster.address if cluster else contender.name.removeprefix("draindown, ")
        for kind, flow in _FLOWS.items():
            before = cluster.spent() if cluster else 0.0
            cost = watched(_run(place, master, flow))
            facts = {_EXECUTORS: cluster.spent() - before} if cluster else {}
            samples.append(Sample(contender.name, kind, cost, turn + 1, facts=facts))
            told = "".join(f", of executors {seconds:.1f}" for seconds in facts.values())
            say(
                f"  {kind}, {contender.name}: {cost.wall_s:.1f} s, CPU s {cost.cpu_s:.1f}{told}, exit {cost.exit_code}"
            )
    samples[0] = bench.judged(contender, place, samples[0])
    return samples


def _run(place: Place, master: str, flow: str) -> Callable[[], int]:
    """Return a run of one flow on a master. What the flow reads is published by its check."""
    environ = {**place.environment(), "DRAINDOWN_MASTER": master, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = draindown(place, "--no-compact", flow=flow)

    def run() -> int:
        with (place.home / "out.txt").open("w") as out, (place.home / "err.txt").open("w") as err:
            return subprocess.call(command, env=environ, cwd=place.home, stdout=out, stderr=err)

    return run


def _findings(samples: Sequence[Sample]) -> list[Finding]:
    rows: list[Row] = []
    for kind in kinds(samples):
        groups = {name: of(samples, kind, f"draindown, {name}") for name in (_ONE, _TWO)}
        one, two = (median(group, "wall_s") for group in groups.values())
        alone = median(of(samples, kind, "draindown, local[1]"), "wall_s")
        ratios = {
            "2 workers over 1, wall": ratio(two, one),
            "1 worker over local[1]": ratio(one, alone),
        }
        rows.append({"run": kind, **ratios, **_parts(groups[_ONE])})
    return [
        Finding(
            f"What a second worker gains, on {os.cpu_count()} cores that the driver shares", rows
        )
    ]


def _parts(group: Sequence[Sample]) -> Row:
    """Return which part of the work more workers can share, and which stays that of the driver, in
    CPU seconds.
    """
    spent, whole = median(group, _EXECUTORS), median(group, "cpu_s")
    if spent is None or whole is None:
        return {}
    return {
        "executor's CPU s": round(spent, 1),
        "CPU s of driver, master, worker": round(whole - spent, 1),
    }


WORK = Work(
    "cluster",
    "a landing and a derived flow on one machine, and on Spark clusters of one and two workers",
    _measure,
    CONTENDERS,
    findings=_findings,
    defaults=Asked(repeat=1),
)
