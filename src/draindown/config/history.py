"""The derivation `history` (SCD type 2): one row per run of equal values of a key, from events of
an append table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, WithJsonSchema

from draindown.base.digests import Meaning
from draindown.config.base import Part, Problem, repeated
from draindown.config.names import (
    END_AT,
    START_AT,
    ColumnName,
    Expression,
    caseless,
    check_column_name,
)
from draindown.config.ranking import Order
from draindown.config.table_source import SourceTable

EXCEPT = "except"
HISTORY = "target: {stored_as_scd_type: 2}"
"""What asks for the kind `history` in a flow."""


def check_columns(
    given: Any, wanted: str = "a list of columns, or {except: [columns]}"
) -> list[str] | dict[str, list[str]]:
    """Return a list of columns, or {except: list of columns}. Raises ValueError for all else: it
    must be `wanted`.
    """
    names = given.get(EXCEPT) if isinstance(given, dict) and set(given) == {EXCEPT} else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"must be {wanted}")
    for name in names:
        check_column_name(name)
    if twice := repeated(names):
        raise ValueError(f"names {twice[0]!r} twice")
    return dict(given) if isinstance(given, dict) else list(names)


_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
COLUMNS_SCHEMA: dict[str, list[dict[str, Any]]] = {
    "anyOf": [
        _NAMES,
        {
            "type": "object",
            "properties": {EXCEPT: _NAMES},
            "required": [EXCEPT],
            "additionalProperties": False,
        },
    ]
}
"""The JSON Schema of what `check_columns` takes."""
Tracked = Annotated[
    list[str] | dict[str, list[str]], PlainValidator(check_columns), WithJsonSchema(COLUMNS_SCHEMA)
]


class History(Part):
    """One row per run of events of a key with equal tracked columns, in the order of their
    sequence.

    A row is valid from the sequence of its first event (`__START_AT`) up to that of the next event
    which begins another row or deletes the key (`__END_AT`, NULL for none). Columns that are not
    tracked are those of its newest event. Of events with the same sequence one counts: a delete, or
    else the greatest by all other columns, in the order of their names. An event without a sequence
    is in no history.
    """

    START: ClassVar[str] = START_AT
    END: ClassVar[str] = END_AT
    UNTIMED: ClassVar[str] = (
        "is what all events say in the order of their sequence, whenever each of them comes"
    )
    made: ClassVar[Sequence[str]] = (START_AT, END_AT)
    """The result's columns that the source does not have."""

    scope_keys: list[ColumnName] = Field(min_length=1)
    sequence_by: list[ColumnName] = Field(min_length=1)
    track_history: Tracked | None = None
    apply_as_deletes: Expression | None = None

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: those of the scope, and the start of the
        row.
        """
        return [*self.scope_keys, self.START]

    @property
    def order(self) -> list[Order]:
        """The order of a key's events, as far as the file shows it: the newest one is first."""
        return [Order(name, True) for name in self.sequence_by]

    @property
    def in_words(self) -> str:
        """The query in words."""
        said, ends = (
            self.track_history,
            f"; a row ends where {self.apply_as_deletes}" if self.apply_as_deletes else "",
        )
        names = ", ".join(said if isinstance(said, list) else (said or {}).get(EXCEPT, ()))
        columns = (
            "other columns"
            if said is None
            else names
            if isinstance(said, list)
            else f"columns but {names}"
        )
        keys, order = ", ".join(self.scope_keys), ", ".join(self.sequence_by)
        return f"the history per {keys}, by {order}: a row per run of equal {columns}{ends}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return f"the history of its {', '.join(self.scope_keys)}"

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {
            "keys": self.scope_keys,
            "sequence_by": self.sequence_by,
            "track_history": self.track_history,
            "apply_as_deletes": self.apply_as_deletes,
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part by its place in the target."""
        return (
            {} if self.apply_as_deletes is None else {("apply_as_deletes",): self.apply_as_deletes}
        )

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the events of a key are found."""
        return self.scope_keys

    def stored(self, types: Mapping[str, str]) -> dict[str, str]:
        """Return the types of the table's columns by name. `types`: those of its events."""
        order = self.sequence_by
        at = (
            types[order[0]]
            if len(order) == 1
            else f"struct<{', '.join(f'{name}: {types[name]}' for name in order)}>"
        )
        return {**types, **dict.fromkeys(self.made, at)}

    def tracked(self, columns: Sequence[str]) -> list[str]:
        """Return the columns of the source that begin another row where they change.

        `columns`: the columns of the source. By default all are tracked but keys and sequence: the
        sequence differs between any two events, so that each event would begin a row.
        """
        said = self.track_history
        if isinstance(said, list):
            return said
        left_out = {*self.scope_keys, *self.sequence_by, *(said or {}).get(EXCEPT, ())}
        return [name for name in columns if name not in left_out]

    @property
    def named(self) -> list[tuple[tuple[str, ...], str]]:
        """The columns of the source that the file names, by their place in the target."""
        lists: dict[tuple[str, ...], list[str]] = {
            ("keys",): self.scope_keys,
            ("sequence_by",): self.sequence_by,
        }
        if isinstance(self.track_history, list):
            lists["track_history",] = self.track_history
        elif self.track_history is not None:
            lists["track_history", EXCEPT] = self.track_history[EXCEPT]
        return [
            ((*place, str(at)), name)
            for place, names in lists.items()
            for at, name in enumerate(names)
        ]

    def problems(self) -> Iterator[Problem]:
        """Yield what can't work, by its place in the target."""
        for part, names in (("keys", self.scope_keys), ("sequence_by", self.sequence_by)):
            yield from (((part,), f"names {twice!r} twice") for twice in repeated(names))
        keys = {caseless(name) for name in self.scope_keys}
        yield from (
            (("sequence_by",), f"{name!r} is a key")
            for name in self.sequence_by
            if caseless(name) in keys
        )
        if self.track_history is not None:
            own = [
                name
                for place, name in self.named
                if place[0] == "track_history" and caseless(name) in keys
            ]
            yield from (
                (("track_history",), f"{name!r} is a key: it is equal in a history") for name in own
            )
