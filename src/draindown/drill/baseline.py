"""The baseline of a drill: one undisturbed drain per flow, with which every copy under a fault is
compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.drill import process
from draindown.drill.compare import Control
from draindown.drill.faults import Conditions
from draindown.drill.process import Ended, Process
from draindown.drill.sandbox import Project, Scratch
from draindown.runs import store
from draindown.runs.request import Request

Tell = Callable[[str], None]
"""Called with a line of text for people when a phase begins."""
STRUCK = "struck"
"""The run id of a drain under a fault."""
_PATIENCE = 300  # seconds
_TIMES = 10  # a process that takes this multiple of the undisturbed drain, beyond _PATIENCE, hangs


@dataclass(frozen=True)
class Baseline:
    """The undisturbed drain of one flow, and where the faults are injected.

    `ledger`: changed rows and table version of each batch; `nth`: the batch in which faults are
    injected, from 1; `seconds`: duration of the undisturbed drain; `times`: how often
    `kill-at-random` kills a driver.
    """

    scratch: Scratch
    control: Control
    project: Project
    ledger: tuple[Mapping[str, int], ...]
    nth: int
    seconds: float
    times: int
    seed: int
    tell: Tell

    @property
    def batches(self) -> int:
        """The number of batches that the input makes."""
        return len(self.ledger)

    @property
    def conditions(self) -> Conditions:
        """The properties of the flow and the batch that decide which faults apply."""
        struck = self.ledger[self.batch]
        changes = struck["inserted"] + struck["updated"] + struck["deleted"]
        raw = self.scratch.spec.flow(self.scratch.flow).source.raw_for is not None
        return Conditions(self.keyed, self.batches, bool(changes), raw)

    @property
    def version(self) -> int:
        """The version of the table that the batch under a fault commits."""
        return self.ledger[self.batch]["table_version"]

    @property
    def batch(self) -> int:
        """The number of the batch under a fault, from 0 as Spark counts."""
        return self.nth - 1

    @property
    def keyed(self) -> bool:
        """Whether the flow has keys."""
        return self.scratch.spec.flow(self.scratch.flow).target.kind.keyed

    @property
    def patience(self) -> float:
        """Seconds after which a process is considered hung."""
        return _PATIENCE + _TIMES * self.seconds

    def call(self, project: Project, *words: str) -> Ended:
        """Run a draindown command in a copy, with --json."""
        return call(project, self.patience, *words)

    def run(self, project: Project) -> Ended:
        """Run `draindown run` in a copy: the recovery from most faults."""
        return self.call(project, *run_words(project))

    @contextmanager
    def driver(
        self, project: Project, place: tuple[str, int], act: str, **more: int
    ) -> Iterator[Process]:
        """As `struck`."""
        with struck(project, place, act, **more) as running:
            yield running


def make(scratch: Scratch, *, times: int, seed: int, tell: Tell) -> Baseline:
    """Drain a copy without faults. Faults strike the middle one of the batches that change rows.

    Raises TerminalError `control-failed`, `nothing-to-drill`.
    """
    project = scratch.project("control")
    tell("a drain without a fault, to compare with")
    done = call(project, 24 * 3600, *run_words(project))
    if done.code != Exit.DONE:
        raise _failed(project, done)
    ledger = _ledger(project)
    if not ledger:
        raise TerminalError(
            "nothing-to-drill",
            tried=f"drain {scratch.material.told} of flow {scratch.flow} without a fault",
            found="none of it can be read: all was parked",
            next="draindown drill --max-files 1000 all PIPELINE",
        )
    control = Control(project.layout, scratch.spec.flow(scratch.flow))
    return Baseline(
        scratch, control, project, ledger, _middle(ledger), _seconds(project), times, seed, tell
    )


def _middle(ledger: Sequence[Mapping[str, int]]) -> int:
    """Return the middle one of the batches that change rows, from 1: of others nothing can be
    lost.
    """
    changing = [
        at for at, row in enumerate(ledger, 1) if row["inserted"] + row["updated"] + row["deleted"]
    ]
    numbers = changing or list(range(1, len(ledger) + 1))
    return numbers[(len(numbers) - 1) // 2]


@contextmanager
def struck(
    project: Project, place: tuple[str, int], act: str, *, most: int | None = None, **more: int
) -> Iterator[Process]:
    """Run a driver on a copy with one fault planned; kill its process group on leaving the block.

    `place`: step and batch at which `act` ("kill", "term" or "wait") happens; `most`: batches that
    the driver may do; `more`: further fields of the plan.
    """
    with driving(
        project, [(project.request(STRUCK, most=most), {"place": place, "act": act, **more})]
    ) as driver:
        yield driver


@contextmanager
def driving(
    project: Project, plan: Sequence[tuple[Request, Mapping[str, Any]]]
) -> Iterator[Process]:
    """Run a driver that does requests in turn, each with the fields of its entry in the plan; kill
    it as `struck`.
    """
    for mark in ("fired", "go", "outcome.json"):
        (project.root / mark).unlink(missing_ok=True)
    written = project.root / "plan.json"
    entries = [
        {"request": one.encode(), "home": str(project.root), **fields} for one, fields in plan
    ]
    written.write_text(json.dumps(entries))
    arguments = ["-m", "draindown.spark.job.fault_driver", str(written)]
    with process.running(arguments, cwd=project.root, log=project.root / "driver.log") as driver:
        yield driver


def run_words(project: Project) -> tuple[str, ...]:
    """Return the arguments of a plain run without check and compaction: a part of the input may
    fail the gate.
    """
    return ("run", f"{project.spec.pipeline}/{project.flow}", "--no-check", "--no-compact")


def call(project: Project, patience: float, *words: str) -> Ended:
    """Run a draindown command in a copy, with --json, for at most `patience` seconds."""
    arguments = ["-m", "draindown.cli", "--root", str(project.root), *words, "--json"]
    return process.call(arguments, cwd=project.root, patience=patience)


def outcome(project: Project) -> Mapping[str, Any]:
    """Return the outcome that a driver under a fault recorded; empty if it died before."""
    path = project.root / "outcome.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def batches_done(project: Project) -> int:
    """Return the number of batches in the ledger of a copy."""
    return len(_ledger(project))


def _ledger(project: Project) -> tuple[Mapping[str, int], ...]:
    """Return each batch's table version and changed rows in a copy, oldest first."""
    names = "table_version, inserted, updated, deleted"
    return tuple(project.layout.tables.ledger.rows(f"select {names} from t order by 1"))


def _seconds(project: Project) -> float:
    run = store.runs(project.layout, 1)[0]
    drained = store.read(project.layout, run, "drain")
    return drained.seconds if drained else 0.0


def _failed(project: Project, done: Ended) -> TerminalError:
    log = Path(project.root, "driver.log")
    log.write_text(done.err)
    found = done.error.get("code") or f"exit {done.code}"
    return TerminalError(
        "control-failed",
        tried=f"drain a copy of flow {project.flow} without any fault",
        found=f"{found}: {done.error.get('found') or done.err.strip()[-300:]}",
        next=[f"less {log}", f"draindown run {project.spec.pipeline}"],
        in_order=True,
    )


def words_of(steps: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the commands as a user types them."""
    return tuple(f"draindown {' '.join(words)}" for words in steps)
