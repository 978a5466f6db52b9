"""Whether a derived flow derives its table as its slices were pinned for."""

from __future__ import annotations

from collections.abc import Sequence

from draindown.base.errors import TerminalError
from draindown.lake.layout import FlowLayout
from draindown.sources.slices import Unit
from draindown.spec.table_source import TableSource


def refuse_derivation(layout: FlowLayout, source: TableSource, units: Sequence[Unit], tried: str) -> None:
    """Refuse a flow whose table was computed by another derivation than it has now. `tried`: a verb.

    Raises TerminalError `derivation-changed`, or `processor-missing` where the code that it names is not there.
    """
    if all(unit.row["derivation"] == source.derivation for unit in units):
        return
    if source.lacking:
        raise TerminalError(
            "processor-missing",
            tried=f"{tried} flow {layout.flow} of pipeline {layout.pipeline}",
            found=source.lacking,
            changed="nothing",
            next=f"draindown run {layout.pipeline} --flow {layout.flow}   # once the file is there",
        )
    raise TerminalError(
        "derivation-changed",
        tried=f"{tried} flow {layout.flow} of pipeline {layout.pipeline}",
        found="its derivation, its sources, its columns or the code that it names are not those that the table was "
        "computed by",
        changed="nothing",
        next=[
            f"draindown reset {layout.pipeline} --flow {layout.flow}   # compares the whole table, in place",
            f"draindown rebuild {layout.pipeline} --flow {layout.flow}   # computes it beside, and swaps it in",
            f"put them back as they were, then: draindown run {layout.pipeline}",
        ],
    )
