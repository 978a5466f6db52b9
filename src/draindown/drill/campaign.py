"""A drill campaign: for each flow and fault inject, recover, and compare with the baseline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from draindown.audit.recount import audit
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import Exit
from draindown.base.formatting import age, count
from draindown.config.models import PipelineSpec
from draindown.drill import baseline, faults, injections, isolation
from draindown.drill.baseline import Baseline, Tell
from draindown.drill.faults import Fault
from draindown.drill.injections import Injection
from draindown.drill.result import Drill, Result
from draindown.drill.sandbox import prepare, refuse_bad_place
from draindown.lake.table import UNREADABLE

_HINDERED = ("fault-does-not-apply", "nothing-to-drill")


@dataclass(frozen=True)
class Campaign:
    """What to drill.

    `fault`: a name or `faults.ALL`; `scratch`: the directory for the copies; `max_files`,
    `max_bytes`: how much input is copied; `times`, `seed`: of `kill-at-random`.
    """

    spec: PipelineSpec
    flows: Sequence[str]
    fault: str
    root: Path
    scratch: Path
    max_files: int
    max_bytes: int
    times: int = 3
    seed: int = 1


def play(campaign: Campaign, tell: Tell) -> Drill:
    """Inject the faults into copies of the flows, in `campaign.scratch`, which must be empty or
    absent.

    The directory is removed if there is nothing to drill. After other errors it is kept for
    inspection.

    Raises TerminalError `unknown-fault`, `fault-does-not-apply`, `nothing-to-drill`,
    `control-failed`, `scratch-in-use`, `source-missing`.
    """
    if campaign.fault != faults.ALL:
        faults.named(campaign.fault)
    refuse_bad_place(campaign.scratch, campaign.spec, campaign.flows, campaign.root)
    campaign.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _drill(campaign, tell)
    except DraindownError as error:
        if error.code in (*_HINDERED, "source-missing"):
            shutil.rmtree(campaign.scratch)
        raise


def _drill(campaign: Campaign, tell: Tell) -> Drill:
    """Drill all flows. A flow that can't be drilled is reported; it is an error only if no other
    can.
    """
    results: list[Result] = []
    wrong: list[str] = []
    unlooked: list[str] = []
    hindered: list[TerminalError] = []
    for flow in campaign.flows:
        try:
            found, (changed, unsure) = _flow(campaign, flow, tell)
        except TerminalError as error:
            if error.code not in _HINDERED:
                raise
            hindered.append(error)
            unlooked.append(f"flow {flow}: {error.code}: {error.found}")
            continue
        results += found
        wrong += changed
        unlooked += unsure
    if hindered and not results:
        raise hindered[0]
    return Drill(
        campaign.spec.pipeline,
        str(campaign.scratch),
        tuple(results),
        tuple(wrong),
        tuple(unlooked),
        seed=campaign.seed,
    )


def _flow(
    campaign: Campaign, flow: str, tell: Tell
) -> tuple[list[Result], tuple[list[str], list[str]]]:
    here = campaign.scratch / flow
    scratch = prepare(
        here,
        campaign.spec,
        flow,
        campaign.root,
        max_files=campaign.max_files,
        max_bytes=campaign.max_bytes,
    )
    before = isolation.look(campaign.spec.layout(flow), scratch.material.read)
    tell(f"{campaign.spec.pipeline}/{flow}: {scratch.material.told}, copies in {here}")
    this = baseline.make(scratch, times=campaign.times, seed=campaign.seed, tell=tell)
    tell(f"{count(this.batches, 'batch', 'batches')} in {age(this.seconds)}")
    wanted = faults.chosen(campaign.fault, this.conditions)
    return list(_each(this, wanted)), before.changes()


def _each(this: Baseline, wanted: Sequence[Fault]) -> Iterator[Result]:
    for number, fault in enumerate(wanted, 1):
        this.tell(f"{number}/{len(wanted)} {fault.name}: {fault.does}")
        result = _inject(this, fault)
        this.tell(
            f"{number}/{len(wanted)} {fault.name}: {result.fired or 'NOT FIRED'}; {_short(result)}"
        )
        yield result


def _short(result: Result) -> str:
    return (
        f"held, {age(result.recovery)} to recover"
        if result.held
        else f"DID NOT HOLD: {'; '.join(result.wrong)}"
    )


def _inject(this: Baseline, fault: Fault) -> Result:
    """Inject one fault, run the documented recovery, compare with the baseline."""
    injection = injections.inject(this, fault)
    seconds = list(_recover(this, injection))  # runs the commands
    unlooked = _compare(this, injection)
    return Result(
        flow=this.scratch.flow,
        fault=fault.name,
        where=injection.where,
        fired=injection.fired,
        wrong=tuple(injection.wrong),
        unlooked=unlooked,
        commands=baseline.words_of(injection.recovery),
        recovery=round(sum(seconds), 3),
        project=str(injection.project.root),
    )


def _compare(this: Baseline, injection: Injection) -> tuple[str, ...]:
    """Compare the copy with the control, and audit it. Returns what the audit could not check."""
    try:
        injection.last()
        injection.wrong += this.control.differences(injection.project.layout, reset=injection.reset)
        return _audit(injection)
    except (*UNREADABLE, duckdb.Error, ValueError, LookupError) as error:
        injection.wrong.append(
            f"the copy can't be read: {type(error).__name__}: {str(error)[:300]}"
        )
        return ()


def _recover(this: Baseline, injection: Injection) -> Iterator[float]:
    """Run each command of the recovery once, and yield its seconds. Stops at the first that
    fails.
    """
    for words in injection.recovery:
        done = this.call(injection.project, *words)
        said = done.error.get("code") or done.err.strip()[-200:]
        yield done.seconds
        if not injection.expect(
            done.code == Exit.DONE, f"`draindown {words[0]}` ended with {done.code}: {said}"
        ):
            return


def _audit(injection: Injection) -> tuple[str, ...]:
    """Audit the copy. Returns what the audit could not check."""
    try:
        found = audit(injection.project.spec, injection.project.flow, root=injection.project.root)
    except DraindownError as error:
        injection.wrong.append(f"audit: {error.code}: {error.found}")
        return ()
    kinds = sorted({residue.kind for residue in found.residues})
    injection.expect(
        found.clean, f"audit: {count(len(found.residues), 'residue')}: {', '.join(kinds)}"
    )
    return tuple(found.unlooked)
