"""The derivation `lookup`: columns of another table's row beside each row of a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from draindown.base.digests import Meaning
from draindown.config.base import Problem, refuse
from draindown.config.names import END_AT, START_AT, ColumnName, Identifier
from draindown.config.pairing import CHOSEN, ORIGIN_KEY, Chosen, Pairing
from draindown.config.table_source import SourceTable

_ARRIVAL = (
    "arrival: which row is there when another one arrives depends on when runs happened, so no two tables would be "
    "equal. Name the column with the time of a row, and look up a history of the table (`stored_as_scd_type: 2`)"
)


def _as_of(given: str) -> str:
    if given == "arrival":
        raise ValueError(_ARRIVAL)
    return given


class Lookup(Pairing):
    """One row per row of one table, with columns of the row of another table whose keys are `on`;
    NULL without one.

    Without `as_of` it follows the row that is looked up, whenever that changes. With it: of the rows
    of a history the one that starts at or before the time of the row, and does not end, or ends
    after it.
    """

    UNTIMED: ClassVar[str] = "follows both tables, whenever their rows come"

    table: Identifier = Field(
        description="Table that is looked up, by its keys.", examples=["users"]
    )
    columns: Chosen = Field(
        default=None,
        description=f"The columns of the looked-up table in the result, {CHOSEN}",
        examples=[["country"], {"name": "user_name"}],
    )
    as_of: Annotated[ColumnName, AfterValidator(_as_of)] | None = Field(
        default=None,
        description="Column with the time of a row, which a history needs: the looked-up row is the one that was valid "
        "then. Without it the table has one row per key, and the one that is there now is taken.",
        examples=["event_time"],
    )

    @property
    def chosen(self) -> Chosen:
        """The columns of the looked-up table, as the file has them."""
        return self.columns

    @property
    def is_outer(self) -> bool:
        """Whether left rows without a match are kept: all are."""
        return True

    @property
    def time(self) -> str | None:
        """The left table's column with the time at which a history is asked; None where the newest
        state is taken.
        """
        return self.as_of

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: those that name a row of the left
        table.
        """
        return self.named_by(0)

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: the same."""
        return self.named_by(0)

    @property
    def in_words(self) -> str:
        """The query in words."""
        row = f"the row of {self.table}" + (f" valid at its {self.time}" if self.time else "")
        return f"each row of the other table with columns of {row} that has its {self.on_in_words}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        keys = ", ".join(self.on)
        if self.time:
            return f"itself; one of {self.table} the rows with its {keys} whose {self.time} it says something else of"
        return f"itself; one of {self.table} every row that has its {keys}, before and after the change"

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {**super().meaning(), "as_of": self.time}

    def of_right(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the columns of the looked-up table in the result: not start and end, which other
        changes move.
        """
        left_out = (START_AT, END_AT) if self.time else ()
        return super().of_right([name for name in columns if name not in left_out])

    def made(self) -> list[str]:
        """Return the result's columns that neither table has."""
        return [*([ORIGIN_KEY[0]] if self.has_origin(0) else []), self.found]

    @property
    def found(self) -> str:
        """The result's column that says whether the looked-up table has the row."""
        return f"{self.table}_found"

    def sought(self, table: SourceTable) -> Sequence[str | None]:
        """Return the columns of a source table by which the rows of a key are found; None where
        none has them.
        """
        if table.table == self.table or self.has_origin(0):
            return [None] * len(self.scope_keys)
        own = dict(zip(self.on, self.own(0), strict=True))
        return [own.get(key, key) for key in self.scope_keys]

    def key_problems(self) -> Iterator[Problem]:
        """Yield what the keys of the source tables forbid, by their path in the part, once they are
        known.
        """
        right, own = self.sides[1], self.own(1)
        if self.time and START_AT not in right.row_keys:
            yield (
                ("as_of",),
                f"{_no_history(right)}; without `as_of` the state that a row has now is taken",
            )
        elif self.has_origin(1):
            yield (
                ("table",),
                f"rows are only appended to {right}, so that a key has several: `deduplicate` them before",
            )
        elif START_AT in right.row_keys and not self.time:
            what = f"{right} is a history, which has several rows of a key"
            yield (
                ("as_of",),
                f"{what}: name the column of {self.sides[0]} with the time at which one is valid",
            )
        elif missing := [key for key in right.row_keys if key not in own and key != START_AT]:
            keys = ", ".join(right.row_keys)
            yield (
                ("on",),
                f"lacks {', '.join(missing)}: rows of {right} are named by {keys}, others may have several",
            )

    def time_problems(self, left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[Problem]:
        """Yield why the time of a left row can't be compared with that of a history. Arguments:
        types by column.
        """
        time, at = left.get(self.time or ""), right.get(START_AT)
        if time is None or at is None:
            return
        first = first_part(at)
        if time != first and not {time, first} <= _WHOLE:
            one, other = self.sides
            whole = "" if first == at else ", the first column of its sequence"
            why = f"{self.time} of {one} is {time}, and {other} is valid from a {first}{whole}"
            yield (
                ("as_of",),
                f"{why}: the two need one type; cast it in the flow that writes the table",
            )

    @model_validator(mode="after")
    def _combination(self) -> Lookup:
        refuse(self._listed_problems())
        return self


def _no_history(table: SourceTable) -> str:
    """Return why a table does not say what was valid at a time, and what would."""
    kept = "target: {keys: ..., sequence_by: ..., stored_as_scd_type: 2}"
    if not table.row_keys:
        return f"{table} is no history, in which a row is valid from a time on: derive one from it, `{kept}`"
    lost = f"{table} is no history: it keeps one row per {', '.join(table.row_keys)}, and earlier ones are gone"
    return f"{lost}. Land it with `stored_as_scd_type: 2`, or append its changes and derive one, `{kept}`"


def first_part(kind: str) -> str:
    """Return the type of the first field of a struct of plain types, the sequence of a history; or
    the type itself.
    """
    found = _FIRST.match(kind)
    return found[1] if found else kind


_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_FIRST = re.compile(r"struct<.*?: ?([a-z_]+(?:\(\d+,\d+\))?)[,>]")
