"""Abort a rebuild: its staging area goes, and the live table stays as it is."""

from __future__ import annotations

from collections.abc import Callable

from draindown.base.errors import TerminalError
from draindown.lake import directories
from draindown.lake.home import FlowHome
from draindown.recovery import rebuild
from draindown.recovery.rebuild import Rebuild, refuse_half_swapped, unfinished


def abort(layout: FlowHome, check: Callable[[], None]) -> int:
    """Discard a rebuild in progress, and return its generation number. It is never used again.

    Call it under the lease; `check` raises once that is lost, and is called before each write. A
    retry after a crash continues the abort. Raises TerminalError like `abortable`.
    """
    begun = abortable(layout)
    check()
    rebuild.give_up(layout, begun)
    home = layout.of_generation(begun.generation)
    for name in directories.names(home):
        check()
        directories.remove(f"{home}/{name}")
    check()
    rebuild.forget_given_up(layout)
    return begun.generation


def abortable(layout: FlowHome) -> Rebuild:
    """Return the rebuild that an abort would discard. Raises TerminalError `nothing-to-abort`,
    `rebuild-unfinished`.
    """
    begun, tried = (
        unfinished(layout),
        f"abort the rebuild of flow {layout.flow} of pipeline {layout.pipeline}",
    )
    if begun is None:
        doctor = f"draindown doctor {layout.pipeline}/{layout.flow}"
        raise TerminalError("nothing-to-abort", tried=tried, found="none is begun", next=doctor)
    refuse_half_swapped(layout, tried)
    return begun
