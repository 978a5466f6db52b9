"""The derivation `processor`: the user's fold over the rows of a key in their order, session by
session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, PrivateAttr, model_validator

from draindown.base.digests import Meaning
from draindown.base.formatting import age
from draindown.config.base import Part, Problem, refuse, repeated
from draindown.config.column_types import Column, plain
from draindown.config.names import ColumnName, DottedClass, caseless
from draindown.config.ranking import Order
from draindown.config.table_source import SourceTable
from draindown.config.units import Duration
from draindown.processors import fold, loading
from draindown.processors.fold import Shape
from draindown.processors.values import unheld

_GAP = (
    "is required: no row appears without input, so there is no timer that could end the state of a key; "
    "`gap: 30 minutes` begins the fold anew after such a gap between rows of a key, and a change costs no more than "
    "the rows between two gaps"
)
Declared = dict[ColumnName, Annotated[Column, AfterValidator(plain)]]


class Processor(Part):
    """The rows that a class gives for the rows of a key, in order: `(state, rows) -> (rows,
    state)`.

    A session is a run of rows with the same `group_by`, each at most `gap` after the one before it;
    the fold begins anew with each. Rows are ordered by `order_by`, then by all other columns, in
    the order of their names. A row without a time is in no session.
    """

    START: ClassVar[str] = "session_start"
    POSITION: ClassVar[str] = "position"
    made: ClassVar[Sequence[str]] = (START, POSITION)
    """The result's columns that neither the source has nor the class gives."""

    model_config = ConfigDict(serialize_by_alias=True)

    of: DottedClass = Field(
        alias="class",
        description="The class, of jobs/processors/: module.Class.",
        examples=["baskets.Basket"],
    )
    group_by: list[ColumnName] = Field(
        min_length=1,
        description="Columns that name a key; NULL is a value.",
        examples=[["user_id"]],
    )
    order_by: list[ColumnName] = Field(
        min_length=1,
        description="Columns that order the rows of a key, ascending, NULL last. The first is the time of a row.",
        examples=[["event_time"]],
    )
    gap: Annotated[Duration, Field(ge=1)] = Field(
        description="The fold begins anew, without a state, where no row of the key follows for longer than this.",
        examples=["30 minutes"],
    )
    columns: Declared = Field(
        min_length=1,
        description="Types of the columns of the rows that the class gives.",
        examples=[{"session_end": "timestamp", "events": "bigint"}],
    )
    state: Declared = Field(
        min_length=1,
        description="Types of the columns of the state: what the class needs to go on.",
        examples=[{"session_end": "timestamp", "events": "bigint"}],
    )
    _root: str = PrivateAttr(default="")
    _code: str = PrivateAttr(default="")

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the key."""
        return self.group_by

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: the key, the session, and the position of the
        row within it.
        """
        return [*self.group_by, *self.made]

    @property
    def time(self) -> str:
        """The column with the time of a row."""
        return self.order_by[0]

    @property
    def order(self) -> list[Order]:
        """The order of the rows of a key, as far as the file shows it."""
        return [Order(name, False) for name in self.order_by]

    @property
    def in_words(self) -> str:
        """The query in words."""
        ends = f"anew after a gap of {age(self.gap)}"
        return f"the fold {self.of} over the rows per {', '.join(self.group_by)}, by {', '.join(self.order_by)}, {ends}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return (
            f"the rows of its {', '.join(self.group_by)} after it, before and after the change, up to a gap of "
            f"{age(self.gap)} and from the newest state kept before it on"
        )

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {
            "class": self.of,
            "group_by": self.scope_keys,
            "order_by": self.order_by,
            "gap": self.gap,
            "columns": [[name, one.meaning()] for name, one in self.columns.items()],
            "state": [[name, one.meaning()] for name, one in self.state.items()],
        }

    @property
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part: none."""
        return {}

    @property
    def code(self) -> str:
        """The digest of the class's file; empty if it can't be read, or the project is not
        known.
        """
        return self._code

    @property
    def told(self) -> str:
        """The digest of the class's file: another one is another fold."""
        return self._code

    @property
    def lacking(self) -> str:
        """Why the class can't be known; empty if its file is there, or the project is not known."""
        return (
            f"no file {loading.path_of(self._root, self.of)}"
            if self._root and not self._code
            else ""
        )

    @property
    def root(self) -> str:
        """The project in which the class is; empty until it is known."""
        return self._root

    def placed(self, root: Path) -> None:
        """Take the project in which the class is, and the digest of its file. No-op once both are
        known.
        """
        if not self._root:
            self._root, self._code = str(root), loading.digest(str(root), self.of)

    def shape(self, make: type) -> Shape:
        """Return the fold of a class as this part declares it."""
        columns, state = (
            {name: one.type for name, one in own.items()} for own in (self.columns, self.state)
        )
        return Shape(make, self.gap * 1_000_000, columns, state, fold.KEPT_EVERY)

    def timed_by(self, table: str) -> str:  # noqa: ARG002
        """Return the time of a row."""
        return self.time

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a key are found."""
        return self.group_by

    @model_validator(mode="before")
    @classmethod
    def _has_gap(cls, given: Any) -> Any:
        if isinstance(given, dict) and "gap" not in given:
            refuse([(("gap",), _GAP)])
        return given

    @model_validator(mode="after")
    def _combination(self) -> Processor:
        refuse([*self._name_problems(), *self._type_problems()])
        return self

    def _name_problems(self) -> Iterator[Problem]:
        made = {caseless(name) for name in self.made}
        keys = {caseless(name) for name in self.group_by}
        taken = made | keys
        for part, names in (
            ("group_by", self.group_by),
            ("order_by", self.order_by),
            ("columns", list(self.columns)),
            ("state", list(self.state)),
        ):
            for name in repeated(names):
                yield (part,), f"names {name!r} twice"
        for name in self.group_by:
            if caseless(name) in made:
                yield ("group_by",), f"{name!r} is a column of the result"
        for name in self.order_by:
            if caseless(name) in keys:
                yield ("order_by",), f"{name!r} is in `group_by`"
        for name in self.columns:
            if caseless(name) in taken:
                yield ("columns", name), "is the name of another column of the result"

    def _type_problems(self) -> Iterator[Problem]:
        for part, columns in (("columns", self.columns), ("state", self.state)):
            for name, one in columns.items():
                if not one.nullable:
                    yield (
                        (part, name),
                        "is `not null`, which no row of a result is refused for; use an expectation",
                    )
                if (why := unheld(one.type)) is not None:
                    yield (part, name), why
