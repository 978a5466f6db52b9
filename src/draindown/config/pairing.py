"""What the derivations over two tables share: the flow's table, on the left, and the one that the
part names, on the right, whose rows meet by equal columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Discriminator, Field, PrivateAttr, Tag

from draindown.base.digests import Meaning
from draindown.config.base import Part, Problem, repeated
from draindown.config.names import (
    LISTED_FORM,
    RENAMED_FORM,
    START_AT,
    ColumnName,
    caseless,
    chosen_form,
    is_own,
)
from draindown.config.table_source import SourceTable

ORIGIN_KEY = ("left_origin", "right_origin")
"""Columns of the result that name a row of an append table, which has no keys: `unit:position` of
its record.
"""
CHOSEN = "as a list, or with their names in the result; absent: all but those of `on`."
_ON = (
    "Columns whose values are equal in both rows, as a list, or as left column: right column where their names "
    "differ. NULL equals nothing."
)
On = Annotated[
    Annotated[list[ColumnName], Field(min_length=1), Tag(LISTED_FORM)]
    | Annotated[dict[ColumnName, ColumnName], Field(min_length=1), Tag(RENAMED_FORM)],
    Discriminator(chosen_form),
]
Chosen = (
    Annotated[
        Annotated[list[ColumnName], Tag(LISTED_FORM)]
        | Annotated[dict[ColumnName, ColumnName], Tag(RENAMED_FORM)],
        Discriminator(chosen_form),
    ]
    | None
)


class Pairing(Part):
    """What `join` and `lookup` share: a left and a right table, whose rows meet where their `on`
    columns are equal.

    The result has all columns of the left table, those of `on` first, and the chosen ones of the
    right table.
    """

    on: On = Field(description=_ON, examples=[["user_id"], {"user_id": "buyer"}])
    if TYPE_CHECKING:  # each part declares it, in the order in which its reference lists it
        table: str
    _sides: tuple[SourceTable | None, SourceTable | None] = PrivateAttr(default=(None, None))

    @property
    def matched(self) -> dict[str, str]:
        """The columns of `on`: the right table's by the left table's."""
        return self.on if isinstance(self.on, dict) else {name: name for name in self.on}

    @property
    def chosen(self) -> Chosen:
        """The columns of the right table, as the file has them."""
        raise NotImplementedError

    @property
    def is_outer(self) -> bool:
        """Whether left rows without a match are kept."""
        raise NotImplementedError

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together."""
        raise NotImplementedError

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result."""
        raise NotImplementedError

    def sought(self, table: SourceTable) -> Sequence[str | None]:
        """Return the columns of a source table by which the rows of a scope are found; None where
        none has them.
        """
        raise NotImplementedError

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest: the two tables, and the columns
        that are equal, each as (result, left, right).
        """
        left, right = self.sides
        return {
            "left": left.table,
            "right": right.table,
            "on": list(zip(self.on, self.own(0), self.own(1), strict=True)),
            "columns": None if self.chosen is None else list(self.renamed.items()),
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part: none."""
        return {}

    @property
    def sides(self) -> tuple[SourceTable, SourceTable]:
        """The source tables: left, right."""
        left, right = self._sides
        assert left is not None and right is not None  # `bind` found both
        return left, right

    @property
    def on_in_words(self) -> str:
        """The columns of `on`, for people: `user_id`, or `user_id = buyer`."""
        pairs = self.matched.items()
        return ", ".join(left if left == right else f"{left} = {right}" for left, right in pairs)

    @property
    def right(self) -> SourceTable:
        """The table that the part names, as a source of the flow."""
        return SourceTable(table=self.table, keys=self.matched)

    def bind(self, left: SourceTable, right: SourceTable) -> None:
        """Take the flow's source tables, whose keys name the rows of the result."""
        self._sides = (left, right)

    def place(self, at: int) -> tuple[str, str]:
        """Return the path within the part of column number `at` of `on`."""
        return ("on", list(self.on)[at] if isinstance(self.on, dict) else str(at))

    def own(self, side: int) -> list[str]:
        """Return the columns of the left (0) or the right table (1) that are those of `on`."""
        return [self.sides[side].column(key) for key in self.on]

    def has_origin(self, side: int) -> bool:
        """Return whether a side's rows are named by their origin, since the table appends."""
        return not self.sides[side].row_keys

    def named_by(self, side: int) -> list[str]:
        """Return the columns of the result that name a row of the left (0) or the right table
        (1).
        """
        if self.has_origin(side):
            return [ORIGIN_KEY[side]]
        names = {
            **(self.renamed if side else {}),
            **dict(zip(self.own(side), self.on, strict=True)),
        }
        return list(dict.fromkeys(names.get(key, key) for key in self.sides[side].row_keys))

    @property
    def renamed(self) -> Mapping[str, str]:
        """The chosen columns of the right table that the file names, with their names in the
        result.
        """
        chosen = self.chosen or ()
        return chosen if isinstance(chosen, dict) else {name: name for name in chosen}

    def of_left(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the result's columns that come from the left table, `on` first, each with the
        table's own column.
        """
        own = self.own(0)
        return dict(zip(self.on, own, strict=True)) | {
            one: one for one in columns if one not in own
        }

    def of_right(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the result's columns that come from the right table, each with the table's own
        column.
        """
        if self.chosen is not None:
            return {to: name for name, to in self.renamed.items()}
        return {one: one for one in columns if one not in self.own(1)}

    def time_problems(self, left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Problem]:  # noqa: ARG002
        """Yield times of the two tables that can't be compared, by their path in the part: none by
        default.

        Arguments: types by column of each.
        """
        yield from ()

    def made(self) -> list[str]:
        """Return the result's columns that neither table has."""
        return [ORIGIN_KEY[side] for side in (0, 1) if self.has_origin(side)]

    def key_problems(self) -> Iterator[Problem]:
        """Yield what the keys of the source tables forbid, by their path in the part, once they are
        known.
        """
        chosen, right = self.chosen, self.sides[1]
        if chosen is not None and not self.has_origin(1):
            own = self.own(1)
            missing = [key for key in right.row_keys if key not in own and key not in self.renamed]
            if START_AT in missing:
                why = f"table {right} is a history, whose rows are named by their start"
                one = f"`lookup` with `as_of: <column of {self.sides[0]}>` takes the one that is valid at its time"
                yield ("columns",), f"{why}: leave it out, and a row meets all of its key; {one}"
            elif missing:
                yield (
                    ("columns",),
                    f"lacks {', '.join(missing)}: keys of table {right}, which name a row of the result",
                )

    def column_problems(self, left: Sequence[str], right: Sequence[str]) -> Iterator[Problem]:
        """Yield columns of the result that would have one name, by their path in the part."""
        first, second = self.of_left(left), self.of_right(right)
        one, other = self.sides
        for name in repeated([*self.made(), *first, *second]):
            in_first, in_second = (
                caseless(name) in map(caseless, names) for names in (first, second)
            )
            of = f"table {one}" if in_first and in_second else "the result"
            if in_second:
                yield (
                    ("columns",),
                    f"{name!r} is a column of {of} and of table {other}: give the latter's another name",
                )
            else:
                yield (
                    ("columns",),
                    f"{name!r} is a column of the result and of table {one}: rename it where it lands",
                )

    def _listed_problems(self) -> list[Problem]:
        problems: list[Problem] = [
            (("on",), f"names {twice!r} twice") for twice in repeated(list(self.on))
        ]
        problems += [
            (("on",), f"matches {twice!r} of table {self.table} twice")
            for twice in repeated(list(self.matched.values()))
            if isinstance(self.on, dict)
        ]
        names = list(self.chosen or ())
        problems += [(("columns",), f"names {twice!r} twice") for twice in repeated(names)]
        if isinstance(self.chosen, dict):
            twice = repeated(list(self.chosen.values()))
            problems += [(("columns",), f"calls two columns {name!r}") for name in twice]
        return problems


def side_problems(part: Pairing, tables: Mapping[str, Mapping[str, str]]) -> Iterator[Problem]:
    """Yield types of `on` that differ between the tables, and names that clash. `tables`: types by
    column, by name.
    """
    left, right = (tables[one.table] for one in part.sides)
    for at, (one, other) in enumerate(zip(part.own(0), part.own(1), strict=True)):
        if left.get(one) and right.get(other) and left[one] != right[other]:
            first, second = part.sides
            why = f"{one} of {first} is {left[one]}, and {other} of {second} is {right[other]}: a key has one type"
            yield part.place(at), f"{why}; cast it in the flow that writes the table"
    yield from part.time_problems(left, right)
    yield from part.column_problems(
        *([name for name in columns if not is_own(name)] for columns in (left, right))
    )
