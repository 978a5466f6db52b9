"""A flow as it stands at one moment: what it keeps for itself, each table's log and each document opened once.

A drain at work writes intake, quarantine, tombstones, target, ledger and the checkpoint's commits, in this order. The
checkpoint is therefore listed first, and `integrity.damaged` opens the logs from the ledger on: nothing seems to lack
what something that was read earlier tells of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from draindown.flow import generations, integrity, resume
from draindown.flow.checkpoint import Checkpoint
from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import Snapshot
from draindown.lake.transactions import app_id


@dataclass(frozen=True)
class FlowState(Snapshot):
    """A frozen view of one flow. Functions that take a layout see the flow through it as it stood.

    It is for what only looks: whoever writes asks the plain layout again afterwards.
    """

    @classmethod
    def of(cls, layout: FlowLayout) -> Self:
        """The state of a flow from now on. The checkpoint is listed at once, all else when it is asked for."""
        state = super().of(layout)
        if generations.generation_if_told(layout) is not None:
            state.live_checkpoint.look()
        return state

    @cached_property
    def live_generation(self) -> int:
        """The live generation. Raises TerminalError `generation-damaged`."""
        return generations.generation(self)

    @cached_property
    def live_checkpoint(self) -> Checkpoint:
        """The checkpoint of the live generation. Raises like `live_generation`."""
        return Checkpoint(self.checkpoint(self.live_generation))

    @property
    def newest_batch(self) -> int | None:
        """The newest batch of the live generation, from the source, that the target holds."""
        return self.table_log(self.table).last(app_id(self, self.live_generation, "rows"))

    def refuse_damage(self) -> None:
        """Refuse to go on where a table forgot something. Raises like `integrity.refuse`."""
        integrity.refuse(self)

    def refuse_behind(self) -> None:
        """Refuse to go on where the target lost batches. Raises like `resume.refuse_behind`."""
        resume.refuse_behind(self, self.live_checkpoint, self.live_generation)

    def refuse_other_intake(self) -> None:
        """Refuse to go on over another intake. Raises like `resume.refuse_other_intake`."""
        resume.refuse_other_intake(self, self.live_checkpoint)
