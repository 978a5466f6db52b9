"""The derivation `join`: pairs of rows of two tables with equal keys, within a bound of time or
without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from draindown.base.digests import Meaning
from draindown.config.base import Problem, refuse
from draindown.config.names import ColumnName, Identifier, unlike
from draindown.config.pairing import CHOSEN, Chosen, Pairing
from draindown.config.table_source import SourceTable
from draindown.config.units import Duration, SignedDuration, show_duration

_FARTHEST = 100 * 366 * 86400
_HOW_REFUSED: Mapping[str, str] = {
    "right": "exchange `left` and `right`, and the bounds with their signs: `left_outer` keeps the rows of left",
    "full": "a row of right without a match has no left row in whose scope it could be: keep a `left_outer` each way",
    "semi": "which left rows have a match, a `left_outer` shows: in those the columns of right are not NULL; a `per` "
    "query over it can choose them",
    "anti": "which left rows have no match, a `left_outer` shows: in those the columns of right are NULL; a `per` "
    "query over it can choose them",
}


def _how(given: object) -> object:
    word = (
        given.lower().removesuffix("_outer").removeprefix("left_") if isinstance(given, str) else ""
    )
    if word in _HOW_REFUSED:
        raise ValueError(f"{given}: {_HOW_REFUSED[word]}")
    return "left_outer" if given == "left" else given


class Join(Pairing):
    """One row per pair of rows with equal keys whose times are within a bound, or without times:
    with equal keys.

    `left_outer` has a row of each left row without a match too, with NULL in the columns of the
    right table. A row whose key or time is NULL matches nothing.
    """

    BUCKET: ClassVar[str] = "time_bucket"
    UNTIMED: ClassVar[str] = "has no `times`, by which a row of either table could be late"

    left: Identifier = Field(
        description="The source table whose rows come first.", examples=["clicks"]
    )
    right: Identifier = Field(
        description="The source table whose rows are matched.", examples=["purchases"]
    )
    times: Annotated[list[ColumnName], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="The column with the time of a left row, and that of a right row; absent: keys alone decide.",
        examples=[["click_time", "purchase_time"]],
    )
    within: Annotated[Duration, Field(ge=1)] | None = Field(
        default=None,
        description="A right row matches from the time of the left row up to so much later, both ends in.",
        examples=["30 minutes"],
    )
    between: Annotated[list[SignedDuration], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="The same with two ends: a right row is at least and at most so much later, or earlier if `-`.",
        examples=[["-10 minutes", "30 minutes"]],
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
    def named(self) -> tuple[str, str]:
        """The tables by their names: left, right."""
        return self.left, self.right

    @property
    def chosen(self) -> Chosen:
        """The columns of the right table, as the file has them."""
        return self.columns

    @property
    def bound(self) -> tuple[int, int]:
        """Seconds from the time of a left row to the earliest and to the latest right row that
        matches it.
        """
        if self.between is not None:
            low, high = self.between
            return low, high
        return 0, self.within or 0

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
            left, right = self.times
            apart = (
                f", with {right} from {show_duration(low)} to {show_duration(high)} after {left}"
            )
        kept = f"; rows of {self.left} without one have NULLs" if self.is_outer else ""
        return f"pairs of rows of {self.left} and {self.right} with the same {', '.join(self.on)}{apart}{kept}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        keys = ", ".join(self.on)
        if not self.times:
            return f"the pairs of its {keys}, before and after the change"
        return (
            f"the pairs of its {keys} in the stretch of time that {self.left} has near it, "
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
        return self.times[int(table == self.right)] if self.times else None

    def sought(self, table: SourceTable) -> Sequence[str]:
        """Return the columns of a source table by which the rows of a scope are found."""
        time = self.timed_by(table.table)
        return [*(table.column(key) for key in self.on), *([time] if time else [])]

    def source_problems(self, tables: Sequence[SourceTable]) -> Iterator[Problem]:
        """Yield what is wrong about the tables that the part names, by their path in the flow."""
        known, wrong = [one.table for one in tables], False
        for side, name in zip(("left", "right"), self.named, strict=True):
            if name not in known:
                wrong = True
                yield ("join", side), f"{name!r} is no table of `source`{unlike(name, known)}"
        if not wrong and len(known) != 2:
            yield ("source",), f"a join reads two tables, in `tables`: {self.left} and {self.right}"

    @model_validator(mode="after")
    def _combination(self) -> Join:
        problems = self._listed_problems()
        if self.left == self.right:
            problems.append(
                (
                    ("right",),
                    "is left too: a join of a table with itself needs a copy under another name",
                )
            )
        given = [name for name in ("within", "between") if getattr(self, name) is not None]
        if self.times is None:
            problems += [((name,), "needs `times`: which columns it is about") for name in given]
        elif len(given) != 1:
            what = (
                "has within and between: keep one"
                if given
                else "needs within or between: how far apart they may be"
            )
            problems.append((("times",), what))
        if self.between is not None and self.between[0] > self.between[1]:
            ends = " and ".join(map(show_duration, self.between))
            problems.append(
                (("between",), f"{ends}: the first is after the second, so that nothing matches")
            )
        if max(map(abs, self.bound)) > _FARTHEST:
            problems.append(
                (
                    ("times",),
                    "may be more than a century apart: leave the bound out, so that keys decide",
                )
            )
        refuse(problems)
        return self
