"""What the copies of a flow read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.lake.home import FlowHome

BATCHES = 3
"""The least number of batches to aim for: a first, a middle and a last one."""


@dataclass(frozen=True)
class Wanted:
    """Whose input is wanted, and how much. `home`: where copies go; `root`: the project root of the
    flow.
    """

    home: Path
    spec: PipelineSpec
    flow: str
    root: Path
    max_files: int
    max_bytes: int

    def nothing(self, found: str) -> TerminalError:
        """Return the error of a flow without input for a drill."""
        return TerminalError(
            "nothing-to-drill",
            tried=f"find input for a drill of flow {self.flow} of pipeline {self.spec.pipeline}",
            found=found,
            next=f"draindown plan {self.spec.pipeline}",
        )


def _nothing(_: FlowHome) -> None:
    """Put nothing into a copy."""


@dataclass(frozen=True)
class Material:
    """What the copies read.

    Attributes:
        source: fields of the copies' source.
        told: how much it is, in words.
        read: paths of files that are only read.
        plant: puts into a copy what it needs to read this and nothing else.
    """

    source: Mapping[str, Any]
    told: str
    read: tuple[str, ...] = ()
    plant: Callable[[FlowHome], None] = _nothing
