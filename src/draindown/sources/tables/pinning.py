"""Pin the slices of a derived flow, and the columns that its intake has for them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from draindown.lake.home import FlowHome
from draindown.sources import intake
from draindown.sources.batch_size import Bound
from draindown.sources.port import Forecast, Taken

OWN = pa.schema(
    [
        *(("table_id", pa.string()), ("derivation", pa.string()), ("fill", pa.bool_())),
        *(
            ("changes", pa.bool_()),
            ("rows", pa.int64()),
            ("bucket", pa.int64()),
            ("buckets", pa.int64()),
        ),
        *(("decided_from", pa.int64()), ("decided", pa.int64()), ("division", pa.string())),
        ("committed_ms", pa.int64()),
    ]
)
"""Columns of the intake beside those of `Unit`, whose `start` is exclusive, and -1 for a fill,
which reads all.

`division`: the `Division` of the buckets, as text. `committed_ms`: the time of the commit `until`
by the table's log, which tells it from another one of that number.
"""
Rows = list[dict[str, Any]]
"""The units of one slice, as rows of the intake: one for each table."""


class TablesPinning:
    """Pins slices that are known."""

    def __init__(
        self, layout: FlowHome, generation: int, slices: list[Rows], now: datetime
    ) -> None:
        self._layout, self._generation, self._now, self._left = layout, generation, now, slices
        self.taken = Taken()

    def forecast(self, bound: Bound) -> Forecast:  # noqa: ARG002
        """Return the buckets that are left."""
        return Forecast(
            len(self._left), sum(unit["unpacked"] for units in self._left for unit in units)
        )

    def take(self, bound: Bound, most: int | None = None) -> bool:  # noqa: ARG002
        """Pin all buckets, however many: the slices of one range belong together."""
        number = intake.newest(self._layout, self._generation)
        for units in self._left:
            number += 1
            intake.append(self._layout, self._generation, OWN, units, self._now, number)
        self.taken = Taken(
            self.taken.slices + len(self._left), self.taken.units + sum(map(len, self._left))
        )
        self._left = []
        return False

    def close(self) -> None:
        """Nothing is open."""
