"""How each fault is injected into a copy, with the proof that it happened and the problems seen at once."""

from __future__ import annotations

import random
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draindown.base.exits import Exit
from draindown.drill import process
from draindown.drill.baseline import Stage, batches_done, outcome, run_words
from draindown.drill.faults import Fault
from draindown.drill.isolation import differing, kept
from draindown.drill.process import Ended, Process
from draindown.drill.sandbox import Project
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint
from draindown.lake import delta

_SOON = 60.0
"""Seconds within which a killed process must end."""


@dataclass
class Blow:
    """The result of one injection.

    `fired`: the proof that the fault happened, empty without one; `wrong`: problems; `recovery`: arguments of the
    commands that recover; `reset`: the recovery starts a new generation; `last`: the part of the proof that is taken
    after the recovery.
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


def strike(stage: Stage, fault: Fault) -> Blow:
    """Make a copy and inject the fault into it."""
    act = _ACTS.get(fault.name, _kill)
    return act(stage, fault)


def _blow(stage: Stage, project: Project, step: str) -> Blow:
    where = f"batch {stage.nth} of {stage.batches}, {step}"
    return Blow(project, where, recovery=(run_words(project),))


def _kill(stage: Stage, fault: Fault) -> Blow:
    step = fault.step
    blow = _blow(stage, stage.scratch.project(fault.name), step)
    if step == "intake":
        blow.where = "after intake"
    _, blow.fired = _killed(stage, blow.project, (step, stage.batch), version=stage.version)
    return blow


def _killed(stage: Stage, project: Project, place: tuple[str, int], **more: int) -> tuple[int | None, str]:
    """Run a driver that is to be killed at `place`. Returns its exit code and the proof that it died there."""
    with stage.driver(project, place, "kill", **more) as driver:
        jvm = process.struck(project.root, driver, stage.patience)
        code = process.code_of(driver, _SOON if jvm else stage.patience)
        dead = jvm is not None and process.gone(jvm)
    if code != -signal.SIGKILL or not dead:
        return code, ""
    return code, f"driver and JVM {jvm} ended by signal 9 at `{place[0]}`"


def _at_random(stage: Stage, fault: Fault) -> Blow:
    """Kill drivers at random times, drawn from the time that the rest of the input takes.

    A driver that ends before its time does not count: its lake is compared, deleted, and drained anew.
    """
    project = stage.scratch.project(fault.name)
    blow = Blow(project, f"{stage.times} times, seed {stage.seed}", recovery=(run_words(project),))
    draw, proofs = random.Random(stage.seed), []
    for _ in range(3 * stage.times + 3):
        left = 1 - batches_done(project) / stage.batches
        after = max(1, int(1000 * stage.seconds * left * draw.random()))
        code, proof = _killed(stage, project, ("time", after))
        if proof:
            proofs.append(f"{after / 1000:.1f} s")
        elif not blow.expect(code == Exit.DONE, f"a driver that was to be killed after {after} ms ended with {code}"):
            return blow
        else:
            blow.wrong += stage.control.differences(project.layout)
            shutil.rmtree(project.spec.lake)
        if len(proofs) == stage.times:
            blow.fired = f"killed by signal 9 after {', '.join(proofs)} of draining"
            return blow
    return blow


def _stop(stage: Stage, fault: Fault) -> Blow:
    nth = min(stage.nth, stage.batches - 1)
    project = stage.scratch.project(fault.name)
    blow = Blow(project, f"batch {nth} of {stage.batches}, read", recovery=(run_words(project),))
    with stage.driver(project, ("read", nth - 1), "term") as driver:
        if process.struck(project.root, driver, stage.patience) is None:
            return blow
        code = process.code_of(driver, stage.patience)
    done = batches_done(project)
    ended = outcome(project).get("outcome")
    if blow.expect(code == Exit.DONE, f"told to stop, it ended with {code} ({ended})"):
        blow.fired = f"SIGTERM; it ended with 0 ({ended}) after {done} batches" if ended == "bounded" else ""
        blow.expect(done == nth, f"{done} batches are done where {nth} were to be")
    return blow


def _two_drivers(stage: Stage, fault: Fault) -> Blow:
    blow = _blow(stage, stage.scratch.project(fault.name), "read")
    with stage.driver(blow.project, ("read", stage.batch), "wait") as driver:
        if process.struck(blow.project.root, driver, stage.patience) is None:
            return blow
        blow.fired = _refused(stage, blow, run_words(blow.project))
        _ends_well(stage, blow, driver)
    return blow


def _zombie(stage: Stage, fault: Fault) -> Blow:
    step = "remembered" if stage.keyed else "quarantined"
    blow = _blow(stage, stage.scratch.project(fault.name), step)
    with stage.driver(blow.project, (step, stage.batch), "wait") as driver:
        jvm = process.struck(blow.project.root, driver, stage.patience)
        if jvm is None:
            return blow
        process.signal_group(driver, signal.SIGSTOP)
        if not process.frozen(jvm):
            return blow
        proof = _refused(stage, blow, run_words(blow.project))
        blow.fired = f"JVM {jvm} was stopped; {proof}" if proof else ""
        process.signal_group(driver, signal.SIGCONT)
        _ends_well(stage, blow, driver)
    return blow


def _compact_beside(stage: Stage, fault: Fault) -> Blow:
    blow = _blow(stage, stage.scratch.project(fault.name), "read")
    compact = ("compact", blow.project.spec.pipeline, "--flow", blow.project.flow, "--force")
    with stage.driver(blow.project, ("read", stage.batch), "wait") as driver:
        if process.struck(blow.project.root, driver, stage.patience) is None:
            return blow
        blow.fired = _refused(stage, blow, compact)
        _ends_well(stage, blow, driver)
    blow.recovery = (compact, *blow.recovery)
    return blow


def _refused(stage: Stage, blow: Blow, words: Sequence[str]) -> str:
    """Run a command while another driver holds the lease; it must change nothing. Returns the proof of its refusal."""
    before = kept(blow.project.layout)
    done = stage.call(blow.project, *words)
    moved = differing(before, kept(blow.project.layout))
    name = words[0]
    blow.expect(not moved, f"`{name}` beside a driver changed {len(moved)} files, {moved[0] if moved else ''}")
    held = (done.code, done.error.get("code")) == (Exit.TRY_AGAIN, "lease-held")
    blow.expect(held, f"`{name}` beside a driver ended with {_said(done)}, not 75 (lease-held)")
    return f"`{name}` beside it exited 75 (lease-held)" if held else ""


def _ends_well(stage: Stage, blow: Blow, driver: Process) -> None:
    code = _go_on(stage, blow.project, driver)
    blow.expect(code == Exit.DONE, f"the first driver ended with {code} ({outcome(blow.project).get('outcome')})")


def _go_on(stage: Stage, project: Project, driver: Process) -> int | None:
    (project.root / "go").touch()
    return process.code_of(driver, stage.patience)


def _delete_commit(stage: Stage, fault: Fault) -> Blow:
    project = stage.scratch.copy(stage.project, fault.name)
    blow = Blow(project, f"batch {stage.batches} of {stage.batches}, done", recovery=(run_words(project),))
    home = Path(project.layout.checkpoint(generations.generation(project.layout)))
    last = Checkpoint(str(home)).last_commit
    file, version = home / "commits" / str(last), delta.version(project.layout.table)
    (file.parent / f".{last}.crc").unlink(missing_ok=True)
    file.unlink()

    def replayed() -> None:
        if file.exists():
            blow.fired = f"commits/{last} was removed, and is there again"
        now = delta.version(project.layout.table)
        blow.expect(now == version, f"the batch ran again and the table went from version {version} to {now}")

    blow.last = replayed
    return blow


def _lose_checkpoint(stage: Stage, fault: Fault) -> Blow:
    project = stage.scratch.copy(stage.project, fault.name)
    blow = Blow(project, "all batches done", recovery=(run_words(project),))
    home = Path(project.layout.checkpoint(generations.generation(project.layout)))
    aside = project.root / "checkpoint-put-aside"
    home.rename(aside)
    before = kept(project.layout)
    done = stage.run(project)
    named = (done.code, done.error.get("code")) == (Exit.NEEDS_PERSON, "checkpoint-missing")
    if not blow.expect(named, f"a run without its checkpoint ended with {_said(done)}, not 78 (checkpoint-missing)"):
        return blow
    blow.fired = "the run without it exited 78 (checkpoint-missing)"
    blow.expect(kept(project.layout) == before, "the run that was refused changed files")
    reset = (*shlex.split(str(done.error["next"][0]))[1:], "--yes")
    if stage.keyed:
        blow.recovery, blow.reset = (reset, *blow.recovery), True
        return blow
    refusal = stage.call(project, *reset)
    doubled = (refusal.code, refusal.error.get("code")) == (Exit.NEEDS_PERSON, "reset-would-double")
    blow.expect(doubled, f"a reset of an append table ended with {_said(refusal)}, not 78 (reset-would-double)")
    aside.rename(home)  # the recovery that the error names: restore the whole checkpoint from a copy
    return blow


def _said(done: Ended) -> str:
    return f"{done.code} ({done.error.get('code') or 'no error'})"


_ACTS: Mapping[str, Callable[[Stage, Fault], Blow]] = {
    "kill-at-random": _at_random,
    "stop": _stop,
    "two-drivers": _two_drivers,
    "zombie": _zombie,
    "delete-commit": _delete_commit,
    "lose-checkpoint": _lose_checkpoint,
    "compact-beside-drain": _compact_beside,
}
