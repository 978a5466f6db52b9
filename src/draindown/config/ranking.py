"""Derivations that keep the first rows of a key in an order: `deduplicate` keeps one, `top`
several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Protocol

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from draindown.base.digests import Meaning
from draindown.base.formatting import count
from draindown.config.base import Part, Problem, refuse, repeated
from draindown.config.names import ColumnName, check_column_name
from draindown.config.table_source import SourceTable

_MOST_ROWS = 100_000
"""Most rows that `top` keeps of a group. More are the group itself."""


class Order(NamedTuple):
    """A column of an order, and its direction. NULL comes last in both."""

    column: str
    descending: bool


def _check_order(text: str) -> str:
    name, *direction = text.split() or [""]
    if [word.lower() for word in direction] not in ([], ["asc"], ["desc"]):
        raise ValueError(
            f"{text!r} is no column, or one followed by asc or desc; compute it in the source's transform"
        )
    check_column_name(name)
    return text


OrderBy = Annotated[
    str,
    AfterValidator(_check_order),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 300}),
]


class Deduplicate(Part):
    """One row per key: the first or the last of its source rows, with all of their columns.

    Rows are ordered by `sequence_by`, then by all other columns, in the order of their names. A row
    without a sequence is kept only if no other row of the key has one.
    """

    UNTIMED: ClassVar[str] = "places a row by `sequence_by`, whenever it comes"

    keys: list[ColumnName] = Field(
        min_length=1,
        description="Columns that name a row of the result; NULL is a value.",
        examples=[["event_id"]],
    )
    sequence_by: list[ColumnName] = Field(
        min_length=1, description="Columns that order the rows of a key.", examples=[["event_time"]]
    )
    keep: Literal["first", "last"] = Field(
        default="first", description="Whether the least row of a key is kept, or the greatest."
    )

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the keys."""
        return self.keys

    @property
    def order(self) -> list[Order]:
        """The order of the rows of a key, as far as the file shows it: the first one is kept."""
        return [Order(name, self.keep == "last") for name in self.sequence_by]

    @property
    def in_words(self) -> str:
        """The query in words."""
        return f"the {self.keep} row per {', '.join(self.keys)}, by {', '.join(self.sequence_by)}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return f"its {', '.join(self.keys)}, before and after the change"

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {"keys": self.keys, "sequence_by": self.sequence_by, "keep": self.keep}

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part: none."""
        return {}

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a key are found."""
        return self.keys

    @model_validator(mode="after")
    def _combination(self) -> Deduplicate:
        problems = [
            ((part,), f"names {twice!r} twice")
            for part in _LISTS
            for twice in repeated(getattr(self, part))
        ]
        refuse(
            [
                *problems,
                *(
                    (("sequence_by",), f"{name!r} is a key")
                    for name in _both(self.keys, self.sequence_by)
                ),
            ]
        )
        return self


_LISTS = ("keys", "sequence_by")


class Top(Part):
    """The first rows of each group in an order, with all columns of the source, and their position
    from 1.

    Rows are ordered by `order_by`, then by all other columns, in the order of their names.
    """

    POSITION: ClassVar[str] = "position"
    RANK: ClassVar[str] = "rank"
    UNTIMED: ClassVar[str] = "places a row by `order_by`, whenever it comes"
    group_by: list[ColumnName] = Field(
        min_length=1,
        description="Columns that name a group; NULL is a group.",
        examples=[["product"]],
    )
    order_by: list[OrderBy] = Field(
        min_length=1,
        description="Columns that order the rows of a group, each with `asc` (the default) or `desc`; NULL is last.",
        examples=[["price desc"]],
    )
    rows: int = Field(
        ge=1, le=_MOST_ROWS, description="How many rows of a group are kept.", examples=[10]
    )
    with_ties: bool = Field(
        default=False,
        description="false: exactly so many rows, equal ones decided by their other columns. "
        "true: every row whose rank is at most `rows`, with the column `rank`.",
    )

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the group."""
        return self.group_by

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: the group, and the position within it."""
        return [*self.group_by, self.POSITION]

    @property
    def order(self) -> list[Order]:
        """The order of the rows of a group, as far as the file shows it."""
        return [
            Order(words[0], len(words) > 1 and words[-1].lower() == "desc")
            for words in map(str.split, self.order_by)
        ]

    @property
    def in_words(self) -> str:
        """The query in words."""
        ties = " and those that tie with the last of them" if self.with_ties else ""
        first = f"the first {count(self.rows, 'row')}{ties}"
        return f"{first} per {', '.join(self.group_by)}, by {', '.join(self.order_by)}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return f"the group of its {', '.join(self.group_by)}, before and after the change"

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {
            "group_by": self.scope_keys,
            "order_by": [[one.column, one.descending] for one in self.order],
            "rows": self.rows,
            "with_ties": self.RANK in self.made,
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part: none."""
        return {}

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a group are found."""
        return self.group_by

    @field_validator("group_by")
    @classmethod
    def _distinct(cls, names: list[str]) -> list[str]:
        if twice := repeated(names):
            raise ValueError(f"names {twice[0]!r} twice")
        return names

    @model_validator(mode="after")
    def _combination(self) -> Top:
        ordered = [one.column for one in self.order]
        problems: list[Problem] = [
            (("order_by",), f"names {twice!r} twice") for twice in repeated(ordered)
        ]
        problems += [
            (("order_by",), f"{name!r} is in `group_by`: it is equal in a group")
            for name in _both(self.group_by, ordered)
        ]
        problems += [
            (("group_by",), f"{name!r} is a column of the result")
            for name in _both(self.made, self.group_by)
        ]
        refuse(problems)
        return self

    @property
    def made(self) -> list[str]:
        """The result's columns that the source does not have."""
        return [self.POSITION, *([self.RANK] if self.with_ties else [])]


class Ordered(Protocol):
    """What orders the rows of a scope."""

    @property
    def scope_keys(self) -> Sequence[str]:
        """The columns whose values are recomputed together."""

    @property
    def order(self) -> Sequence[Order]:
        """The order as far as the file shows it."""


def total_order(part: Ordered, columns: Sequence[str], *, descending: bool = False) -> list[Order]:
    """Return the order of `part`, then all other `columns` of the source by name, so that only
    equal rows tie.

    `descending`: the direction of the other columns.
    """
    named = {one.column for one in part.order} | set(part.scope_keys)
    return [
        *part.order,
        *(Order(name, descending) for name in sorted(columns) if name not in named),
    ]


def _both(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Return the names of `other` that are in `one`, whatever their case."""
    known = {name.lower() for name in one}
    return [name for name in other if name.lower() in known]
