"""Pin unread offsets in slices, one commit of the intake each, before anything reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from draindown.lake.home import FlowHome
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.kafka import positions
from draindown.sources.kafka.offsets import Span, take
from draindown.sources.port import Forecast, Taken


def most_records(bound: Bound, record_bytes: float) -> int:
    """Return the most records of a slice under a bound; at least one."""
    by_bytes = max(1, int(bound.bytes / max(record_bytes, 1.0)))
    return by_bytes if bound.units is None else min(by_bytes, bound.units)


def forecast(records: int, bound: Bound, record_bytes: float) -> Forecast:
    """Return the slices that so many records make."""
    return Forecast(-(-records // most_records(bound, record_bytes)), round(records * record_bytes))


class KafkaPinning:
    """The `Pinning` of unread offsets. Slices take from every partition in proportion, so that all
    end together.
    """

    def __init__(
        self,
        *,
        layout: FlowHome,
        generation: int,
        spans: Sequence[Span],
        now: datetime,
        record_bytes: float,
        oldest: Mapping[tuple[str, int], datetime],
        gaps: Sequence[str],
        before: int,
    ) -> None:
        self._layout, self._generation, self._now = layout, generation, now
        self._left: Sequence[Span] = spans
        self._bytes, self._oldest, self._gaps = record_bytes, oldest, gaps
        self._before = before
        self.taken = Taken()

    def forecast(self, bound: Bound) -> Forecast:
        """Return the slices that what is left will make."""
        return forecast(sum(span.size for span in self._left), bound, self._bytes)

    def take(self, bound: Bound, most: int | None = None) -> bool:
        """Write at most `most` slices. Return whether offsets are left. Raises TransientError
        `lease-lost`.
        """
        most_of_one, before = most_records(bound, self._bytes), self.taken.slices
        # the first slice of a generation is written even without offsets: it says where the
        # partitions begin
        while (self._any_left or self._begins) and (
            most is None or self.taken.slices - before < most
        ):
            some, self._left = take(self._left, most_of_one)
            self._append(some)
        return self._any_left

    @property
    def _any_left(self) -> bool:
        return any(span.size for span in self._left)

    @property
    def _begins(self) -> bool:
        return bool(self._left) and self._before + self.taken.slices == 0

    def _append(self, spans: Sequence[Span]) -> None:
        rows = positions.rows(
            spans,
            record_bytes=self._bytes,
            oldest=self._oldest,
            now=self._now,
            compacted=self._gaps,
        )
        number = self._before + self.taken.slices + 1
        intake.append(self._layout, self._generation, positions.OWN, rows, self._now, number)
        records = sum(span.size for span in spans)
        self.taken = Taken(self.taken.slices + 1, self.taken.units + records)

    def close(self) -> None:
        """Nothing is in flight."""
