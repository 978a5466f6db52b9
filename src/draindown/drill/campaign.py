"""A drill campaign: for each flow and fault inject, recover, and compare with the baseline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from draindown.audit.recount import audit
from draindown.base.errors import DraindownError, TerminalError
from draindown.base.exits import Exit
from draindown.base.formatting import age, count, size
from draindown.drill import baseline, faults, injections, isolation
from draindown.drill.baseline import Stage, Tell
from draindown.drill.faults import Fault
from draindown.drill.injections import Blow
from draindown.drill.result import Drill, Result
from draindown.drill.sandbox import prepare
from draindown.sources.files.listing import directory_of
from draindown.spec.models import PipelineSpec

_HINDERED = ("fault-does-not-apply", "nothing-to-drill", "no-such-batch")


@dataclass(frozen=True)
class Order:
    """What to drill.

    `fault`: a name or `faults.ALL`; `scratch`: the directory for the copies; `max_files`, `max_bytes`: how much input
    is copied; `batch`: the batch for the faults, from 1, None for the middle one; `times`, `seed`: of `kill-at-random`.
    """

    spec: PipelineSpec
    flows: Sequence[str]
    fault: str
    root: Path
    scratch: Path
    max_files: int
    max_bytes: int
    batch: int | None = None
    times: int = 3
    seed: int = 1


def play(order: Order, tell: Tell) -> Drill:
    """Inject the faults into copies of the flows, in `order.scratch`, which must be empty or absent.

    The directory is removed if there is nothing to drill. After other errors it is kept for inspection.

    Raises TerminalError `unknown-fault`, `fault-does-not-apply`, `nothing-to-drill`, `control-failed`,
    `no-such-batch`, `scratch-in-use`, `source-missing`.
    """
    if order.fault != faults.ALL:
        faults.named(order.fault)
    _refuse_bad_place(order)
    order.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _drill(order, tell)
    except DraindownError as error:
        if error.code in (*_HINDERED, "source-missing"):
            shutil.rmtree(order.scratch)
        raise


def _drill(order: Order, tell: Tell) -> Drill:
    """Drill all flows. A flow that can't be drilled is reported; it is an error only if no other can."""
    results: list[Result] = []
    wrong: list[str] = []
    unlooked: list[str] = []
    hindered: list[TerminalError] = []
    for flow in order.flows:
        try:
            found, (changed, unsure) = _flow(order, flow, tell)
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
        order.spec.pipeline, str(order.scratch), tuple(results), tuple(wrong), tuple(unlooked), seed=order.seed
    )


def _flow(order: Order, flow: str, tell: Tell) -> tuple[list[Result], tuple[list[str], list[str]]]:
    here = order.scratch / flow
    scratch = prepare(here, order.spec, flow, order.root, max_files=order.max_files, max_bytes=order.max_bytes)
    before = isolation.look(order.spec.layout(flow), [file.path for file in scratch.inputs])
    total = sum(file.size for file in scratch.inputs)
    tell(f"{order.spec.pipeline}/{flow}: {count(len(scratch.inputs), 'file')}, {size(total)}, copies in {here}")
    this = baseline.make(scratch, nth=order.batch, times=order.times, seed=order.seed, tell=tell)
    tell(f"{count(this.batches, 'batch', 'batches')} in {age(this.seconds)}")
    wanted = faults.chosen(order.fault, this.there)
    return list(_each(this, wanted)), before.changes()


def _each(this: Stage, wanted: Sequence[Fault]) -> Iterator[Result]:
    for number, fault in enumerate(wanted, 1):
        this.tell(f"{number}/{len(wanted)} {fault.name}: {fault.does}")
        result = _one(this, fault)
        this.tell(f"{number}/{len(wanted)} {fault.name}: {result.fired or 'NOT FIRED'}; {_short(result)}")
        yield result


def _short(result: Result) -> str:
    return f"held, {age(result.recovery)} to recover" if result.held else f"DID NOT HOLD: {'; '.join(result.wrong)}"


def _one(this: Stage, fault: Fault) -> Result:
    """Inject one fault, run the documented recovery, compare with the baseline."""
    blow = injections.strike(this, fault)
    seconds = sum(_recover(this, blow))
    unlooked = _compare(this, blow)
    return Result(
        flow=this.scratch.flow,
        fault=fault.name,
        where=blow.where,
        fired=blow.fired,
        wrong=tuple(blow.wrong),
        unlooked=unlooked,
        commands=baseline.words_of(blow.recovery),
        recovery=round(seconds, 3),
        project=str(blow.project.root),
    )


def _compare(this: Stage, blow: Blow) -> tuple[str, ...]:
    """Compare the copy with the control, and audit it. Returns what the audit could not check."""
    try:
        blow.last()
        blow.wrong += this.control.differences(blow.project.layout, reset=blow.reset)
        return _audit(blow)
    except Exception as error:  # noqa: BLE001 - a lake that can't be read is a finding of the drill
        blow.wrong.append(f"the copy can't be read: {type(error).__name__}: {str(error)[:300]}")
        return ()


def _recover(this: Stage, blow: Blow) -> Iterator[float]:
    """Run each command of the recovery once, and yield its seconds. Stops at the first that fails."""
    for words in blow.recovery:
        done = this.call(blow.project, *words)
        said = done.error.get("code") or done.err.strip()[-200:]
        yield done.seconds
        if not blow.expect(done.code == Exit.DONE, f"`draindown {words[0]}` ended with {done.code}: {said}"):
            return


def _audit(blow: Blow) -> tuple[str, ...]:
    """Audit the copy. Returns what the audit could not check."""
    try:
        found = audit(blow.project.spec, blow.project.flow, root=blow.project.root)
    except DraindownError as error:
        blow.wrong.append(f"audit: {error.code}: {error.found}")
        return ()
    kinds = sorted({residue.kind for residue in found.residues})
    blow.expect(found.clean, f"audit: {count(len(found.residues), 'residue')}: {', '.join(kinds)}")
    return tuple(found.unlooked)


def _refuse_bad_place(order: Order) -> None:
    """Raise TerminalError `scratch-in-use` if the directory is not empty, or if it and the lake or a source overlap."""
    scratch = order.scratch.resolve()
    sources = [directory_of(order.spec.flow(flow).source, order.root) for flow in order.flows]
    taken = [place.resolve() for place in (Path(order.spec.lake), *sources)]
    crossed = [place for place in taken if scratch.is_relative_to(place) or place.is_relative_to(scratch)]
    if not crossed and not (scratch.exists() and any(scratch.iterdir())):
        return
    raise TerminalError(
        "scratch-in-use",
        tried=f"make copies of pipeline {order.spec.pipeline} in {scratch}",
        found=f"one of it and {crossed[0]} lies in the other" if crossed else "the directory is not empty",
        next="draindown drill all PIPELINE --scratch NEW_DIRECTORY",
    )
