"""Runs at work, as `report` shows them: the holder of a lease that is not the run shown, and runs without a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from draindown.base.errors import next_steps
from draindown.base.formatting import printable
from draindown.runs.request import STEPS

if TYPE_CHECKING:
    from draindown.runs.report import StepReport
    from draindown.spec.models import PipelineSpec


def others(spec: PipelineSpec, flows: Sequence[str], shown: Sequence[StepReport]) -> Iterator[str]:
    """Yield, per flow, who holds its lease if that is another run than the one shown, and how far it is."""
    from draindown.flow.at_work import lease_holder_so_far

    for flow in flows:
        holder, so_far = lease_holder_so_far(spec.layout(flow))
        if holder is None or any(step.flow == flow and step.run_id == holder.run_id for step in shown):
            continue
        command = f"draindown report {spec.pipeline} --flow {flow} --run {shlex.quote(holder.run_id)}"
        told = f"{spec.pipeline}/{flow}  {holder}; {so_far}"
        yield f"AT WORK  {printable(told)}\n          next: {printable(command)}"


def unreported(spec: PipelineSpec, flows: Sequence[str], run: str) -> Iterator[str]:
    """Yield what is known of steps of the run that left no report: they are at work, or their driver died."""
    from draindown.flow.at_work import look

    steps = [step for step in STEPS if step != "plan"]
    for flow, step in product(flows, steps):
        found = look(spec.layout(flow), spec.pipeline, run, step)
        if found.state in ("at work", "died"):
            lines = [f"UNFINISHED  {spec.pipeline}/{flow}  {found}"]
            lines += [f"          {label}: {step}" for label, step in next_steps({"next": found.next})]
            yield "\n".join(map(printable, lines))
