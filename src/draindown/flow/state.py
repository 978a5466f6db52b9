"""A view of a flow's state: checkpoint, tables and documents, each opened once.

A running drain writes intake, quarantine, tombstones, target, ledger and the checkpoint's commits,
in this order. The snapshot therefore lists the checkpoint first, and `integrity.damaged` opens the
logs starting with the ledger. No log then seems to lack what something read before it refers to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from draindown.flow import generations, integrity, resume
from draindown.flow.checkpoint import Checkpoint
from draindown.lake.home import FlowHome


@dataclass(frozen=True)
class FlowState(FlowHome):
    """A view of one flow that also remembers its checkpoint.

    For readers only.
    """

    @classmethod
    def of(cls, layout: FlowHome) -> Self:
        """Return a view of a flow, which has opened nothing but the listing of the checkpoint. A
        state is returned unchanged.
        """
        if isinstance(layout, cls):
            return layout
        state = cls(**{**vars(layout), "_opened": {}})
        if generations.generation_if_told(state) is not None:
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
        """Newest source batch of the live generation that the target holds; None if there is
        none.
        """
        return self.tables.target.last(self.app_id(self.live_generation, "rows"))

    def refuse_damage(self) -> None:
        """Refuse to continue if a table lost commits. Raises like `integrity.refuse`."""
        integrity.refuse(self)

    def refuse_behind(self) -> None:
        """Refuse to continue if the target lost batches. Raises like `resume.refuse_behind`."""
        resume.refuse_behind(self, self.live_checkpoint, self.live_generation)

    def refuse_other_intake(self) -> None:
        """Refuse to continue on another intake. Raises like `resume.refuse_other_intake`."""
        resume.refuse_other_intake(self, self.live_checkpoint, self.live_generation)
