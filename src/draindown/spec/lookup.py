"""The derivation `lookup`: columns of another table's row beside each row of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from draindown.spec.base import Problem, refuse
from draindown.spec.names import Identifier, unlike
from draindown.spec.pairing import CHOSEN, ORIGIN_KEY, Chosen, Pairing
from draindown.spec.table_source import SourceTable

_ARRIVAL = (
    "arrival: which row is there when another one arrives depends on when runs happened, so no two tables would be "
    "equal; keep the history of the table (`stored_as_scd_type: 2`), over which `as_of: <time column>` will be exact. "
    "Until then `latest` is"
)


def _as_of(given: object) -> object:
    if isinstance(given, str) and given != "latest":
        how = (
            _ARRIVAL
            if given == "arrival"
            else f"{given}: a state at a time, out of a history table, can't be looked up yet; use latest"
        )
        raise ValueError(how)
    return given


class Lookup(Pairing):
    """One row per row of one table, with columns of the row of another table whose keys are `on`; NULL without one.

    `latest`: it follows the row that is looked up, whenever that changes.
    """

    UNTIMED: ClassVar[str] = "follows both tables, whenever their rows come"

    table: Identifier = Field(description="The source table that is looked up, by its keys.", examples=["users"])
    columns: Chosen = Field(
        default=None,
        description=f"The columns of the looked-up table in the result, {CHOSEN}",
        examples=[["country"], {"name": "user_name"}],
    )
    as_of: Annotated[Literal["latest"], BeforeValidator(_as_of)] = Field(
        default="latest", description="Which state of the looked-up row is taken: the one that it has now."
    )

    @property
    def named(self) -> tuple[str | None, str]:
        """The tables by their names; the left one is the other one of two."""
        return None, self.table

    @property
    def chosen(self) -> Chosen:
        """The columns of the looked-up table, as the file has them."""
        return self.columns

    @property
    def is_outer(self) -> bool:
        """Whether left rows without a match are kept: all are."""
        return True

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: those that name a row of the left table."""
        return self.named_by(0)

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: the same."""
        return self.named_by(0)

    @property
    def in_words(self) -> str:
        """The query in words."""
        return f"each row of the other table with columns of the row of {self.table} that has its {', '.join(self.on)}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return f"itself; one of {self.table} every row that has its {', '.join(self.on)}, before and after the change"

    def made(self) -> list[str]:
        """Return the result's columns that neither table has."""
        return [*([ORIGIN_KEY[0]] if self.has_origin(0) else []), self.found]

    @property
    def found(self) -> str:
        """The result's column that says whether the looked-up table has the row."""
        return f"{self.table}_found"

    def sought(self, table: SourceTable) -> Sequence[str | None]:
        """Return the columns of a source table by which the rows of a key are found; None where none has them."""
        if table.table == self.table or self.has_origin(0):
            return [None] * len(self.scope_keys)
        own = dict(zip(self.on, self.own(0), strict=True))
        return [own.get(key, key) for key in self.scope_keys]

    def source_problems(self, tables: Sequence[SourceTable]) -> Iterator[Problem]:
        """Yield what is wrong about the tables that the part names, by their path in the flow."""
        known = [one.table for one in tables]
        if self.table not in known:
            yield ("lookup", "table"), f"{self.table!r} is no table of `source`{unlike(self.table, known)}"
        elif len(known) != 2:
            yield ("source",), f"a lookup reads two tables, in `tables`: one whose rows it keeps, and {self.table}"

    def key_problems(self) -> Iterator[Problem]:
        """Yield what the keys of the source tables forbid, by their path in the part, once they are known."""
        right, own = self.sides[1], self.own(1)
        if self.has_origin(1):
            yield ("table",), f"rows are only appended to {right}, so that a key has several: `deduplicate` them before"
        elif missing := [key for key in right.row_keys if key not in own]:
            keys = ", ".join(right.row_keys)
            yield ("on",), f"lacks {', '.join(missing)}: rows of {right} are named by {keys}, others may have several"

    @model_validator(mode="after")
    def _combination(self) -> Lookup:
        refuse(self._listed_problems())
        return self
