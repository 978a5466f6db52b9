"""Test processors in plain Python: no Spark, no lake, no pipeline file.

    from draindown.testing import Processor
    from processors.baskets import Basket  # with jobs/ on the path

    basket = Processor(Basket, group_by=["user_id"], order_by=["event_time"], gap="30 minutes",
                       columns={"session_end": "timestamp", "events": "bigint"},
                       state={"session_end": "timestamp", "events": "bigint"})
    assert basket.rows(events) == [...]
    basket.check(events)

A transform is a function of a Spark frame, and is tested as one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from draindown.config import processor as spec
from draindown.processors import plain
from draindown.processors.fold import Calls, KeyFold, Made, Shape, State

Row = Mapping[str, Any]


class Processor:
    """A class of jobs/processors/ with what the pipeline file says of it, under the same names and
    in the same words.

    Raises ValueError where the file would be refused.
    """

    def __init__(
        self,
        make: type,
        *,
        group_by: Sequence[str],
        order_by: Sequence[str],
        gap: str,
        columns: Mapping[str, str],
        state: Mapping[str, str],
    ) -> None:
        said: dict[str, Any] = {"group_by": list(group_by), "order_by": list(order_by), "gap": gap}
        said |= {
            "class": f"module.{make.__name__}",
            "columns": dict(columns),
            "state": dict(state),
        }
        self._part = spec.Processor.model_validate(said)
        self._shape = self._part.shape(make)

    def rows(self, given: Iterable[Row]) -> list[dict[str, Any]]:
        """Return the rows of the table, sorted by their keys as text, for rows of the source in any
        order.

        Times are datetimes with a time zone for `timestamp`, without for `timestamp_ntz`. Raises
        `fold.Failed` with the reason for rows that the class can't take, and for values that it may
        not give.
        """
        return self._sorted(
            plain.by_key(
                self._shape, copy.deepcopy(list(given)), self._part.group_by, self._part.order_by
            )
        )

    def check(self, given: Iterable[Row], rounds: int = 20, seed: int = 0) -> None:
        """Fold rows in other divisions and orders, and from states. Raises AssertionError if one
        differs.

        It finds classes that keep something elsewhere than in the state, whose result depends on
        how many rows a call gets, or whose state does not hold all that they need.
        """
        rows, draw = list(given), Random(seed)
        expected = self.rows(rows)
        for _ in range(rounds):
            draw.shuffle(rows)
            most = draw.randint(1, len(rows) + 1)
            found = plain.by_key(
                self._shape, copy.deepcopy(rows), self._part.group_by, self._part.order_by, most
            )
            self._hold(
                self._sorted(found),
                expected,
                f"calls of at most {most} rows, keys in another order",
            )
            every = draw.randint(1, 5)
            self._hold(
                self._sorted(self._resumed(rows, every)),
                expected,
                f"going on from a state each {every} rows",
            )

    def _resumed(self, rows: Sequence[Row], every: int) -> list[dict[str, Any]]:
        """Fold each key piece by piece, each from the state before it, as batches do."""
        by, calls = self._part.group_by, Calls(Shape(**{**vars(self._shape), "every": every}))
        found: list[dict[str, Any]] = []
        for key, own in plain.ordered(copy.deepcopy(rows), by, self._part.order_by).items():
            made, since, done = dict[tuple[int, int], Made](), None, 0
            while done < len(own):
                end = min(done + every, len(own))
                # a state is of all rows of a time
                while end < len(own) and own[end][0] == own[end - 1][0]:
                    end += 1
                some, states = list[Made](), list[State]()
                fold = KeyFold(calls, some, states, since)
                fold.feed([time for time, _ in own[done:end]], [row for _, row in own[done:end]])
                fold.end()
                if since is not None:
                    made = {
                        at: one for at, one in made.items() if at <= (since.start, since.position)
                    }
                made |= {(one.start, one.position): one for one in some}
                since, done = states[-1], end
            found += [
                plain.named(one, key, by, own[0][1][self._part.time]) for one in made.values()
            ]
        return found

    def _sorted(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(
            rows,
            key=lambda row: [str(row[name]) for name in self._part.keys[:-1]] + [row["position"]],
        )

    def _hold(self, found: list[dict[str, Any]], expected: list[dict[str, Any]], how: str) -> None:
        if found == expected:
            return
        pairs = [(one, other) for one, other in zip(found, expected, strict=False) if one != other]
        first = (
            f"{pairs[0][0]} instead of {pairs[0][1]}"
            if pairs
            else f"{len(found)} rows instead of {len(expected)}"
        )
        raise AssertionError(
            f"{self._part.of.rpartition('.')[2]} depends on more than state and rows; {how}: {first}"
        )
