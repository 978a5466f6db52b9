"""As whom the drivers of a flow send to its sinks: the name of the lake, and an epoch for each
driver.

sinks/epochs/NNNNNNNNNN.json the epochs of drivers that sent, as revisions: each gets a number of its own
sinks/lake                   the name under which the sinks know the lake, wherever it was copied or moved to since
"""

from __future__ import annotations

from collections.abc import Callable

from draindown.base.clock import now
from draindown.lake.home import FlowHome
from draindown.lake.revisions import Revisions


def next_epoch(layout: FlowHome, check: Callable[[], None]) -> int:
    """Claim the next epoch of the flow's sinks. Call it under the lease; `check` raises once that
    is lost.

    Each driver gets another one, greater than those before. It is at least the time in seconds, so
    that a lake that was restored from an older copy does not begin below what its sinks know.
    """
    layout.make()
    layout.sinks_name.create({"lake": layout.lake})
    revisions = Revisions(
        f"{layout.sinks}/epochs",
        lambda content: int(content["epoch"]),
        "epochs go on from the clock",
    )
    while True:
        number, last = revisions.newest()
        epoch = max((last or 0) + 1, int(now().timestamp()))
        check()
        if revisions.put(number, {"epoch": epoch}):
            return epoch


def lake_name(layout: FlowHome) -> str:
    """Return the name under which sinks know the lake: its address when the flow first sent to one.

    Another address of the same lake, a mount elsewhere or a lake that was moved, changes nothing at
    the sinks: neither what they recorded, nor which drivers they exclude. Raises TerminalError
    `state-damaged`.
    """
    without = "the sinks then know the lake by its address now, and must be resynced"
    name = layout.sinks_name.parsed(lambda content: str(content["lake"]), without=without)
    return name or layout.lake
