"""The derivation `query`: a query of the user that works within the given keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field, field_validator

from draindown.base.digests import Meaning
from draindown.config.base import Part, repeated
from draindown.config.names import ColumnName, QueryText
from draindown.config.table_source import SourceTable


class Query(Part):
    """One row per key: a query that computes the rows of a key from the source rows of that key
    alone.
    """

    UNTIMED: ClassVar[str] = "reads all rows of its keys, whenever they come"

    keys: list[ColumnName] = Field(
        min_length=1,
        description="Columns that name a row of the result. Each source has them, or says which of its own they are.",
        examples=[["carrier"]],
    )
    sql: QueryText = Field(
        description="SELECT over the source tables, whose every step works within the keys.",
        examples=["select carrier, count(*) as flights from flights group by carrier"],
    )

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the keys."""
        return self.keys

    @property
    def in_words(self) -> str:
        """The query in words."""
        return f"per {', '.join(self.keys)}: {' '.join(self.sql.split())}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return f"its {', '.join(self.keys)}, before and after the change"

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {"keys": self.keys, "sql": self.sql}

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part by its place in it."""
        return {("sql",): self.sql}

    def sought(self, table: SourceTable) -> Sequence[str]:
        """Return the columns of a source table by which the rows of a key are found: its own key
        columns.
        """
        return [table.column(key) for key in self.keys]

    @field_validator("keys")
    @classmethod
    def _distinct(cls, names: list[str]) -> list[str]:
        if twice := repeated(names):
            raise ValueError(f"names {twice[0]!r} twice")
        return names
