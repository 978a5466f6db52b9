"""The derivation `session`: aggregates per run of events that follow each other without a long
gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from draindown.base.digests import Meaning
from draindown.base.formatting import age
from draindown.config.base import Part, Problem, assigned, refuse, repeated
from draindown.config.names import ColumnName, Measure
from draindown.config.table_source import SourceTable
from draindown.config.units import Duration


class Session(Part):
    """One row per session: rows with the same `group_by`, each at most `gap` after the one before it.

    A row exactly `gap` after the one before belongs to its session, as in Spark's `session_window`.
    A row without a time lies in no session.
    """

    START: ClassVar[str] = "session_start"
    END: ClassVar[str] = "session_end"
    SECONDS: ClassVar[str] = "session_seconds"

    time: ColumnName = Field(description="Column with the time of a row.", examples=["event_time"])
    gap: Annotated[Duration, Field(ge=1)] = Field(
        description="A session ends where no row follows for longer than this.",
        examples=["30 minutes"],
    )
    group_by: list[ColumnName] = Field(
        min_length=1,
        description="Columns whose rows form sessions of their own; NULL is a value.",
        examples=[["user"]],
    )
    measures: dict[ColumnName, Measure] = Field(
        min_length=1,
        description="Result columns by name: SQL aggregates over the rows of a session.",
        examples=[{"events": "count(*)"}],
    )

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together."""
        return self.group_by

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result."""
        return [*self.group_by, self.START]

    @property
    def made(self) -> list[str]:
        """The result's columns that are neither of the source nor measures."""
        return [self.START, self.END, self.SECONDS]

    @property
    def columns(self) -> list[str]:
        """The result's columns."""
        return [*self.group_by, *self.made, *self.measures]

    @property
    def interval(self) -> tuple[str, str]:
        """The result's columns with the start and the end of a row's time."""
        return self.START, self.END

    @property
    def in_words(self) -> str:
        """The query in words."""
        ends, measures = f"that end after a gap of {age(self.gap)}", assigned(self.measures)
        return f"sessions by {self.time}, per {', '.join(self.group_by)}, {ends}: {measures}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return (
            f"the sessions of its {', '.join(self.group_by)} at most a gap from its {self.time}, "
            f"before and after the change"
        )

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {
            "time": self.time,
            "gap": self.gap,
            "group_by": self.scope_keys,
            "measures": list(self.measures.items()),
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part by its place in it."""
        return {("measures", name): text for name, text in self.measures.items()}

    def timed_by(self, table: str) -> str:  # noqa: ARG002
        """Return the time of a row."""
        return self.time

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a scope are found."""
        return self.group_by

    @model_validator(mode="after")
    def _combination(self) -> Session:
        named = {name.lower() for name in (*self.made, *self.group_by)}
        made = {name.lower() for name in self.made}
        problems: list[Problem] = [
            (("group_by",), f"names {twice!r} twice") for twice in repeated(self.group_by)
        ]
        problems += [
            (("group_by",), f"{name!r} is a column of the result")
            for name in self.group_by
            if name.lower() in made
        ]
        problems += [
            (("group_by",), f"{name!r} is the time of a row")
            for name in self.group_by
            if name == self.time
        ]
        problems += [
            (("measures",), f"names {twice!r} twice") for twice in repeated(list(self.measures))
        ]
        problems += [
            (("measures", name), "is the name of another column of the result")
            for name in self.measures
            if name.lower() in named
        ]
        refuse(problems)
        return self
