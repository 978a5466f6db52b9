"""Name the error of a table that refuses a write because somebody restricted it: append-only, or
with a constraint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from draindown.base.errors import TerminalError
from draindown.base.formatting import shortened
from draindown.lake.home import FlowHome
from draindown.spark.causes import causes

_APPEND_ONLY = "DELTA_CANNOT_MODIFY_APPEND_ONLY"
_CONSTRAINT = "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"
_NOT_NULL = "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"
_NAME = re.compile(r"CHECK constraint (\S+)")


@contextmanager
def named(layout: FlowHome, path: str) -> Iterator[None]:
    """Replace Delta's error for a table that takes no such write by TerminalError
    `table-restricted`.
    """
    try:
        yield
    except Exception as error:
        refusals = [
            (condition, text) for condition, _, text in causes(error) if condition in _WAYS_OUT
        ]
        if not refusals:
            raise
        condition, text = refusals[-1]
        raise TerminalError(
            "table-restricted",
            tried=f"write a batch to {path}",
            found=shortened(" ".join(text.split())),
            changed="nothing of this batch is in the table",
            next=[
                _lifted(path, condition, text),
                f"draindown run {layout.pipeline}/{layout.flow}",
            ],
            in_order=True,
        ) from error


def _lifted(path: str, condition: str, text: str) -> str:
    """Return the statement that lifts the restriction."""
    found = _NAME.search(text)
    return f"ALTER TABLE delta.`{path}` {_WAYS_OUT[condition].format(name=found[1] if found else 'NAME')}"


_WAYS_OUT = {
    _APPEND_ONLY: "UNSET TBLPROPERTIES ('delta.appendOnly')   # in Spark SQL: rows of a table with keys change",
    _CONSTRAINT: "DROP CONSTRAINT {name}   # in Spark SQL; as a rule of the flow it would refuse such rows one by one",
    _NOT_NULL: "ALTER COLUMN NAME DROP NOT NULL   # in Spark SQL; `not null` in the contract refuses row by row",
}
