"""Derived flows: a table that equals a query over tables that other flows write.

How the table is kept is one part of the flow, its derivation. Each kind of derivation has a model here, and its query
in `spark/derived/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from draindown.spec import sinks
from draindown.spec.base import Model, Problem, refuse, repeated
from draindown.spec.column_types import Column, plain
from draindown.spec.join import Join
from draindown.spec.lookup import Lookup
from draindown.spec.names import ColumnName, Identifier, Measure, unlike
from draindown.spec.pairing import Pairing
from draindown.spec.per import Per
from draindown.spec.ranking import Deduplicate, Top
from draindown.spec.session import Session
from draindown.spec.sinks import FlowSink
from draindown.spec.table_source import SourceTable, TableSource
from draindown.spec.target_kinds import DERIVED, TargetKind
from draindown.spec.targets import Deadline, Maintenance, MaxBatches, PartitionBy, Suite, TableName
from draindown.spec.units import Duration, WindowSize

FLOATS = ("float", "double")
TOLERANCE = 1e-9
"""Doubles within this relative distance are equal: the sum of a group depends on the order of its rows."""
_WEEK = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_LONGEST_MONTH = 31 * 86400
_MOST_WINDOWS = 10_000
"""Most windows that one row may lie in: size divided by slide."""


class Window(Model):
    """One row per window of time and group: tumbling windows, or hopping ones if `slide` is less than `size`.

    Windows begin at multiples of `slide` since 1970-01-01 00:00 UTC, or since the first `week_starts` after it; windows
    of months begin with a month. A row without a time lies in no window.
    """

    START: ClassVar[str] = "window_start"
    END: ClassVar[str] = "window_end"

    time: ColumnName = Field(description="Column with the time of a row.", examples=["event_time"])
    size: WindowSize = Field(
        description="Length of a window: a duration, or calendar months in UTC.", examples=["5 minutes", "1 month"]
    )
    slide: Annotated[Duration, Field(ge=1)] | None = Field(
        default=None, description="A window begins every so often; absent: every `size`.", examples=["1 minute"]
    )
    week_starts: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] | None = Field(
        default=None, description="First day of windows of weeks; absent: thursday, which 1970-01-01 was."
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
        """Seconds from the start of a window to the start of the next one; of months the most that it can be."""
        return self.seconds if self.slide is None else self.slide

    @property
    def origin(self) -> int:
        """Seconds from 1970-01-01 to a start of a window of fixed length."""
        return (
            0 if self.week_starts is None else ((_WEEK.index(self.week_starts) - _WEEK.index("thursday")) % 7) * 86400
        )

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
    def expressions(self) -> Mapping[tuple[str, ...], str]:
        """The SQL of this part by its place in it."""
        return {("measures", name): text for name, text in self.measures.items()}

    @model_validator(mode="after")
    def _combination(self) -> Window:
        problems: list[Problem] = []
        if self.months is not None:
            why = "counts for windows of a fixed length, not for months"
            problems += [((name,), why) for name in ("slide", "week_starts") if getattr(self, name) is not None]
        elif self.week_starts is not None and self.step % (7 * 86400):
            problems.append((("week_starts",), "counts for windows that begin every week, or every few weeks"))
        if self.step > self.seconds:
            problems.append((("slide",), "is more than size: rows between two windows would lie in none"))
        elif self.seconds > _MOST_WINDOWS * self.step:
            problems.append((("slide",), f"puts each row into more than {_MOST_WINDOWS} windows"))
        problems += [(("group_by",), f"names {twice!r} twice") for twice in repeated(self.group_by)]
        named = [self.START, self.END, *self.group_by]
        problems += [
            (("measures", name), "is the name of another column of the result")
            for name in self.measures
            if name.lower() in {other.lower() for other in named}
        ]
        problems += [(("measures",), f"names {twice!r} twice") for twice in repeated(list(self.measures))]
        if {self.START, self.END} & {name.lower() for name in self.group_by}:
            problems.append((("group_by",), f"{self.START} and {self.END} are columns of the result"))
        refuse(problems)
        return self


Derivation = Window | Session | Per | Deduplicate | Top | Join | Lookup
KINDS: Mapping[str, type[Derivation]] = {
    "window": Window,
    "session": Session,
    "per": Per,
    "deduplicate": Deduplicate,
    "top": Top,
    "join": Join,
    "lookup": Lookup,
}
"""The kinds of derivation by the name of their part in a flow. A new kind is one more entry, and one field below."""


class DerivedTarget(Model):
    """The target table of a derived flow. Its keys follow from the derivation."""

    table: TableName = None
    partition_by: PartitionBy = Field(default_factory=list)
    _keys: list[str] = PrivateAttr(default_factory=list)

    @property
    def kind(self) -> TargetKind:
        """The kind of table: equal to a query, by keys."""
        return DERIVED

    @property
    def keys(self) -> list[str]:
        """The columns that name a row. NULL is a value of a key."""
        return self._keys

    @property
    def essential(self) -> list[str]:
        """The columns that identify a row: the keys."""
        return self._keys


class DerivedFlow(Model):
    """A flow that keeps its table equal to a query over tables of other flows."""

    source: TableSource = Field(description="The tables that the query reads.")
    window: Window | None = Field(default=None, description="Aggregates per window of time and group.")
    session: Session | None = Field(default=None, description="Aggregates per run of rows without a long gap.")
    per: Per | None = Field(default=None, description="A query that works within the given keys.")
    deduplicate: Deduplicate | None = Field(default=None, description="The first or last row per key.")
    top: Top | None = Field(default=None, description="The first rows of each group in an order.")
    join: Join | None = Field(
        default=None, description="Pairs of rows of two tables, within a bound of time or without."
    )
    lookup: Lookup | None = Field(default=None, description="Columns of another table's row beside each row.")
    accept: Annotated[Duration, Field(ge=1)] | None = Field(
        default=None,
        description="Rows that arrive later than this after their time are kept out of windows; absent: none is late.",
        examples=["2 days"],
    )
    columns: dict[ColumnName, Annotated[Column, AfterValidator(plain)]] = Field(
        default_factory=dict,
        description="Types of result columns. Absent: as Spark infers them. Another type ends the drain red.",
    )
    target: DerivedTarget = Field(
        default_factory=DerivedTarget, description="The table to write; absent: it has the flow's name."
    )
    expectations: Suite = None
    also_to: dict[Identifier, FlowSink] = Field(
        default_factory=dict, description="Sinks by name: where each batch goes beside the table."
    )
    maintenance: Maintenance = Field(default_factory=Maintenance, description="Compaction and retention.")
    deadline: Deadline = None
    max_batches: MaxBatches = None

    def table_name(self, flow_name: str) -> str:
        """Return the name of the target table."""
        return self.target.table or flow_name

    @property
    def kind(self) -> str:
        """The kind of derivation: its key in `KINDS`."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def derivation(self) -> Derivation:
        """How the table follows from its source."""
        found: Derivation = getattr(self, self.kind)
        return found

    @property
    def transform(self) -> None:
        """A derived flow has no transform: its query shapes the rows."""

    @property
    def known_columns(self) -> dict[str, str] | None:
        """The table's columns and their types: None, since Spark infers them."""
        return None

    @property
    def stored_columns(self) -> list[str] | None:
        """The columns of the table; None if only the query shows them."""
        found = self.derivation
        return list(found.columns) if isinstance(found, Window | Session) else None

    @property
    def measures(self) -> Mapping[str, str]:
        """The aggregates over the rows of a window or session, by name; none of other kinds."""
        found = self.derivation
        return found.measures if isinstance(found, Window | Session) else {}

    @property
    def interval(self) -> tuple[str, str] | None:
        """The columns of the table with the start and the end of a row's time; None of kinds without."""
        found = self.derivation
        return found.interval if isinstance(found, Window | Session) else None

    @property
    def times(self) -> Sequence[str]:
        """The columns of the table with times that the derivation computes."""
        found = self.derivation
        return [Join.BUCKET] if isinstance(found, Join) and found.times else self.interval or ()

    @property
    def upstream(self) -> tuple[str, ...]:
        """The tables of the flow's own pipeline that it reads."""
        return tuple(one.table for one in self.source.read if not one.pipeline)

    @property
    def expressions(self) -> dict[tuple[str, ...], str]:
        """The SQL of the flow by its place in it."""
        return {(self.kind, *place): text for place, text in self.derivation.expressions.items()}

    @model_validator(mode="after")
    def _combination(self) -> DerivedFlow:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            *others, last = KINDS
            choices = f"{', '.join(others)} or {last}"
            what = f"has {' and '.join(given)}: keep one" if given else f"needs one of {choices}: how its table follows"
            refuse([(("source",), what)])
        refuse(list(self._source_problems()))
        self.settle()
        late = [] if self.accept is None or self.window else [(("accept",), "is about the time of rows in a window")]
        rest = [] if isinstance(self.derivation, Pairing) else self.settled_problems()
        refuse([*late, *self._column_problems(), *rest])
        return self

    def settle(self) -> None:
        """Take the keys of the result, and what follows from them, from the derivation and its source tables.

        To be called again once the keys of the source tables are known, of which those of two tables' rows consist.
        """
        part = self.derivation
        if isinstance(part, Pairing):
            part.bind(self.source.read)
        self.target._keys = list(part.keys)
        unsaid = {key for key in ("week_starts",) if getattr(part, key, None) is None}  # added later
        said = part.model_dump_json(exclude=unsaid) + json.dumps(
            {name: str(kind) for name, kind in self.columns.items()}
        )
        said += self.source.told + ("" if self.accept is None else f" accept {self.accept}")
        said += f" keys {part.keys}" if isinstance(part, Pairing) else ""
        self.source._derivation = hashlib.sha256(said.encode()).hexdigest()[:16]
        by_table = [part.sought(one) for one in self.source.read]
        self.source._sought = {key: [own[at] for own in by_table] for at, key in enumerate(part.scope_keys)}

    def settled_problems(self) -> list[Problem]:
        """Return what the keys of the result forbid, once `settle` took them from source tables that are known."""
        part = self.derivation
        own = part.key_problems() if isinstance(part, Pairing) else ()
        sent = sinks.problems(self.also_to, self.target.keys, self.stored_columns, refuses=False)
        return [*(((self.kind, *place), text) for place, text in own), *self._partition_problems(), *sent]

    def _source_problems(self) -> Iterable[Problem]:
        tables, part = self.source.read, self.derivation
        if isinstance(part, Pairing):
            yield from part.source_problems(tables)
        elif self.per is None and (len(tables) > 1 or tables[0].keys):
            joins = "`join`, `lookup` and `per` read several"
            yield ("source", "tables"), f"{self.kind} reads one table, under its own names: {joins}"
            return
        keys = part.on if isinstance(part, Pairing) else part.scope_keys
        for at, one in enumerate(self.source.tables):
            place = ("source", "tables", str(at), "keys")
            unknown = [key for key in one.keys if key not in keys]
            yield from (((*place, key), f"is no key{unlike(key, keys)}") for key in unknown)
            doubled = repeated([one.column(key) for key in keys])
            yield from ((place, f"column {name!r} would be two keys") for name in doubled)

    def _column_problems(self) -> Iterable[Problem]:
        for name, kind in self.columns.items():
            if not kind.nullable:
                yield ("columns", name), "is `not null`, which no row of a result is refused for; use an expectation"
        for name in self.derivation.scope_keys:
            column = self.columns.get(name)
            if column is not None and (column.type in FLOATS or column.is_nested or column.type == "json"):
                yield ("columns", name), f"is {column.type}: a key needs a plain type that compares exactly"

    def _partition_problems(self) -> Iterable[Problem]:
        for twice in repeated(self.target.partition_by):
            yield ("target", "partition_by"), f"names {twice!r} twice"
        for at, name in enumerate(self.target.partition_by):
            if name not in self.derivation.scope_keys:
                keys = ", ".join(self.derivation.scope_keys)
                yield ("target", "partition_by", str(at)), f"{name!r} is no key, so it could change: keys are {keys}"
