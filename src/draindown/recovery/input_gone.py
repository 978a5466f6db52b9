"""The refusal to read input again that is gone or changed, worded alike for reset, rebuild and
replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.lake.home import FlowHome
from draindown.sources.port import Source

Code = Literal["reset-input-gone", "rebuild-input-gone", "replay-input-gone"]
NO_ROWS = "their rows will be missing"


def input_gone(
    code: Code, source: Source, *, tried: str, found: str, without: Sequence[str]
) -> TerminalError:
    """Return the error `code`. `found`: which input is gone. `without`: the commands that do
    without it.
    """
    return TerminalError(code, tried=tried, found=found, next=[*_bringing_back(source), *without])


def _bringing_back(source: Source) -> Sequence[str]:
    return () if source.named is None else source.named.bringing_back


def regained(source: Source, lacking: Mapping[str, Finding]) -> tuple[str, ...]:
    """Return the commands after which less is missing; none where the source says how to bring
    units back.
    """
    return (
        ()
        if _bringing_back(source)
        else tuple(dict.fromkeys(one.next for one in lacking.values() if one.next))
    )


def nothing_to_rebuild(layout: FlowHome, found: str, next: list[str]) -> TerminalError:
    """Return the error for a rebuild that would have nothing to read."""
    tried = f"rebuild flow {layout.flow} of pipeline {layout.pipeline}"
    return TerminalError(
        "nothing-to-rebuild", tried=tried, found=found, changed="nothing", next=next
    )
