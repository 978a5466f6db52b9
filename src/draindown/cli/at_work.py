"""What `report` shows beside a run: who holds the lease if that is another run, and a rebuild that
is half done.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from draindown.base.formatting import printable

if TYPE_CHECKING:
    from draindown.config.models import PipelineSpec
    from draindown.lease.holder import Card


def others(
    spec: PipelineSpec, flows: Sequence[str], shown: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Yield, per flow, who holds its lease if that is another run than those shown, and how far it
    is.

    `shown`: flow and id of each run.
    """
    from draindown.flow.at_work import lease_holder_so_far

    for flow in flows:
        holder, so_far = lease_holder_so_far(spec.layout(flow))
        if holder is not None and (flow, holder.run_id) not in shown:
            yield at_work(f"{spec.pipeline}/{flow}", holder, so_far)


def at_work(where: str, holder: Card, so_far: str) -> str:
    """Return who holds the lease of a flow, how far its run is, and the command that shows it.

    `where`: the flow, as PIPELINE/FLOW.
    """
    command = f"draindown report {where} --run {shlex.quote(holder.run_id)}"
    told = f"{where}  {holder}; {so_far}"
    return f"AT WORK  {printable(told)}\n          next: {printable(command)}"


def half_rebuilt(spec: PipelineSpec, flows: Sequence[str]) -> Iterator[str]:
    """Yield, per flow, what an unfinished rebuild left, and the command that helps."""
    from draindown.recovery import half_rebuilt

    for flow in flows:
        if left := half_rebuilt.found(spec.layout(flow)):
            told = f"{spec.pipeline}/{flow}  {left.code}: {left.found}"
            yield f"REBUILD  {printable(told)}\n          next: {printable(left.next)}"
