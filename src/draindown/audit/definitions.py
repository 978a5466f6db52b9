"""What batches wrote down that they went by: how the newest one did, and which columns were there
at which record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from draindown.audit.context import AuditContext
from draindown.base.ranges import Range, holds, joined


class Definitions:
    """The definitions of the batches whose rows the table has: of histories, and of rows that are
    merged by columns.
    """

    def __init__(self, context: AuditContext) -> None:
        told = [batch for batch in context.batches if batch.history]
        newest = max(
            told,
            key=lambda batch: (batch.generation, batch.table_version, batch.batch),
            default=None,
        )
        self.newest: Mapping[str, Sequence[str]] | None = (
            None if newest is None else json.loads(newest.history)
        )
        """Columns by what they are for, such as `tracked`; None if no batch says so."""
        columns = {
            batch.place: {*chain.from_iterable(json.loads(batch.history).values())}
            for batch in told
        }
        self._logs, self._known = context.logs, dict[str, dict[str, list[Range]]]()
        for name in context.flow.columns:
            if all(name in had for had in columns.values()):
                continue
            ranges = defaultdict[str, list[Range]](list)
            for place in (place for place, had in columns.items() if name in had):
                for one in context.inputs.get(place, []):
                    ranges[one.unit].append((one.start, one.until))
            self._known[name] = {unit: joined(some) for unit, some in ranges.items()}

    def later(self, unit: str, position: int = 0) -> tuple[str, ...]:
        """Return the columns of the contract that no batch knew which read this record.

        Of a unit with several logs nobody knows whose positions a batch read: all that came later
        are.
        """
        several = self._logs.get(unit, 1) > 1
        return tuple(
            name
            for name, at in self._known.items()
            if several or not holds(at.get(unit, []), position)
        )
