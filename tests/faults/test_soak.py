"""Rounds of ingest, drain, check, compact and vacuum, a random fault in each; tables equal the
oracle after each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.config.lease import LeaseSpec
from draindown.config.targets import RETAIN_FLOOR
from draindown.gate import published
from draindown.lake.table import Table
from draindown.recovery.opening import lease_of
from draindown.runs.request import Step
from draindown.spark.runs.compaction import vacuum
from tests.ageing import age
from tests.faults import lakes
from tests.faults.trial import Trial, soaked
from tests.landing import Injected, Landing

_ROUNDS, _SEED = (
    int(os.environ.get(f"DRAINDOWN_SOAK_{name}") or least)
    for name, least in (("ROUNDS", 25), ("SEED", 1))
)
_STEPS = ("read", "quarantined", "remembered", "merged", "recorded")
_ATTEMPTS = 4
_AGE_EVERY, _AUDIT_EVERY, _KILL_EVERY = 5, 20, 25
_RESET_AT = 10  # early: a new generation reads every cut again


class Soak:
    """One lake and its witness, from round to round."""

    def __init__(self, home: Path, spark: SparkSession, seed: int) -> None:
        self.random, self.spark, self.round, self.delivered = random.Random(seed), spark, 0, 0
        self.keyed = Landing(home, **lakes.FLOW)
        self.witness = lakes.witness(home)
        self.trial = Trial("soak", f"seed {seed}", "a random fault per round", held=["rounds"])
        self.fired: Counter[str] = Counter()

    def deliver(self) -> None:
        """One to three files: new rows, old rows, deletes, quarantined rows, blank lines, now and then
        one twice.
        """
        for _ in range(self.random.randint(1, 3)):
            lines = [self._line() for _ in range(self.random.randint(1, 40))]
            self.delivered += 1
            self.keyed.deliver(*lines, name=f"{self.delivered:05}.json")
            if self.random.random() < 0.1:
                self.keyed.deliver(*lines, name=f"{self.delivered:05}-again.json")

    def _line(self) -> str:
        kind, row = (
            self.random.random(),
            {"id": f"k{self.random.randrange(60)}", "seq": self._sequence()},
        )
        if kind < 0.03:
            return self.random.choice(["", "no json", '{"id": "torn'])
        if kind < 0.1:
            return json.dumps(row | {"op": "d"})
        return json.dumps(
            row | {"a": self.random.randrange(-1, 50), "b": str(self.random.randrange(5))}
        )

    def _sequence(self) -> int:
        return max(0, self.round + self.random.randint(-3, 3))

    def run(self, flow: Landing, step: Step = "drain", **more: object) -> int:
        """One step, as its job does it; the exit code."""
        self.trial.run(flow, self.spark, step, **more)
        return self.trial.runs[-1].code

    def drained(self, flow: Landing) -> None:
        """Drain until it is done."""
        codes = []
        while not codes or codes[-1]:
            codes.append(self.run(flow))
            assert len(codes) < _ATTEMPTS, (self.round, self.trial.runs[-_ATTEMPTS:])

    def fault(self) -> None:
        """One of them, at random; those that need a process or much work come around at fixed
        rounds.
        """
        kinds: list[Callable[[], str]] = [
            self._raise,
            self._raise,
            self._forget,
            self._optimize,
            self._hold,
            self._die,
        ]
        kind = self.random.choice(kinds)
        if self.round % _KILL_EVERY == 0:
            kind = self._kill
        elif self.round == _RESET_AT:
            kind = self._reset
        self.fired[kind()] += 1

    def _raise(self) -> str:
        flow, step = self.random.choice((self.keyed, self.witness)), self.random.choice(_STEPS)
        struck: list[str] = []

        def reached(now: str) -> None:
            if now == step:
                struck.append(now)
                raise Injected(now)

        code = self.run(flow, reached=reached)
        assert bool(struck) == (code == Exit.CRASH)
        return f"exception after {step}" if struck else "none"  # a batch need not reach each step

    def _forget(self) -> str:
        self.drained(self.witness)
        self.witness.forget_last_batch()
        return "commit file deleted"

    def _optimize(self) -> str:
        if not self.keyed.layout.tables.target.exists:
            return "none"
        self.spark.sql(f"OPTIMIZE delta.`{self.keyed.layout.tables.target.path}`")
        return "OPTIMIZE by hand"

    def _hold(self) -> str:
        with lease_of(self.keyed.layout, LeaseSpec(), owner="somebody", run_id="other"):
            assert self.run(self.keyed) == Exit.TRY_AGAIN
        return "lease held"

    def _die(self) -> str:
        """Between two batches, and the check never comes."""
        code = self.run(self.keyed, max_batches=1)
        assert code == Exit.DONE
        return "ended after one batch"

    def _kill(self) -> str:
        place = (self.random.choice(("merged", "recorded", "remembered")), self._next_batch())
        lakes.killed(self.trial, self.keyed.home, place)
        return f"SIGKILL after {place[0]}"

    def _next_batch(self) -> int:
        return len([row for row in self.keyed.ledger() if row["generation"] == self._generation()])

    def _reset(self) -> str:
        self.drained(self.keyed)
        shutil.rmtree(self.keyed.layout.checkpoint(self._generation()))
        assert self.run(self.keyed) == Exit.NEEDS_PERSON
        self.trial.follow(self.keyed, "reset")
        return "checkpoint lost"

    def _generation(self) -> int:
        found = self.keyed.layout.generation.read()
        return 1 if found is None else int(found["generation"])

    def play(self) -> None:
        """A round: whatever its fault was, at its end all is right."""
        self.round += 1
        self.deliver()
        self.fault()
        for flow in (self.keyed, self.witness):
            self.drained(flow)
            assert self.run(flow, "check") == Exit.DONE
            if self.round % _AGE_EVERY == 0:
                self._age(flow)
            assert self.run(flow, "compact") == Exit.DONE
            vacuum(self.spark, flow.layout.tables.target.path, RETAIN_FLOOR, lambda: None)
            assert self.run(flow, "check") == Exit.DONE
            pointer = published.published(flow.layout)
            assert pointer and pointer.version == flow.layout.tables.target.version, self.round
            flow.totals()
        wrong = lakes.against_oracle(self.keyed, self.witness)
        if self.round % _AUDIT_EVERY == 0:
            wrong += lakes.wrong(self.keyed) + lakes.wrong(self.witness)
        assert not wrong, (self.round, wrong, self.trial.runs[-10:])

    def _age(self, flow: Landing) -> None:
        age(flow.layout.tables.target.path, days=8)
        Path(flow.layout.vacuumed.path).unlink(missing_ok=True)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def batch_seconds(self) -> tuple[float, float]:
        """Median seconds of a batch in the first and the last tenth of all batches."""
        seconds = [row["seconds"] for row in self.keyed.ledger()]
        part = max(1, len(seconds) // 10)
        return statistics.median(seconds[:part]), statistics.median(seconds[-part:])

    def vacuumed(self) -> int:
        """Files that VACUUM removed from the table, by its log."""
        path = self.keyed.layout.tables.target.path
        commits = Table(path).commits()
        ends = [commit for commit in commits if commit.operation == "VACUUM END"]
        return sum(commit.metric("numDeletedFiles") for commit in ends)


def _soak(home: Path, spark: SparkSession, rounds: int, seed: int) -> Soak:
    soak, started = Soak(home, spark, seed), time.monotonic()
    for _ in range(rounds):
        soak.play()
    first, last = soak.batch_seconds()
    soaked(
        {
            "rounds": rounds,
            "seed": seed,
            "seconds": round(time.monotonic() - started),
            "batch_seconds": [round(first, 2), round(last, 2)],
            "batches": len(soak.keyed.ledger()),
            "landed_files": soak.delivered,
            "table_files": len(soak.keyed.layout.tables.target.files()),
            "vacuumed": soak.vacuumed(),
            "rows": len(soak.keyed.rows("id")),
            "fired": dict(soak.fired),
        }
    )
    assert soak.fired.total() == rounds
    return soak


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_few_rounds_of_everything(tmp_path: Path, spark: SparkSession) -> None:
    _soak(tmp_path, spark, 3, seed=3)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_many_rounds_of_everything(tmp_path: Path, spark: SparkSession) -> None:
    soak = _soak(tmp_path, spark, _ROUNDS, seed=_SEED)
    assert not lakes.wrong(soak.keyed) + lakes.wrong(soak.witness)
