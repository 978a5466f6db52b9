"""The derivation `processor`: the user's fold over the rows of a key in their order, segment by
segment.
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

_EXPIRE = (
    "is required: no row appears without input, so there is no timer that could end the state of a key; "
    "`expire: 30 minutes` begins the fold anew after such a gap between rows of a key, and a change costs no more than "
    "the rows between two gaps"
)
Declared = dict[ColumnName, Annotated[Column, AfterValidator(plain)]]


class Processor(Part):
    """The rows that a class gives for the rows of a key, in order: `(snapshot, rows) -> (rows,
    snapshot)`.

    A segment is a run of rows with the same `by`, each at most `expire` after the one before it;
    the fold begins anew with each. Rows are ordered by `order_by`, then by all other columns, in
    the order of their names. A row without a time is in no segment.
    """

    START: ClassVar[str] = "segment_start"
    POSITION: ClassVar[str] = "position"
    made: ClassVar[Sequence[str]] = (START, POSITION)
    """The result's columns that neither the source has nor the class gives."""

    model_config = ConfigDict(serialize_by_alias=True)

    of: DottedClass = Field(
        alias="class",
        description="The class, of jobs/processors/: module.Class.",
        examples=["baskets.Basket"],
    )
    by: list[ColumnName] = Field(
        min_length=1,
        description="Columns that name a key; NULL is a value.",
        examples=[["user_id"]],
    )
    order_by: list[ColumnName] = Field(
        min_length=1,
        description="Columns that order the rows of a key, ascending, NULL last. The first is the time of a row.",
        examples=[["event_time"]],
    )
    expire: Annotated[Duration, Field(ge=1)] = Field(
        description="The fold begins anew, without a snapshot, where no row of the key follows for longer than this.",
        examples=["30 minutes"],
    )
    columns: Declared = Field(
        min_length=1,
        description="Types of the columns of the rows that the class gives.",
        examples=[{"session_end": "timestamp", "events": "bigint"}],
    )
    snapshot: Declared = Field(
        min_length=1,
        description="Types of the columns of the snapshot: what the class needs to go on.",
        examples=[{"session_end": "timestamp", "events": "bigint"}],
    )
    _root: str = PrivateAttr(default="")
    _code: str = PrivateAttr(default="")

    @property
    def scope_keys(self) -> list[str]:
        """The columns whose values are recomputed together: the key."""
        return self.by

    @property
    def keys(self) -> list[str]:
        """The columns that name a row of the result: the key, the segment, and the position of the
        row within it.
        """
        return [*self.by, *self.made]

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
        ends = f"anew after a gap of {age(self.expire)}"
        return f"the fold {self.of} over the rows per {', '.join(self.by)}, by {', '.join(self.order_by)}, {ends}"

    @property
    def touches(self) -> str:
        """What a changed row touches, in words."""
        return (
            f"the rows of its {', '.join(self.by)} after it, before and after the change, up to a gap of "
            f"{age(self.expire)} and from the newest snapshot before it on"
        )

    def meaning(self) -> Meaning:
        """Return what the part says, in the words of its digest."""
        return {
            "class": self.of,
            "group_by": self.scope_keys,
            "order_by": self.order_by,
            "gap": self.expire,
            "columns": [[name, one.meaning()] for name, one in self.columns.items()],
            "state": [[name, one.meaning()] for name, one in self.snapshot.items()],
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
        columns, snapshot = (
            {name: one.type for name, one in own.items()} for own in (self.columns, self.snapshot)
        )
        return Shape(make, self.expire * 1_000_000, columns, snapshot, fold.KEPT_EVERY)

    def timed_by(self, table: str) -> str:  # noqa: ARG002
        """Return the time of a row."""
        return self.time

    def sought(self, table: SourceTable) -> Sequence[str]:  # noqa: ARG002
        """Return the columns of the source table by which the rows of a key are found."""
        return self.by

    @model_validator(mode="before")
    @classmethod
    def _expires(cls, given: Any) -> Any:
        if isinstance(given, dict) and "expire" not in given:
            refuse([(("expire",), _EXPIRE)])
        return given

    @model_validator(mode="after")
    def _combination(self) -> Processor:
        refuse([*self._name_problems(), *self._type_problems()])
        return self

    def _name_problems(self) -> Iterator[Problem]:
        made = {caseless(name) for name in self.made}
        keys = {caseless(name) for name in self.by}
        taken = made | keys
        for part, names in (
            ("by", self.by),
            ("order_by", self.order_by),
            ("columns", list(self.columns)),
            ("snapshot", list(self.snapshot)),
        ):
            for name in repeated(names):
                yield (part,), f"names {name!r} twice"
        for name in self.by:
            if caseless(name) in made:
                yield ("by",), f"{name!r} is a column of the result"
        for name in self.order_by:
            if caseless(name) in keys:
                yield ("order_by",), f"{name!r} is in `by`"
        for name in self.columns:
            if caseless(name) in taken:
                yield ("columns", name), "is the name of another column of the result"

    def _type_problems(self) -> Iterator[Problem]:
        for part, columns in (("columns", self.columns), ("snapshot", self.snapshot)):
            for name, one in columns.items():
                if not one.nullable:
                    yield (
                        (part, name),
                        "is `not null`, which no row of a result is refused for; use an expectation",
                    )
                if (why := unheld(one.type)) is not None:
                    yield (part, name), why
