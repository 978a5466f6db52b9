"""When a step must begin no further batch: it was asked to stop, or reached what its request allows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace


class Stop:
    """Asks a running drain to end before its next batch; safe to call from a signal handler."""

    def __init__(self) -> None:
        self.why: str | None = None

    def ask(self, why: str) -> None:
        """End before the next batch; the first reason stays."""
        self.why = self.why or why


@dataclass(frozen=True)
class Bounds:
    """What ends a step between two batches. `deadline` in seconds after `begun`, which is now."""

    stop: Stop
    max_batches: float | None = None
    deadline: float | None = None
    begun: float = field(default_factory=time.monotonic)

    def from_now(self) -> Bounds:
        """The same, with the deadline's time beginning now."""
        return replace(self, begun=time.monotonic())

    def reached(self, done: int) -> str | None:
        """Why no batch may begin after `done` of them, or None. A deadline lets the first one begin."""
        if self.stop.why:
            return self.stop.why
        if self.max_batches is not None and done >= self.max_batches:
            return f"max_batches: {self.max_batches:.0f}"
        if self.deadline is not None and done and time.monotonic() - self.begun > self.deadline:
            return f"deadline: {self.deadline:.0f} s"
        return None
