"""The fold of one key's rows in order, session by session, from its beginning or from a state that
was kept.

A session is a run of rows each at most `gap` after the one before. The fold begins anew with
each. Executors get this module by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from draindown.processors.values import Record, record

KEPT_EVERY = 10_000
"""Rows of a session after which a state is kept, so that a late row costs at most so many rows
before it.
"""


class Processor(Protocol):
    """A user's class. It may have `running` as well. Each call is of a new instance."""

    def process(
        self, state: dict[str, Any] | None, rows: list[dict[str, Any]]
    ) -> tuple[Any, dict[str, Any] | None]:
        """Return the rows that the next rows of a session give, and the state after them.

        `state`: the state before, None at the beginning of a session. `rows`: some of its next
        rows, one or more, in order. How many is not determined, so the result must not depend on
        it.
        """


class Failed(Exception):
    """A fold that can't go on. The text says where and why."""


class Made(NamedTuple):
    """A row of the result. `start`: of its session, microseconds since 1970. `position`: within it,
    from 1.
    """

    start: int
    position: int
    row: dict[str, Any]


class State(NamedTuple):
    """The state of a fold after all rows of a session up to and including `at`, so that it can go
    on from there.

    Attributes:
        start, at: time of the session's first row and of the last row that is in, microseconds
            since 1970.
        number: rows of the session that are in.
        position: that of the newest row that they gave, 0 without any.
        stays: whether the state is kept too once the session goes on. Which states do is a function
            of the session's rows alone.
        state: what the user's class returned.
    """

    start: int
    at: int
    number: int
    position: int
    stays: bool
    state: dict[str, Any] | None


@dataclass(frozen=True)
class Shape:
    """A processor: its class, and what the pipeline file says of it.

    Attributes:
        make: the user's class.
        gap: the longest gap within a session, in microseconds.
        columns, state: Spark SQL types by column of the rows, and of the state.
        every: rows of a session after which a state is kept.
    """

    make: Callable[[], Any]
    gap: int
    columns: Mapping[str, str]
    state: Mapping[str, str]
    every: int = KEPT_EVERY


@dataclass
class Calls:
    """Calls of the user's class, whose results are checked."""

    shape: Shape
    exact_row: Record = field(init=False)
    exact_state: Record = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the checks."""
        self.exact_row = record(self.shape.columns, "a row")
        self.exact_state = record(self.shape.state, "the state")
        self._has_running = hasattr(self.shape.make, "running")

    def process(
        self, state: dict[str, Any] | None, rows: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Return what rows give, and the state after them. Raises Failed."""
        try:
            given = self.shape.make().process(state, rows)
            if not isinstance(given, tuple) or len(given) != 2:
                raise TypeError(f"process must return (rows, state), not {type(given).__name__}")
            made, after = given
            found = [self.exact_row(one) for one in made]
            return found, None if after is None else self.exact_state(after)
        except Exception as error:
            raise Failed(f"process: {_reason(error)}") from error

    def running(self, state: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Return the rows of a session that ends, or is at its end so far. Raises Failed."""
        if state is None or not self._has_running:
            return []
        try:
            return [
                self.exact_row(one) for one in self.shape.make().running(self.exact_state(state))
            ]
        except Exception as error:
            raise Failed(f"running: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the error with the innermost line of the user's file, if there is one."""
    at, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/jobs/processors/" in code.co_filename:
            at = f" ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{at}"


class KeyFold:
    """The fold of one key, which is fed its rows in order. Adds to `made` and `states`; `end`
    completes both.

    `since`: the state to go on from. A state with the time of the last row of a session shows where
    the session ends.
    """

    def __init__(
        self, calls: Calls, made: list[Made], states: list[State], since: State | None = None
    ) -> None:
        self._calls, self._made, self._states = calls, made, states
        self._start: int | None = None if since is None else since.start
        self._last = 0 if since is None else since.at
        self._number, self._position = (0, 0) if since is None else (since.number, since.position)
        self._state = None if since is None else since.state
        self._stays = since is not None and since.stays
        self._next = self._mark()
        # states that were kept must not change with what the class does to its own
        self._is_kept = since is not None

    def feed(self, times: Sequence[int], rows: list[dict[str, Any]]) -> None:
        """Take rows with their times in microseconds. Raises Failed."""
        at, gap = 0, self._calls.shape.gap
        while at < len(times):
            time = times[at]
            if self._start is None or time - self._last > gap:
                self.end()
                self._begin(time)
            elif self._stays and time != self._last:
                self._keep()
                self._next, self._stays = self._mark(), False
            until = self._until(times, at)
            self._process(rows[at:until] if until - at < len(rows) else rows, times[until - 1])
            at = until

    def end(self) -> None:
        """End the session that the rows so far are in, if there is one."""
        if self._start is None:
            return
        self._keep()
        for row in self._calls.running(self._state):
            self._emit(row)
        self._start = None

    def _begin(self, time: int) -> None:
        self._start, self._last, self._number, self._position = time, time, 0, 0
        self._state, self._stays, self._is_kept, self._next = (
            None,
            False,
            False,
            self._calls.shape.every,
        )

    def _mark(self) -> int:
        """Return the number of rows from which on the next state is kept."""
        every = self._calls.shape.every
        return (self._number // every + 1) * every

    def _until(self, times: Sequence[int], at: int) -> int:
        """Return the end of the rows that one call may take: of one session, up to a state that is
        to be kept.
        """
        gap, last, due = self._calls.shape.gap, times[at], at + self._next - self._number
        for until in range(at + 1, len(times)):
            time = times[until]
            if time != last and (time - last > gap or until >= due):
                return until
            last = time
        return len(times)

    def _process(self, rows: list[dict[str, Any]], last: int) -> None:
        given = self._state
        if self._is_kept and given is not None:
            given, self._is_kept = self._calls.exact_state(given), False
        number = len(rows)
        made, self._state = self._calls.process(given, rows)
        for row in made:
            self._emit(row)
        self._last, self._number = last, self._number + number
        self._stays = self._number >= self._next

    def _emit(self, row: dict[str, Any]) -> None:
        assert self._start is not None
        self._position += 1
        self._made.append(Made(self._start, self._position, row))

    def _keep(self) -> None:
        assert self._start is not None
        found = State(
            self._start, self._last, self._number, self._position, self._stays, self._state
        )
        self._states.append(found)
        self._is_kept = True
