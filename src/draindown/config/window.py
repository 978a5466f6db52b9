"""The derivation `window`: aggregates per window of time and group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from draindown.base.digests import Meaning
from draindown.base.formatting import age
from draindown.config.base import Part, Problem, assigned, refuse, repeated
from draindown.config.names import ColumnName, Measure, caseless
from draindown.config.table_source import SourceTable
from draindown.config.units import Duration, WindowSize

_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_LONGEST_MONTH = 31 * 86400
_SECONDS_OF_WEEK = 7 * 86400
_MOST_WINDOWS = 10_000
"""Most windows that one row may lie in: size divided by slide."""


class Window(Part):
    """One row per window of time and group: tumbling windows, or hopping ones if `slide` is less
    than `size`.

    Windows begin at multiples of `slide` since 1970-01-01 00:00 UTC, those that begin every week or
    every few weeks since the first `week_starts` after it; windows of months begin with a month.
    A row without a time lies in no window.
    """

    START: ClassVar[str] = "window_start"
    END: ClassVar[str] = "window_end"

    time: ColumnName = Field(description="Column with the time of a row.", examples=["event_time"])
    size: WindowSize = Field(
        description="Length of a window: a duration, or calendar months in UTC.",
        examples=["5 minutes", "1 month"],
    )
    slide: Annotated[Duration, Field(ge=1)] | None = Field(
        default=None,
        description="A window begins every so often; absent: every `size`.",
        examples=["1 minute"],
    )
    week_starts: (
        Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] | None
    ) = Field(
        default=None,
        description="First day of windows that begin every week, or every few weeks; absent: monday.",
    )
    group_by: list[ColumnName] = Field(
        default_factory=list,
        description="Columns that group the rows of a window; NULL is a group.",
        examples=[["origin"]],
    )
    measures: dict[ColumnName, Measure] = Field(
        min_length=1,
        description="Result columns by name: SQL aggregates over the rows of a window and group.",
        examples=[{"flights": "count(*)", "late": "sum(dep_delay)"}],
    )

    @property
    def months(self) -> int | None:
        """Calendar months of a window; None if it has a fixed length."""
        return int(self.size.partition(" ")[0]) if isinstance(self.size, str) else None

    @property
    def seconds(self) -> int:
        """Length of a window in seconds; of months the most that they can have."""
        return self.size if isinstance(self.size, int) else (self.months or 0) * _LONGEST_MONTH

    @property
    def step(self) -> int:
        """Seconds from the start of a window to the start of the next one; of months the most that
        it can be.
        """
        return self.seconds if self.slide is None else self.slide

    @property
    def origin(self) -> int:
        """Seconds from 1970-01-01 to a start of a window of fixed length."""
        if self.step % _SECONDS_OF_WEEK:
            return 0
        days = _WEEK.index(self.week_starts or "monday") - _WEEK.index("thursday")
        return (days % 7) * 86400

    def timed_by(self, table: str) -> str:  # noqa: ARG002
        """Return the time of a row."""
        return self.time

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a window are found."""
        return [self.time, *self.group_by]

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result."""
        return [self.START, *self.group_by]

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the window and its group."""
        return self.keys

    @property
    def columns(self) -> list[str]:
        """The result's columns."""
        return [*self.keys, self.END, *self.measures]

    @property
    def interval(self) -> tuple[str, str]:
        """The result's columns with the start and the end of a row's time."""
        return self.START, self.END

    @property
    def margin(self) -> int:
        """Seconds by which the rows of a touched scope reach beyond the time of a changed row."""
        return self.seconds

    @property
    def in_words(self) -> str:
        """The query in words."""
        size = age(self.size) if isinstance(self.size, int) else self.size
        slide = "" if self.slide is None else f" every {age(self.slide)}"
        return f"windows of {size}{slide} by {self.time}{_per(self.group_by)}: {assigned(self.measures)}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return (
            f"the windows that its {self.time} lies in, of its group, before and after the change"
        )

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest.

        Where windows begin is said by seconds: whatever day is the default, the same windows are
        the same.
        """
        return {
            "time": self.time,
            "size": self.size,
            "slide": self.slide,
            "origin": self.origin,
            "group_by": self.group_by,
            "measures": list(self.measures.items()),
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part by its place in it."""
        return {("measures", name): text for name, text in self.measures.items()}

    @model_validator(mode="after")
    def _combination(self) -> Window:
        problems: list[Problem] = []
        if self.months is not None:
            why = "counts for windows of a fixed length, not for months"
            problems += [
                ((name,), why)
                for name in ("slide", "week_starts")
                if getattr(self, name) is not None
            ]
        elif self.week_starts is not None and self.step % _SECONDS_OF_WEEK:
            problems.append(
                (("week_starts",), "counts for windows that begin every week, or every few weeks")
            )
        if self.step > self.seconds:
            problems.append(
                (("slide",), "is more than size: rows between two windows would lie in none")
            )
        elif self.seconds > _MOST_WINDOWS * self.step:
            problems.append((("slide",), f"puts each row into more than {_MOST_WINDOWS} windows"))
        problems += [(("group_by",), f"names {twice!r} twice") for twice in repeated(self.group_by)]
        named = [self.START, self.END, *self.group_by]
        problems += [
            (("measures", name), "is the name of another column of the result")
            for name in self.measures
            if caseless(name) in {caseless(other) for other in named}
        ]
        problems += [
            (("measures",), f"names {twice!r} twice") for twice in repeated(list(self.measures))
        ]
        if {self.START, self.END} & {caseless(name) for name in self.group_by}:
            problems.append(
                (("group_by",), f"{self.START} and {self.END} are columns of the result")
            )
        refuse(problems)
        return self


def _per(names: Sequence[str]) -> str:
    return f", per {', '.join(names)}" if names else ""
