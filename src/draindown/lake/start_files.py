"""What one start of a step leaves in the lake, beside each other in the directory of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draindown.lake.documents import Document


@dataclass(frozen=True)
class StartFiles:
    """The files of one start: they share a path up to their ending, `stem`. `opened`: as of
    `Document`.
    """

    stem: str
    opened: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def report(self) -> Document:
        """The report."""
        return Document(f"{self.stem}.json", self.opened)

    @property
    def log(self) -> str:
        """Path of the driver log: Spark's output and stack traces."""
        return f"{self.stem}.log"

    @property
    def at_work(self) -> str:
        """Path of the JSON file that names the process.

        The process locks the file while it runs, and deletes it when it ends normally.
        """
        return f"{self.stem}.at-work"

    @property
    def taken(self) -> Document:
        """Which task took over the report of a start of another driver."""
        return Document(f"{self.stem}.taken", self.opened)

    @property
    def announced(self) -> Document:
        """Which task made the asset event about what the start published."""
        return Document(f"{self.stem}.announced", self.opened)
