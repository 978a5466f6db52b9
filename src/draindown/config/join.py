"""The derivation `join`: pairs of rows of two tables with equal keys, within a bound of time or
without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from draindown.base.digests import Meaning
from draindown.config.base import Model, refuse
from draindown.config.names import ColumnName, Identifier
from draindown.config.pairing import CHOSEN, Chosen, Pairing
from draindown.config.table_source import SourceTable
from draindown.config.units import SignedDuration, show_duration

_FARTHEST = 100 * 366 * 86400
_HOW_REFUSED: Mapping[str, str] = {
    "right": "exchange the two tables, and the bounds with their signs: `left_outer` keeps the rows of `source`",
    "full": "a row of right without a match has no left row in whose scope it could be: keep a `left_outer` each way",
    "semi": "which left rows have a match, a `left_outer` shows: in those the columns of right are not NULL; a "
    "`query` over it can choose them",
    "anti": "which left rows have no match, a `left_outer` shows: in those the columns of right are NULL; a "
    "`query` over it can choose them",
}


def _how(given: object) -> object:
    word = (
        given.lower().removesuffix("_outer").removeprefix("left_") if isinstance(given, str) else ""
    )
    if word in _HOW_REFUSED:
        raise ValueError(f"{given}: {_HOW_REFUSED[word]}")
    return "left_outer" if given == "left" else given


class Interval(Model):
    """The bound of a join on the times of two rows: how much later the right one may be."""

    left: ColumnName = Field(
        description="Column with the time of a row of the flow's table.", examples=["click_time"]
    )
    right: ColumnName = Field(
        description="Column with the time of a row of the joined table.", examples=["purchase_time"]
    )
    between: Annotated[list[SignedDuration], Field(min_length=2, max_length=2)] = Field(
        description="A right row is at least and at most so much later than the left row, both ends included; "
        "earlier if `-`.",
        examples=[["0 minutes", "30 minutes"], ["-10 minutes", "30 minutes"]],
    )

    @field_validator("between")
    @classmethod
    def _ordered(cls, ends: list[int]) -> list[int]:
        if ends[0] > ends[1]:
            shown = " and ".join(map(show_duration, ends))
            raise ValueError(f"{shown}: the first is after the second, so that nothing matches")
        if max(map(abs, ends)) > _FARTHEST:
            raise ValueError(
                "may be more than a century apart: leave `interval` out, so that keys decide"
            )
        return ends


class Join(Pairing):
    """One row per pair of rows with equal keys whose times are within a bound, or without
    `interval`: with equal keys.

    `left_outer` has a row of each left row without a match too, with NULL in the columns of the
    right table. A row whose key or time is NULL matches nothing.
    """

    BUCKET: ClassVar[str] = "time_bucket"
    UNTIMED: ClassVar[str] = "has no `interval`, by which a row of either table could be late"

    table: Identifier = Field(
        description="Table whose rows are matched with those of `source`.", examples=["purchases"]
    )
    interval: Interval | None = Field(
        default=None,
        description="How far apart the times of two rows may be; absent: keys alone decide.",
    )
    how: Annotated[Literal["inner", "left_outer"], BeforeValidator(_how)] = Field(
        default="inner",
        description="Whether left rows without a match are left out, or kept with NULLs.",
    )
    columns: Chosen = Field(
        default=None,
        description=f"The columns of the right table in the result, {CHOSEN}",
        examples=[["amount"], {"time": "purchase_time"}],
    )

    @property
    def chosen(self) -> Chosen:
        """The columns of the right table, as the file has them."""
        return self.columns

    @property
    def bound(self) -> tuple[int, int]:
        """Seconds from the time of a left row to the earliest and to the latest right row that
        matches it.
        """
        low, high = (0, 0) if self.interval is None else self.interval.between
        return low, high

    @property
    def times(self) -> tuple[str, str] | None:
        """The columns with the time of a left row and of a right row; None if keys alone decide."""
        return None if self.interval is None else (self.interval.left, self.interval.right)

    @property
    def bucket(self) -> int:
        """Seconds of a bucket of left times: a right row has matches in two buckets at most."""
        low, high = self.bound
        return max(high - low, 1)

    @property
    def is_outer(self) -> bool:
        """Whether left rows without a match are kept."""
        return self.how == "left_outer"

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: those of `on`, and the bucket of the
        left time.
        """
        return [*self.on, *([self.BUCKET] if self.times else [])]

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: its scope, its left row, its right row."""
        return list(dict.fromkeys([*self.scope_keys, *self.named_by(0), *self.named_by(1)]))

    @property
    def margin(self) -> int:
        """Seconds by which the rows of a touched scope reach beyond the time of a changed row.

        A right row lies in the buckets of its time less either end of the bound, whose right rows
        lie further by it.
        """
        return 2 * self.bucket + max(map(abs, self.bound)) if self.times else 0

    @property
    def in_words(self) -> str:
        """The query in words."""
        low, high = self.bound
        apart = ""
        if self.times:
            first, second = self.times
            apart = (
                f", with {second} from {show_duration(low)} to {show_duration(high)} after {first}"
            )
        left, right = self.sides
        kept = f"; rows of {left.table} without one have NULLs" if self.is_outer else ""
        return f"pairs of rows of {left.table} and {right.table} with the same {self.on_in_words}{apart}{kept}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        keys = ", ".join(self.on)
        if not self.times:
            return f"the pairs of its {keys}, before and after the change"
        return (
            f"the pairs of its {keys} in the stretch of time that {self.sides[0].table} has near it, "
            f"before and after the change"
        )

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        interval = [*self.times, *self.bound] if self.times else None
        return {**super().meaning(), "interval": interval, "outer": self.is_outer}

    def made(self) -> list[str]:
        """Return the result's columns that neither table has."""
        return [*([self.BUCKET] if self.times else []), *super().made()]

    def timed_by(self, table: str) -> str | None:
        """Return the column with the time of a row of either table; None without a bound."""
        return self.times[int(table == self.table)] if self.times else None

    def sought(self, table: SourceTable) -> Sequence[str]:
        """Return the columns of a source table by which the rows of a scope are found."""
        time = self.timed_by(table.table)
        return [*(table.column(key) for key in self.on), *([time] if time else [])]

    @model_validator(mode="after")
    def _combination(self) -> Join:
        refuse(self._listed_problems())
        return self
