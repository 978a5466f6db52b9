"""The error of a flow that derives its table otherwise than it was computed."""

from __future__ import annotations

from draindown.base.errors import TerminalError
from draindown.config.table_source import TableSource
from draindown.lake.home import FlowHome

CHANGED = (
    "its derivation, its sources, its columns or the code that it names are not "
    "those that the table was computed by"
)


def derivation_changed(
    layout: FlowHome, source: TableSource, tried: str, found: str = CHANGED
) -> TerminalError:
    """Return the error for a flow whose table was computed by another derivation than it has now.
    `tried`: a verb.

    It is `processor-missing` where the code that the flow names is not there.
    """
    if source.lacking:
        return TerminalError(
            "processor-missing",
            tried=f"{tried} flow {layout.flow} of pipeline {layout.pipeline}",
            found=source.lacking,
            changed="nothing",
            next=f"draindown run {layout.pipeline}/{layout.flow}   # once the file is there",
        )
    return TerminalError(
        "derivation-changed",
        tried=f"{tried} flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        changed="nothing",
        next=[
            f"draindown reset {layout.pipeline}/{layout.flow}   # compares the whole table, in place",
            f"draindown rebuild {layout.pipeline}/{layout.flow}   # computes it beside, and swaps it in",
            f"put them back as they were, then: draindown run {layout.pipeline}",
        ],
    )
