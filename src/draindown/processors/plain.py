"""A fold as plain as it can be: one key, row by row, whole sessions. It shares no state, chunk or
order with `fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from draindown.processors.fold import Calls, Made, Shape

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def folded(
    calls: Calls, rows: Iterable[tuple[int, dict[str, Any]]], most: int = 1
) -> Iterator[Made]:
    """Yield what the rows of one key give. `rows`: with their times in microseconds, in order.
    `most`: rows of a call.

    Raises `fold.Failed`.
    """
    start, last, position, state = None, 0, 0, None
    waiting: list[dict[str, Any]] = []

    def given() -> Iterator[dict[str, Any]]:
        nonlocal state, waiting
        if waiting:
            made, state = calls.process(state, waiting)
            waiting = []
            yield from made

    for time, row in rows:
        if start is None or time - last > calls.shape.gap:
            if start is not None:
                for one in (*given(), *calls.running(state)):
                    position += 1
                    yield Made(start, position, one)
            start, position, state = time, 0, None
        waiting.append(row)
        last = time
        if len(waiting) >= most:
            for one in given():
                position += 1
                yield Made(start, position, one)
    if start is not None:
        for one in (*given(), *calls.running(state)):
            position += 1
            yield Made(start, position, one)


def by_key(
    shape: Shape,
    rows: Iterable[Mapping[str, Any]],
    by: Sequence[str],
    order_by: Sequence[str],
    most: int = 1,
) -> list[dict[str, Any]]:
    """Return the rows of the result of all keys, as dicts, in any order of the given rows.

    Rows are ordered by `order_by`, whose first column is their time, then by their other columns by
    name; NULL is last. Those without a time give nothing.
    """
    calls, found = Calls(shape), list[dict[str, Any]]()
    for key, own in ordered(rows, by, order_by).items():
        found += [named(made, key, by, own[0][1][order_by[0]]) for made in folded(calls, own, most)]
    return found


def ordered(
    rows: Iterable[Mapping[str, Any]], by: Sequence[str], order_by: Sequence[str]
) -> dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]]:
    """Return the rows by key, with their times in microseconds, in order. Arguments as for
    `by_key`.
    """
    keyed, time = dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]](), order_by[0]
    for row in rows:
        if row[time] is not None:
            keyed.setdefault(tuple(row[name] for name in by), []).append(
                (micros(row[time]), dict(row))
            )
    for own in keyed.values():
        names = [*order_by, *(name for name in sorted(own[0][1]) if name not in {*by, *order_by})]
        own.sort(key=lambda one, names=names: [_placed(one[1][name]) for name in names])  # type: ignore[misc]
    return keyed


def named(made: Made, key: Sequence[Any], by: Sequence[str], time: datetime) -> dict[str, Any]:
    """Return a row of the result. `time`: of any row of the source, which shows whether times have
    a zone.
    """
    start = moment(made.start, time.tzinfo is not None)
    return {
        **dict(zip(by, key, strict=True)),
        "session_start": start,
        "position": made.position,
        **made.row,
    }


def micros(time: datetime) -> int:
    """Return a time in microseconds since 1970. One without a zone counts as UTC."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(
        microseconds=1
    )


def moment(micros: int, zone: bool) -> datetime:
    """Return the inverse of `micros`. `zone`: whether the time has a time zone, which is UTC
    then.
    """
    found = _EPOCH + timedelta(microseconds=micros)
    return found if zone else found.replace(tzinfo=None)


def _placed(value: Any) -> tuple[Any, ...]:
    """Return what compares as Spark orders values: NULL last, NaN after any number, NULL within a
    value first.
    """
    if value is None:
        return (2,)
    return (1, True) if value != value else (0, _within(value))


def _within(value: Any) -> Any:
    """Return a value whose parts compare, of which NULL is the least."""
    if isinstance(value, dict):
        return [_within(one) for one in value.values()]
    if isinstance(value, list | tuple):
        return [(0,) if one is None else (1, _within(one)) for one in value]
    return value
