"""The `target` of a derived flow: the table, and of a history what is kept of each key."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PrivateAttr, WithJsonSchema, model_validator

from draindown.config.base import Model, refuse
from draindown.config.history import History, Tracked
from draindown.config.names import ColumnName, Expression
from draindown.config.target_kinds import DERIVED, TargetKind
from draindown.config.targets import PartitionBy, TableName


class DerivedTarget(Model):
    """The target table of a derived flow. What names its rows follows from the derivation."""

    table: TableName = None
    partition_by: PartitionBy = Field(default_factory=list)
    keys: list[ColumnName] = Field(
        default_factory=list,
        description="Of a history: columns that name what has one; NULL is a value.",
        examples=[["flight_id"]],
    )
    sequence_by: list[ColumnName] = Field(
        default_factory=list, description="Of a history: columns that order the events of a key."
    )
    stored_as_scd_type: Annotated[int, WithJsonSchema({"type": "integer", "enum": [2]})] | None = (
        Field(
            default=None,
            description="2: the table holds the history of each key, one row per run of equal values.",
        )
    )
    track_history: Tracked | None = Field(
        default=None,
        description="Of a history: columns that begin another row where they change; absent: all.",
    )
    apply_as_deletes: Expression | None = Field(
        default=None,
        description="Of a history: SQL condition; an event for which it is true deletes its key.",
        examples=["status = 'withdrawn'"],
    )
    _row_keys: list[str] = PrivateAttr(default_factory=list)
    _statistics: list[str] = PrivateAttr(default_factory=list)

    @property
    def kind(self) -> TargetKind:
        """The kind of table: equal to a query, by keys."""
        return DERIVED

    @property
    def row_keys(self) -> list[str]:
        """The columns that name a row. NULL is a value of a key."""
        return self._row_keys

    @property
    def essential(self) -> list[str]:
        """The columns that identify a row: its keys."""
        return self._row_keys

    @property
    def statistics(self) -> list[str]:
        """The columns whose least and greatest value each file of the table states."""
        return self._statistics

    @property
    def history(self) -> History | None:
        """What is kept of each key; None of a target that another part of the flow fills."""
        if self.stored_as_scd_type is None:
            return None
        return History(
            scope_keys=self.keys,
            sequence_by=self.sequence_by,
            track_history=self.track_history,
            apply_as_deletes=self.apply_as_deletes,
        )

    @model_validator(mode="after")
    def _combination(self) -> DerivedTarget:
        if self.stored_as_scd_type not in (None, 2):
            last = (
                "the newest row per key is `deduplicate: {keys: ..., sequence_by: ..., keep: last}`"
            )
            refuse([(("stored_as_scd_type",), f"must be 2 where a flow reads a table: {last}")])
        needed = [name for name in ("keys", "sequence_by") if not getattr(self, name)]
        if self.stored_as_scd_type is not None:
            refuse([((name,), "is required by a history") for name in needed])
        found = self.history
        refuse([] if found is None else list(found.problems()))
        return self
