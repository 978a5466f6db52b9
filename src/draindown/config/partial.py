"""Partial updates (`ignore_null_updates`): of which columns a NULL in a record leaves what the row
has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from draindown.config.base import Problem
from draindown.config.history import COLUMNS_SCHEMA, EXCEPT, check_columns
from draindown.config.names import caseless

IGNORE = "ignore_null_updates"
SEQUENCES = "_sequences"
"""The column of such a table with the sequence of the record that each of these columns is from, as
a map by name.
"""


def _check_ignored(given: Any) -> bool | list[str] | dict[str, list[str]]:
    return (
        given
        if isinstance(given, bool)
        else check_columns(given, "true, a list of columns, or {except: [columns]}")
    )


Ignored = Annotated[
    bool | list[str] | dict[str, list[str]],
    PlainValidator(_check_ignored),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, *COLUMNS_SCHEMA["anyOf"]]}),
]


@dataclass(frozen=True)
class Partial:
    """Rows that are merged column by column. `said`: what `ignore_null_updates` says, and not
    false.
    """

    keys: Sequence[str]
    sequence_by: Sequence[str]
    said: bool | list[str] | Mapping[str, list[str]]

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return those of the names of a record's columns of which NULL leaves what the row has."""
        if isinstance(self.said, list):
            return [name for name in names if name in self.said]
        left_out = {
            *self.keys,
            *self.sequence_by,
            *(() if isinstance(self.said, bool) else self.said[EXCEPT]),
        }
        return [name for name in names if name not in left_out]

    @property
    def named(self) -> list[tuple[tuple[str, ...], str]]:
        """The columns that the file names, by their place in the target."""
        if isinstance(self.said, bool):
            return []
        place, names = (
            ((IGNORE,), self.said)
            if isinstance(self.said, list)
            else ((IGNORE, EXCEPT), self.said[EXCEPT])
        )
        return [((*place, str(at)), name) for at, name in enumerate(names)]

    def problems(self) -> Iterator[Problem]:
        """Yield what can't work, by its place in the target."""
        for place, name in self.named:
            for what, names in (("a key", self.keys), ("of the sequence", self.sequence_by)):
                if caseless(name) in {caseless(one) for one in names}:
                    yield place, f"{name!r} is {what}: every record has it"
