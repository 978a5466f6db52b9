"""Records merged column by column in plain Python: a loop over each column of a key, by the rules
in words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def merge(
    records: Iterable[Row],
    keys: Sequence[str],
    sequence_by: Sequence[str],
    whole: Sequence[str],
    partial: Sequence[str],
    deletes: Callable[[Row], bool],
) -> list[tuple[Row, dict[str, Any]]]:
    """Return the rows, each with the sequence that every partial column is from, whatever the order
    of the records.
    """
    by_key: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for record in records:
        by_key[tuple(record[name] for name in keys)].append(record)
    found = []
    for key, own in by_key.items():

        def at(record: Row) -> tuple[Any, ...]:
            return tuple(record[name] for name in sequence_by)

        dead = [at(record) for record in own if deletes(record)]
        alive = [one for one in own if not deletes(one) and (not dead or at(one) > max(dead))]
        if not alive:
            continue
        newest = max(alive, key=lambda one: (at(one), [_ordered(one[name]) for name in whole]))
        row = {name: newest[name] for name in (*sequence_by, *whole)} | dict(
            zip(keys, key, strict=True)
        )
        sequences = {}
        for name in partial:
            said = [one for one in alive if one[name] is not None]
            best = max(said, key=lambda one: (at(one), _ordered(one[name])), default=None)
            row[name] = best and best[name]
            if best is not None:
                sequences[name] = at(best)
        found.append((row, sequences))
    return found


def _ordered(value: Any) -> tuple[bool, bool, Any]:
    """NULL is least and NaN greatest; maps sort as their JSON."""
    if isinstance(value, list):
        return True, False, json.dumps(dict(value), separators=(",", ":"))
    return value is not None, value != value, 0 if value is None or value != value else value
