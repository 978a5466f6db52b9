"""The limits of a step: after which batch it ends, because it was asked to stop or reached a bound
of its request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace


class Stop:
    """A request to end a running drain before its next batch. `why` is the reason, None while there
    is no request.
    """

    def __init__(self) -> None:
        self.why: str | None = None

    def ask(self, why: str) -> None:
        """Request the end before the next batch. The first reason is kept. Safe in a signal
        handler.
        """
        self.why = self.why or why


@dataclass(frozen=True)
class Bounds:
    """The bounds that end a step between two batches.

    `max_batches`: number of batches; `max_duration`: seconds after `begun`; `begun`: monotonic time, by
    default now.
    """

    stop: Stop
    max_batches: float | None = None
    max_duration: float | None = None
    begun: float = field(default_factory=time.monotonic)

    def from_now(self) -> Bounds:
        """Return the same bounds with the duration counted from now."""
        return replace(self, begun=time.monotonic())

    def reached(self, done: int) -> str | None:
        """Return why no batch may start after `done` batches, or None. A duration always allows the
        first batch.
        """
        if self.stop.why:
            return self.stop.why
        if self.max_batches is not None and done >= self.max_batches:
            return f"max_batches: {self.max_batches:.0f}"
        if (
            self.max_duration is not None
            and done
            and time.monotonic() - self.begun > self.max_duration
        ):
            return f"max_duration: {self.max_duration:.0f} s"
        return None
