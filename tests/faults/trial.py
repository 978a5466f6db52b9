"""One trial of a fault: what really happened, and the score that follows from it.

 1   all holds after the plain next run (a cause outside, such as a full disk, was taken away first)
 0.5 it failed loudly, and a command that its error names put it right
 0   it took hand surgery, or it stays red
-1   exit 0 although something is wrong
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.cli.program import main
from draindown.runs.report import StepReport
from draindown.runs.request import Step
from draindown.spark.checks.check import check
from draindown.spark.job.main import attempt
from draindown.spark.runs.compaction import compact
from draindown.spark.runs.drain import drain
from tests.faults.cases import CASES
from tests.landing import Landing

RESULTS = Path(
    os.environ.get("DRAINDOWN_FAULTS") or Path(__file__).parents[2] / ".work" / "faults.jsonl"
)
_NAMED = {Exit.GATE_FAILED, Exit.TRY_AGAIN, Exit.NEEDS_PERSON}


@dataclass(frozen=True)
class Run:
    """How one process or step ended: exit code (negative: signal), error code, the commands it
    named, seconds.
    """

    code: int
    error: str | None = None
    next: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass
class Trial:
    """One fault at one place. `fired` is the proof that it struck; `runs` follow in order, the
    struck one first.
    """

    case: str
    place: str
    injected: str
    fired: str = ""
    runs: list[Run] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    surgery: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def ran(self, code: int, error: dict[str, Any] | None = None, seconds: float = 0.0) -> None:
        """Note how a process ended."""
        steps = tuple(str(step) for step in (error or {}).get("next", ()))
        self.runs.append(Run(code, (error or {}).get("code"), steps, round(seconds, 1)))

    def run(
        self, landing: Landing, spark: SparkSession, step: Step = "drain", **hooks: Any
    ) -> StepReport:
        """Run a step as its job does, and note how it ended."""
        suite = hooks.pop("suite", None)
        bounds = {name: hooks.pop(name) for name in ("max_batches", "force") if name in hooks}
        request = landing.request(run_id=f"run {len(self.runs)}", suite=suite, **bounds).model_copy(
            update={"step": step}
        )
        hooks = {"progress": lambda _: None} | hooks if step == "drain" else hooks
        started = time.monotonic()  # the clocks of a report may be told to lie
        report, code = attempt(
            request, lambda stop: _work(step, request, spark, hooks | _stop(step, stop))
        )
        self.ran(code, report.error, time.monotonic() - started)
        return report

    def follow(self, landing: Landing, verb: str) -> None:
        """Type the command with that verb which the newest error names; one that it doesn't name is
        surgery.
        """
        named = [
            command
            for step in self.runs[-1].next
            for command in re.findall(r"draindown [^(;#]+", step)
        ]
        fitting = [command.strip() for command in named if command.startswith(f"draindown {verb}")]
        if not fitting:
            self.surgery.append(f"{verb} is no command that {self.runs[-1].error} names")
            return
        words = shlex.split(fitting[0], comments=True)[1:]
        words += [] if "--yes" in words else ["--yes"]
        landing.write_pipeline()
        code = main(["--root", str(landing.home), *words])
        self.commands.append(" ".join(["draindown", *verb.split()]))
        if code:
            self.wrong.append(f"{fitting[0]} ended with {code}")

    def promise(self, words: str, holds: object) -> None:
        """Note whether something that must hold does."""
        (self.held if holds else self.wrong).append(words)

    @property
    def recovery(self) -> float:
        """Seconds of all runs after the one that was struck."""
        return round(sum(run.seconds for run in self.runs[1:]), 1)

    @property
    def score(self) -> float:
        """See the module. A fault that never fired has none: AssertionError."""
        assert self.fired, f"{self.case} {self.place}: the fault never fired"
        assert self.runs and (self.held or self.wrong), (
            f"{self.case} {self.place}: nothing was looked at"
        )
        if self.wrong:
            return -1 if self.runs[-1].code == 0 else 0
        if self.surgery or self.runs[-1].code:
            return 0
        if self.commands:
            return 0.5 if any(run.code in _NAMED and run.error for run in self.runs) else 0
        return 1


def conclude(*trials: Trial) -> None:
    """Write down all trials, then insist on each."""
    _write(
        *[asdict(trial) | {"score": trial.score, "recovery": trial.recovery} for trial in trials]
    )
    bad = [trial for trial in trials if trial.score < 0.5]
    assert not bad, "\n".join(str(trial) for trial in bad)


def soaked(facts: dict[str, Any]) -> None:
    """Write down what a soak found."""
    _write({"soak": facts})


def skip(case: str, why: str) -> None:
    """Write down that a case could not be tried here, for the table to say so."""
    assert case in CASES
    _write({"case": case, "place": "nowhere", "skipped": why})


def _write(*results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    # in one piece: another process may write at the same time
    with RESULTS.open("ab", buffering=0) as out:
        out.write(
            "".join(json.dumps(result | {"test": running()}) + "\n" for result in results).encode()
        )


def running() -> str:
    """The test that runs, without its parameters."""
    return os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].partition("[")[0]


def _stop(step: Step, stop: Any) -> dict[str, Any]:
    return {"stop": stop} if step == "drain" else {}


def _work(step: Step, request: Any, spark: SparkSession, hooks: dict[str, Any]) -> StepReport:
    steps: dict[str, Any] = {"drain": drain, "check": check, "compact": compact}
    return steps[step](request, spark, **hooks)  # type: ignore[no-any-return]
