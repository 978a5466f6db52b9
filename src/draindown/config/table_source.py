"""Tables as the source of a derived flow: which ones, and under which names they have its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler, PrivateAttr, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from draindown.base.digests import Meaning
from draindown.config.base import Model, Problem, refuse
from draindown.config.names import ColumnName, Identifier

_TABLE = (
    "Table that a flow of this project writes, in the same lake; only published versions are read."
)


class SourceTable(Model):
    """One table that a derived flow reads, by its name in the lake."""

    table: Identifier = Field(description=_TABLE, examples=["flights"])
    keys: dict[ColumnName, ColumnName] = Field(
        default_factory=dict,
        description="The table's own columns, by the keys that they are; absent: they have the same names.",
        examples=[{"customer_id": "id"}],
    )
    _pipeline: str | None = PrivateAttr(default=None)
    _written_by: str = PrivateAttr(default="")
    _row_keys: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        return {"table": given} if isinstance(given, str) else given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core)]}

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.table}" if self.pipeline else self.table

    @property
    def pipeline(self) -> str | None:
        """The other pipeline whose flow writes the table; None for the flow's own, or until the
        project's files are loaded.
        """
        return self._pipeline

    @property
    def written_by(self) -> str:
        """The flow that writes the table, as the project's files say; empty until they are
        loaded.
        """
        return self._written_by

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The writing flow's keys, of which no two rows have the same; empty if it appends, or is
        not known.
        """
        return self._row_keys

    def column(self, key: str) -> str:
        """Return the table's column that is a key of the result."""
        return self.keys.get(key, key)


class TableSource(Model):
    """Tables that other flows write. Only published versions are read."""

    kind: ClassVar[str] = "tables"
    own_intakes: ClassVar[bool] = True
    """Each generation begins with a fill, so it has slices of its own."""
    begins_with_fill: ClassVar[bool] = True

    table: Identifier | None = Field(default=None, description=_TABLE, examples=["flights"])
    tables: list[SourceTable] = Field(
        default_factory=list,
        description="Several tables, for `query`. Exactly one of `table` and `tables` is needed.",
        examples=[["orders", {"table": "customers", "keys": {"customer_id": "id"}}]],
    )
    _derivation: str = PrivateAttr(default="")
    _lacking: str = PrivateAttr(default="")
    _sought: dict[str, list[str | None]] = PrivateAttr(default_factory=dict)
    _one: SourceTable | None = PrivateAttr(default=None)
    _other: SourceTable | None = PrivateAttr(default=None)

    @property
    def read(self) -> Sequence[SourceTable]:
        """The tables, one or several, in the order of the file. The table of a `join` or `lookup`
        is the second one.
        """
        if self._one is None:
            return self.tables
        return [self._one] if self._other is None else [self._one, self._other]

    def beside(self, other: SourceTable) -> None:
        """Read another table too, which the flow's `join` or `lookup` names."""
        self._other = other

    @property
    def derivation(self) -> str:
        """A digest of what the reading flow derives from the tables: another one needs another
        fill.
        """
        return self._derivation

    @property
    def lacking(self) -> str:
        """Why that digest can't be known on this machine; empty if it is."""
        return self._lacking

    @property
    def sought(self) -> Mapping[str, Sequence[str | None]]:
        """By key of the result, the column of each table by which rows of a key are found, in the
        order of `read`.

        None for a table that has no such column.
        """
        return self._sought

    def meaning(self) -> Meaning | None:
        """Return the tables in the words of that digest, whatever their order; None for one table
        under its own names, of which slices have the id.
        """
        if len(self.read) == 1 and not self.read[0].keys:
            return None
        return {one.table: one.keys for one in self.read}

    def __str__(self) -> str:
        names = [str(one) for one in self.read]
        return f"table {names[0]}" if len(names) == 1 else f"tables {' and '.join(names)}"

    @model_validator(mode="after")
    def _combination(self) -> TableSource:
        refuse(list(self._problems()))
        if self.table is not None:
            self._one = SourceTable(table=self.table)
        return self

    def _problems(self) -> Iterator[Problem]:
        if (self.table is None) == (not self.tables):
            yield ("table",), "is needed, or `tables`, but not both"
        seen: set[str] = set()
        for at, one in enumerate(self.tables):
            if one.table.lower() in seen:
                yield (
                    ("tables", str(at)),
                    f"names table {one.table!r} twice; a query may read it more than once",
                )
            seen.add(one.table.lower())
