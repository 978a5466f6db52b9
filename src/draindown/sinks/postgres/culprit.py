"""Find the row that the server refuses: a constraint or a trigger names a value or nothing, seldom
the row's key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from draindown.sinks.postgres.failures import is_refusal
from draindown.sinks.values import JSON, ready

if TYPE_CHECKING:
    import psycopg

_BEFORE = "draindown_before"


class RowRefused(Exception):
    """The server refused a row: `error` is what it said, `key` the row's key as JSON."""

    def __init__(self, error: psycopg.Error, key: str) -> None:
        self.error, self.key = error, key
        super().__init__(str(error))


def attempt(
    opened: psycopg.Connection[Any],
    rows: int,
    work: Callable[[int | None], None],
    key: Callable[[int], str],
) -> None:
    """Do `work` of all rows (None), in a transaction; if the server refuses a row, find the first
    such row.

    `work` does that of the first N of `rows` rows, N by N in a fixed order. `key` returns the key
    of row N from 0, as JSON. Rows are tried by halves, log2 of `rows` times. Nothing of the work is
    left then.

    Raises RowRefused, and every other error of the client.
    """
    from psycopg import Error

    opened.execute(f"savepoint {_BEFORE}")
    try:
        work(None)
    except Error as error:
        if not is_refusal(error):
            raise
        opened.execute(f"rollback to savepoint {_BEFORE}")
        raise RowRefused(error, key(_first_refused(opened, rows, work))) from error
    opened.execute(f"release savepoint {_BEFORE}")


def _first_refused(
    opened: psycopg.Connection[Any], rows: int, work: Callable[[int | None], None]
) -> int:
    from psycopg import Error

    taken, refused = 0, rows
    while refused - taken > 1:
        some = (taken + refused) // 2
        try:
            work(some)
            taken = some
        except Error as error:
            if not is_refusal(error):
                raise
            refused = some
        opened.execute(f"rollback to savepoint {_BEFORE}")
    return refused - 1


def text_of(values: Mapping[str, pa.Array]) -> str:
    """Return a key as JSON, as a person types it: `values` has an array of one value per column."""
    return JSON({name: ready(value)[0] for name, value in values.items()})
