"""How each fault is injected into a copy, with the proof that it happened and the problems seen at
once.
"""

from __future__ import annotations

import random
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draindown.base.exits import Exit
from draindown.base.formatting import count
from draindown.drill import process
from draindown.drill.baseline import Baseline, batches_done, outcome, run_words
from draindown.drill.faults import Fault
from draindown.drill.isolation import differing, kept
from draindown.drill.process import Ended, Process
from draindown.drill.sandbox import Project
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint

_SOON = 60.0
"""Seconds within which a killed process must end."""


@dataclass
class Injection:
    """The result of one injection.

    `fired`: the proof that the fault happened, empty without one; `wrong`: problems; `recovery`:
    arguments of the commands that recover; `reset`: the recovery starts a new generation; `last`:
    the part of the proof that is taken after the recovery.
    """

    project: Project
    where: str
    fired: str = ""
    wrong: list[str] = field(default_factory=list)
    recovery: Sequence[Sequence[str]] = ()
    reset: bool = False
    last: Callable[[], None] = lambda: None

    def expect(self, met: bool, problem: str) -> bool:
        """Record `problem` unless `met`. Returns `met`."""
        if not met:
            self.wrong.append(problem)
        return met


def inject(baseline: Baseline, fault: Fault) -> Injection:
    """Make a copy and inject the fault into it."""
    act = _ACTS.get(fault.name, _kill)
    return act(baseline, fault)


def _injection(baseline: Baseline, project: Project, step: str) -> Injection:
    where = f"batch {baseline.nth} of {baseline.batches}, {step}"
    return Injection(project, where, recovery=(run_words(project),))


def _kill(baseline: Baseline, fault: Fault) -> Injection:
    step = fault.step
    injection = _injection(baseline, baseline.scratch.project(fault.name), step)
    if step == "intake":
        injection.where = "after intake"
    _, injection.fired = _killed(
        baseline, injection.project, (step, baseline.batch), version=baseline.version
    )
    return injection


def _killed(
    baseline: Baseline, project: Project, place: tuple[str, int], **more: int
) -> tuple[int | None, str]:
    """Run a driver that is to be killed at `place`. Returns its exit code and the proof that it
    died there.
    """
    with baseline.driver(project, place, "kill", **more) as driver:
        jvm = process.wait_for_fault(project.root, driver, baseline.patience)
        code = process.code_of(driver, _SOON if jvm else baseline.patience)
        dead = jvm is not None and process.gone(jvm)
    if code != -signal.SIGKILL or not dead:
        return code, ""
    return code, f"driver and JVM {jvm} ended by signal 9 at `{place[0]}`"


def _at_random(baseline: Baseline, fault: Fault) -> Injection:
    """Kill drivers at random times, drawn from the time that the rest of the input takes.

    A driver that ends before its time does not count: its lake is compared, deleted, and drained
    anew.
    """
    project = baseline.scratch.project(fault.name)
    injection = Injection(
        project, f"{baseline.times} times, seed {baseline.seed}", recovery=(run_words(project),)
    )
    draw, proofs = random.Random(baseline.seed), []
    for _ in range(3 * baseline.times + 3):
        left = 1 - batches_done(project) / baseline.batches
        after = max(1, int(1000 * baseline.seconds * left * draw.random()))
        code, proof = _killed(baseline, project, ("time", after))
        if proof:
            proofs.append(f"{after / 1000:.1f} s")
        elif not injection.expect(
            code == Exit.DONE, f"a driver that was to be killed after {after} ms ended with {code}"
        ):
            return injection
        else:
            injection.wrong += baseline.control.differences(project.layout)
            baseline.scratch.empty(project)
        if len(proofs) == baseline.times:
            injection.fired = f"killed by signal 9 after {', '.join(proofs)} of draining"
            return injection
    return injection


def _stop(baseline: Baseline, fault: Fault) -> Injection:
    nth = min(baseline.nth, baseline.batches - 1)
    project = baseline.scratch.project(fault.name)
    injection = Injection(
        project, f"batch {nth} of {baseline.batches}, read", recovery=(run_words(project),)
    )
    with baseline.driver(project, ("read", nth - 1), "term") as driver:
        if process.wait_for_fault(project.root, driver, baseline.patience) is None:
            return injection
        code = process.code_of(driver, baseline.patience)
    done = batches_done(project)
    ended = outcome(project).get("outcome")
    if injection.expect(code == Exit.DONE, f"told to stop, it ended with {code} ({ended})"):
        injection.fired = (
            f"SIGTERM; it ended with 0 ({ended}) after {count(done, 'batch', 'batches')}"
            if ended == "stopped"
            else ""
        )
        injection.expect(
            done == nth, f"{count(done, 'batch', 'batches')} done where {nth} should be"
        )
    return injection


def _two_drivers(baseline: Baseline, fault: Fault) -> Injection:
    injection = _injection(baseline, baseline.scratch.project(fault.name), "read")
    with baseline.driver(injection.project, ("read", baseline.batch), "wait") as driver:
        if process.wait_for_fault(injection.project.root, driver, baseline.patience) is None:
            return injection
        injection.fired = _refused(baseline, injection, run_words(injection.project))
        _ends_well(baseline, injection, driver)
    return injection


def _zombie(baseline: Baseline, fault: Fault) -> Injection:
    step = "remembered"
    injection = _injection(baseline, baseline.scratch.project(fault.name), step)
    with baseline.driver(injection.project, (step, baseline.batch), "wait") as driver:
        jvm = process.wait_for_fault(injection.project.root, driver, baseline.patience)
        if jvm is None:
            return injection
        process.signal_group(driver, signal.SIGSTOP)
        if not process.frozen(jvm):
            return injection
        proof = _refused(baseline, injection, run_words(injection.project))
        injection.fired = f"JVM {jvm} was stopped; {proof}" if proof else ""
        process.signal_group(driver, signal.SIGCONT)
        _ends_well(baseline, injection, driver)
    return injection


def _compact_beside(baseline: Baseline, fault: Fault) -> Injection:
    injection = _injection(baseline, baseline.scratch.project(fault.name), "read")
    compact = (
        "compact",
        f"{injection.project.spec.pipeline}/{injection.project.flow}",
        "--force",
    )
    with baseline.driver(injection.project, ("read", baseline.batch), "wait") as driver:
        if process.wait_for_fault(injection.project.root, driver, baseline.patience) is None:
            return injection
        injection.fired = _refused(baseline, injection, compact)
        _ends_well(baseline, injection, driver)
    injection.recovery = (compact, *injection.recovery)
    return injection


def _refused(baseline: Baseline, injection: Injection, words: Sequence[str]) -> str:
    """Run a command while another driver holds the lease; it must change nothing. Returns the proof
    of its refusal.
    """
    before = kept(injection.project.layout)
    done = baseline.call(injection.project, *words)
    moved = differing(before, kept(injection.project.layout))
    name = words[0]
    injection.expect(
        not moved,
        f"`{name}` beside a driver changed {count(len(moved), 'file')}, {moved[0] if moved else ''}",
    )
    held = (done.code, done.error.get("code")) == (Exit.TRY_AGAIN, "lease-held")
    injection.expect(
        held, f"`{name}` beside a driver ended with {_said(done)}, not 75 (lease-held)"
    )
    return f"`{name}` beside it exited 75 (lease-held)" if held else ""


def _ends_well(baseline: Baseline, injection: Injection, driver: Process) -> None:
    code = _go_on(baseline, injection.project, driver)
    injection.expect(
        code == Exit.DONE,
        f"the first driver ended with {code} ({outcome(injection.project).get('outcome')})",
    )


def _go_on(baseline: Baseline, project: Project, driver: Process) -> int | None:
    (project.root / "go").touch()
    return process.code_of(driver, baseline.patience)


def _delete_commit(baseline: Baseline, fault: Fault) -> Injection:
    project = baseline.scratch.copy(baseline.project, fault.name)
    injection = Injection(
        project,
        f"batch {baseline.batches} of {baseline.batches}, done",
        recovery=(run_words(project),),
    )
    home = Path(project.layout.checkpoint(generations.generation(project.layout)))
    last = Checkpoint(str(home)).last_commit
    file, version = (
        home / "commits" / str(last),
        project.layout.tables.target.version,
    )
    (file.parent / f".{last}.crc").unlink(missing_ok=True)
    file.unlink()

    def replayed() -> None:
        if file.exists():
            injection.fired = f"commits/{last} was removed, and is there again"
        now = project.layout.tables.target.version
        injection.expect(
            now == version,
            f"the batch ran again and the table went from version {version} to {now}",
        )

    injection.last = replayed
    return injection


def _lose_checkpoint(baseline: Baseline, fault: Fault) -> Injection:
    project = baseline.scratch.copy(baseline.project, fault.name)
    injection = Injection(project, "all batches done", recovery=(run_words(project),))
    home = Path(project.layout.checkpoint(generations.generation(project.layout)))
    aside = project.root / "checkpoint-put-aside"
    home.rename(aside)
    before = kept(project.layout)
    done = baseline.run(project)
    named = (done.code, done.error.get("code")) == (Exit.NEEDS_PERSON, "checkpoint-missing")
    if not injection.expect(
        named, f"a run without its checkpoint ended with {_said(done)}, not 78 (checkpoint-missing)"
    ):
        return injection
    injection.fired = "the run without it exited 78 (checkpoint-missing)"
    injection.expect(kept(project.layout) == before, "the run that was refused changed files")
    reset = (*shlex.split(str(done.error["next"][0]))[1:], "--yes")
    if baseline.keyed:
        injection.recovery, injection.reset = (reset, *injection.recovery), True
        return injection
    refusal = baseline.call(project, *reset)
    doubled = (refusal.code, refusal.error.get("code")) == (Exit.NEEDS_PERSON, "reset-would-double")
    injection.expect(
        doubled,
        f"a reset of an append table ended with {_said(refusal)}, not 78 (reset-would-double)",
    )
    # the recovery that the error names: restore the whole checkpoint from a copy
    aside.rename(home)
    return injection


def _said(done: Ended) -> str:
    return f"{done.code} ({done.error.get('code') or 'no error'})"


_ACTS: Mapping[str, Callable[[Baseline, Fault], Injection]] = {
    "kill-at-random": _at_random,
    "stop": _stop,
    "two-drivers": _two_drivers,
    "zombie": _zombie,
    "delete-commit": _delete_commit,
    "lose-checkpoint": _lose_checkpoint,
    "compact-beside-drain": _compact_beside,
}
