"""The fold over a partition of rows, sorted by key and order, as Arrow batches: a key streams,
however long it is.

Executors get this module by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from draindown.processors.fold import Calls, Failed, KeyFold, Made, Shape, State

RESUMED, MICROS = "_resumed", "_micros"
"""Columns of the input after the key: the state to go on from, in the first row of a key that has
one and which is no row of the source; the time of a row in microseconds, NULL there.
"""
IS_STATE, START, AT, NUMBER, POSITION, STAYS, SNAPSHOT, ROW = (
    *("_is_state", "_start", "_at", "_number", "_position", "_stays", "_state", "_row"),
)
"""Columns of the output after the key."""
_BATCH = 10_000
Batches = Iterable[pa.RecordBatch]

FAILED = "[PROCESSOR_FAILED]"
"""What an error of a fold begins with, in what Spark says of it. A trace shows this name in its
place.
"""


def folding(
    shape: Shape, keys: int, schema: pa.Schema
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function of a partition. `keys`: the number of key columns. `schema`: of the
    output.
    """

    def folded(batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from Partition(shape, keys, schema).batches(batches)

    return folded


class Partition:
    """The fold over a partition, key after key."""

    def __init__(self, shape: Shape, keys: int, schema: pa.Schema) -> None:
        self._calls, self._keys, self._schema = Calls(shape), keys, schema
        self._made: list[Made] = []
        self._states: list[State] = []
        self._of_made: list[tuple[Any, ...]] = []
        self._of_states: list[tuple[Any, ...]] = []
        self._key: tuple[Any, ...] | None = None
        self._fold: KeyFold | None = None

    def batches(self, given: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the results. Raises Failed, with the key."""
        for batch in given:
            if batch.num_rows:
                yield from self._of_batch(batch)
        yield from self._within(self._end)
        if self._made or self._states:
            yield self._flushed()

    def _of_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        width = self._keys
        keys = list(zip(*(pylist(batch.column(at)) for at in range(width)), strict=True))
        resumed, times = batch.column(width), batch.column(width + 1).to_pylist()
        names = batch.schema.names[width + 2 :]
        try:
            values = [pylist(batch.column(at)) for at in range(width + 2, batch.num_columns)]
        except Beyond as error:
            raise Failed(f"{FAILED} {_named(keys[error.at])}: {error}") from error
        rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        at = 0
        for until in _ends(keys):
            if self._fold is None or keys[at] != self._key:
                yield from self._within(self._end)
                since = _state(resumed[at].as_py()) if times[at] is None else None
                self._key, self._fold = (
                    keys[at],
                    KeyFold(self._calls, self._made, self._states, since),
                )
                at += since is not None
            if at < until:
                yield from self._within(partial(self._fold.feed, times[at:until], rows[at:until]))
            at = until

    def _within(self, step: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Do a step of the present key, and yield what is ready."""
        try:
            step()
        except Failed as error:
            raise Failed(f"{FAILED} {_named(self._key or ())}: {error}") from error
        self._of_made += [self._key or ()] * (len(self._made) - len(self._of_made))
        self._of_states += [self._key or ()] * (len(self._states) - len(self._of_states))
        if len(self._made) + len(self._states) >= _BATCH:
            yield self._flushed()

    def _end(self) -> None:
        if self._fold is not None:
            self._fold.end()

    def _flushed(self) -> pa.RecordBatch:
        made, states = self._made, self._states
        keys = [*self._of_made, *self._of_states]
        columns: list[Sequence[Any]] = [[key[at] for key in keys] for at in range(self._keys)]
        rows, rest = [None] * len(made), [None] * len(states)
        columns += [
            [*(False for _ in made), *(True for _ in states)],
            [*(one.start for one in made), *(one.start for one in states)],
            [*rows, *(one.at for one in states)],
            [*rows, *(one.number for one in states)],
            [*(one.position for one in made), *(one.position for one in states)],
            [*rows, *(one.stays for one in states)],
            [*rows, *(one.state for one in states)],
            [*(one.row for one in made), *rest],
        ]
        found = [
            pa.array(column, field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        for one in (made, states, self._of_made, self._of_states):
            one.clear()
        return pa.RecordBatch.from_arrays(found, schema=self._schema)


class Beyond(Failed):
    """A column has a time in row `at` that Python's calendar, of the years 1 to 9999, does not
    have.
    """

    def __init__(self, at: int) -> None:
        super().__init__("a time is not within the years 1 to 9999, which are all that Python has")
        self.at = at


def pylist(column: pa.Array) -> list[Any]:
    """Return the values as `to_pylist` does, which is slow for times: it asks pandas, value by
    value.
    """
    if not pa.types.is_timestamp(column.type) or column.type.unit != "us":
        return list(column.to_pylist())
    epoch = datetime(1970, 1, 1, tzinfo=UTC if column.type.tz else None)
    micros = column.cast(pa.int64()).to_pylist()
    found: list[Any] = []
    try:
        for one in micros:
            found.append(None if one is None else epoch + timedelta(microseconds=one))
    except OverflowError:
        raise Beyond(len(found)) from None
    return found


def _ends(keys: Sequence[tuple[Any, ...]]) -> Iterator[int]:
    """Yield where the rows of each key end."""
    for at in range(1, len(keys)):
        if keys[at] != keys[at - 1]:
            yield at
    yield len(keys)


def _state(given: dict[str, Any]) -> State:
    names = (START, AT, NUMBER, POSITION, STAYS, SNAPSHOT)
    return State(*(given[name] for name in names))


def _named(key: Sequence[Any]) -> str:
    return f"key ({', '.join(map(repr, key))})"
