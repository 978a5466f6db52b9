"""What an unfinished rebuild is in the middle of, and what helps: for doctor, reports and pages."""

from __future__ import annotations

from dataclasses import dataclass

from draindown.base.errors import DraindownError
from draindown.flow import generations
from draindown.lake.home import FlowHome
from draindown.lease import holder as lease_holder
from draindown.recovery import rebuild
from draindown.recovery.rebuild import Rebuild


@dataclass(frozen=True)
class HalfRebuilt:
    """The state of an unfinished rebuild. `is_wrong`: whether the same command can't finish it."""

    code: str
    found: str
    next: str
    is_wrong: bool = False


def found(layout: FlowHome) -> HalfRebuilt | None:
    """Return what a rebuild that nobody works on left; None if there is none, or a driver holds the
    lease.
    """
    try:
        begun = rebuild.unfinished(layout)
        if begun is None or lease_holder.holder(layout, patient=False) is not None:
            return None
        return state_of(layout, begun, generations.generation(layout))
    except DraindownError as error:  # of one of the documents that say what it left
        return HalfRebuilt(error.code, error.found, next(iter(error.next), ""), is_wrong=True)


def state_of(layout: FlowHome, begun: Rebuild, live: int) -> HalfRebuilt:
    """Return the state of a rebuild that was begun and that nobody works on. `live`: the live
    generation.
    """
    again = f"draindown rebuild {layout.pipeline}/{layout.flow}"
    if rebuild.is_swapped(layout, begun):
        text = (
            f"generation {begun.generation} is in the table's place; the next run does what follows"
        )
        return HalfRebuilt("rebuild-unsettled", text, f"draindown run {layout.pipeline}")
    if begun.previous != live:
        text = f"it was begun beside generation {begun.previous}; it can't take the place of {live}"
        return HalfRebuilt("rebuild-overtaken", text, f"{again} --abort --yes", is_wrong=True)
    if not begun.contract:
        text = f"what generation {begun.generation} has is not known: its note is torn, or an abort was cut short"
        return HalfRebuilt("rebuild-damaged", text, f"{again} --abort --yes", is_wrong=True)
    text = f"generation {begun.generation} has not read everything yet; the live table is as it was"
    return HalfRebuilt("rebuild-unfinished", text, f"{again} --yes   # or --abort --yes")
