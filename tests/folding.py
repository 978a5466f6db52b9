"""The history of events in plain Python: a loop over the events of a key with one open row, by the
rules in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def fold(
    events: Iterable[Row],
    keys: Sequence[str],
    sequence_by: Sequence[str],
    tracked: Sequence[str],
    deletes: Callable[[Row], bool] = lambda event: False,
) -> list[Row]:
    """Return the rows of the history: the columns of the events, `start` and `end`, each a tuple of
    the sequence.
    """
    found: list[Row] = []
    moments: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Row]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for event in events:
        at = tuple(event[name] for name in sequence_by)
        if None not in at:
            moments[tuple(event[name] for name in keys)][at].append(event)
    for by_sequence in moments.values():
        open_row: Row | None = None
        for at in sorted(by_sequence):
            same = by_sequence[at]
            if any(map(deletes, same)):
                if open_row is not None:
                    open_row["end"] = at
                open_row = None
                continue
            newest = max(same, key=_content)
            if open_row is not None and all(
                _equal(open_row[name], newest[name]) for name in tracked
            ):
                open_row.update(newest)
                continue
            if open_row is not None:
                open_row["end"] = at
            open_row = newest | {"start": at, "end": None}
            found.append(open_row)
    return found


def _content(event: Row) -> list[Any]:
    """Columns by name, NULL least and NaN greatest."""
    values = (event[name] for name in sorted(event))
    return [
        (one is not None, one != one, 0 if one is None or one != one else one) for one in values
    ]


def _equal(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)
