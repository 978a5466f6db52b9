"""The `target` and the `maintenance` of a flow."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from draindown.base.digests import Meaning
from draindown.config.base import Model, Problem, refuse, repeated
from draindown.config.history import History, Tracked
from draindown.config.names import ColumnName, Expression, Identifier, SuiteName
from draindown.config.partial import IGNORE, Ignored, Partial
from draindown.config.target_kinds import APPEND, HISTORY, PARTIAL, UPSERT, TargetKind
from draindown.config.units import Duration, Size, SizeOrNone

RETAIN_FLOOR = 7 * 86400
"""The shortest retention, in seconds: Delta's default for VACUUM. Readers and long jobs may need
younger files.
"""


TableName = Annotated[
    Identifier | None, Field(description="Name of the table; absent: the flow's name.")
]
PartitionBy = Annotated[
    list[ColumnName],
    Field(
        description="Columns the table is partitioned by; best computed from the keys alone.",
        examples=[["flight_month"]],
    ),
]


class Target(Model):
    """The target table of a landing flow."""

    table: TableName = None
    keys: list[ColumnName] = Field(
        default_factory=list,
        description="Columns that name a row; the newest change per key wins. Absent: rows are appended.",
        examples=[["flight_id"]],
    )
    sequence_by: list[ColumnName] = Field(
        default_factory=list,
        description="Columns that order the changes of one key.",
        examples=[["updated_at"]],
    )
    apply_as_deletes: Expression | None = Field(
        default=None,
        description="SQL condition; a row for which it is true deletes its key.",
        examples=["status = 'withdrawn'"],
    )
    stored_as_scd_type: Annotated[int, WithJsonSchema({"type": "integer", "enum": [1, 2]})] = Field(
        default=1,
        description="1: the table holds the newest row per key. 2: the history of each key, one row per run of equal "
        "values.",
    )
    track_history: Tracked | None = Field(
        default=None,
        description="Of a history: columns that begin another row where they change; absent: all.",
    )
    ignore_null_updates: Ignored = Field(
        default=False,
        description="Columns of which a NULL in a record leaves the value that the row has; true: all but keys and "
        "sequence. The newest value of each counts, whenever it comes.",
    )
    partition_by: PartitionBy = Field(default_factory=list)

    @property
    def kind(self) -> TargetKind:
        """The kind of table that the keys ask for."""
        if self.stored_as_scd_type == 2:
            return HISTORY
        return APPEND if not self.keys else UPSERT if self.partial is None else PARTIAL

    @property
    def partial(self) -> Partial | None:
        """How rows are merged column by column; None where records replace rows whole."""
        if self.ignore_null_updates is False:
            return None
        return Partial(self.keys, self.sequence_by, self.ignore_null_updates)

    @property
    def history(self) -> History | None:
        """What is kept of each key; None where only the newest row is, or every row."""
        if self.stored_as_scd_type != 2:
            return None
        return History(
            scope_keys=self.keys,
            sequence_by=self.sequence_by,
            track_history=self.track_history,
            apply_as_deletes=self.apply_as_deletes,
        )

    @property
    def essential(self) -> list[str]:
        """Keys and sequence, each column once: what identifies and orders a change. Empty for an
        append table.
        """
        return list(dict.fromkeys([*self.keys, *self.sequence_by]))

    @property
    def row_keys(self) -> list[str]:
        """The columns that name a row of the table: the keys, and of a history the start of the
        row.
        """
        return self.keys if self.kind is not HISTORY else [*self.keys, History.START]

    @property
    def statistics(self) -> list[str]:
        """The columns whose least and greatest value each file of the table states."""
        return self.essential if self.kind is not HISTORY else [*self.keys, *History.made]

    def meaning(self) -> Meaning:
        """Return what the file says, in the words of a rebuild's digest."""
        return {
            "table": self.table,
            "keys": self.keys,
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
            "stored_as_scd_type": self.stored_as_scd_type,
            "track_history": self.track_history,
            "ignore_null_updates": self.ignore_null_updates or None,
            "partition_by": self.partition_by,
        }

    @field_validator("stored_as_scd_type")
    @classmethod
    def _known_type(cls, value: int) -> int:
        if value not in (1, 2):
            raise ValueError(f"must be 1 or 2, not {value}")
        return value

    @model_validator(mode="after")
    def _combination(self) -> Target:
        problems: list[Problem] = []
        if self.keys and not self.sequence_by:
            problems.append(
                (
                    ("keys",),
                    "needs sequence_by: without an order, the newest row of a key is a guess",
                )
            )
        if self.sequence_by and not self.keys:
            problems.append((("sequence_by",), "needs keys: an append table keeps every row"))
        if self.apply_as_deletes is not None and not self.keys:
            problems.append(
                (("apply_as_deletes",), "needs keys: rows of an append table are never deleted")
            )
        for name in ("keys", "sequence_by", "partition_by"):
            problems += [
                ((name,), f"names {twice!r} twice") for twice in repeated(getattr(self, name))
            ]
        if self.stored_as_scd_type == 1 and self.track_history is not None:
            problems.append((("track_history",), "is of a history: stored_as_scd_type: 2"))
        refuse([*problems, *self._history_problems(), *self._partial_problems()])
        return self

    def _partial_problems(self) -> list[Problem]:
        if self.partial is None:
            return []
        if not self.keys:
            return [((IGNORE,), "needs keys: an append table keeps every record as it is")]
        if self.stored_as_scd_type == 2:
            way = "keep the newest values with stored_as_scd_type: 1, or write whole records to the history"
            return [
                (
                    (IGNORE,),
                    f"not of a history: which values a row had depends on records that it no longer has; {way}",
                )
            ]
        return list(self.partial.problems())

    def _history_problems(self) -> list[Problem]:
        if self.stored_as_scd_type == 1:
            return []
        if not self.keys and not self.sequence_by:
            return [((name,), "is required by a history") for name in ("keys", "sequence_by")]
        found = self.history if self.keys and self.sequence_by else None
        return list(found.problems()) if found else []


Suite = Annotated[
    SuiteName | None,
    Field(
        description="Name of expectations/<name>.json; absent: nothing is checked.",
        examples=["flights"],
    ),
]
MaxDuration = Annotated[
    Annotated[Duration, Field(ge=1)] | None,
    Field(
        description="The drain stops after the batch that passes this time.",
        examples=["10 minutes"],
    ),
]
MaxBatches = Annotated[
    Annotated[int, Field(ge=1)] | None,
    Field(description="The drain stops after this many batches."),
]


class Maintenance(Model):
    """The maintenance of a flow's tables: compaction, retention."""

    target_file_size: Size = Field(
        default=64 * 1024**2, description="Size compaction aims at, per file.", examples=["64mb"]
    )
    copy_on_write: SizeOrNone = Field(
        default=4 * 1024**2,
        description="A MERGE that looks into no more than this writes the files whose rows it changes anew; a larger "
        "one marks rows as deleted. 0: all mark.",
        examples=["4mb"],
    )
    retain: Duration = Field(
        default=RETAIN_FLOOR,
        description="How long files of older versions stay readable; at least 7 days.",
        examples=["7 days"],
    )

    @field_validator("target_file_size")
    @classmethod
    def _sane(cls, value: int) -> int:
        if not 1024**2 <= value <= 4 * 1024**3:
            raise ValueError("must be 1mb to 4gb")
        return value

    @field_validator("retain")
    @classmethod
    def _above_floor(cls, value: int) -> int:
        if value < RETAIN_FLOOR:
            raise ValueError(
                "must be at least 7 days: VACUUM would remove files that readers or a running job need"
            )
        return value
