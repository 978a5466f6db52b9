"""Derived flows: a table that equals a query over tables that other flows write.

How the table is kept is one part of the flow, its derivation. Each kind of derivation has a model
here, and its query in `spark/derived/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from draindown.base.digests import Meaning, digest
from draindown.config.base import Model, Problem, refuse, repeated
from draindown.config.column_types import Column, plain
from draindown.config.derived_target import DerivedTarget
from draindown.config.history import HISTORY, History
from draindown.config.join import Join
from draindown.config.lookup import Lookup
from draindown.config.names import ColumnName, Identifier, unlike
from draindown.config.pairing import Pairing
from draindown.config.processor import Processor
from draindown.config.query import Query
from draindown.config.ranking import Deduplicate, Top
from draindown.config.session import Session
from draindown.config.sinks import FlowSink
from draindown.config.sinks import problems as sink_problems
from draindown.config.table_source import TableSource
from draindown.config.targets import Maintenance, MaxBatches, MaxDuration, Suite
from draindown.config.units import Duration
from draindown.config.window import Window

FLOATS = ("float", "double")
TOLERANCE = 1e-9
"""Computed doubles within this relative distance are equal: the sum of a group depends on the order
of its rows.
"""


Derivation = Window | Session | Query | Deduplicate | Top | Join | Lookup | Processor | History
KINDS: Mapping[str, type[Derivation]] = {
    "window": Window,
    "session": Session,
    "query": Query,
    "deduplicate": Deduplicate,
    "top": Top,
    "join": Join,
    "lookup": Lookup,
    "processor": Processor,
    "history": History,
}
"""The kinds of derivation by name. A new kind is one more entry, and one field below with its part
of a flow.

The part of `history` is the flow's target, which says what is kept of each key.
"""


class DerivedFlow(Model):
    """A flow that keeps its table equal to a query over tables of other flows."""

    source: TableSource = Field(description="The tables that the query reads.")
    window: Window | None = Field(
        default=None, description="Aggregates per window of time and group."
    )
    session: Session | None = Field(
        default=None, description="Aggregates per run of rows without a long gap."
    )
    query: Query | None = Field(
        default=None, description="A query that works within the given keys."
    )
    deduplicate: Deduplicate | None = Field(
        default=None, description="The first or last row per key."
    )
    top: Top | None = Field(default=None, description="The first rows of each group in an order.")
    join: Join | None = Field(
        default=None, description="Pairs of rows of two tables, within a bound of time or without."
    )
    lookup: Lookup | None = Field(
        default=None, description="Columns of another table's row beside each row."
    )
    processor: Processor | None = Field(
        default=None, description="The fold of a class over the rows of each key in their order."
    )
    allowed_lateness: Annotated[Duration, Field(ge=1)] | None = Field(
        default=None,
        description="Measured from the arrival of a row, not from a watermark: rows that arrive later than this after "
        "their time are left out of a window, session, join or processor; absent: none is late.",
        examples=["2 days"],
    )
    columns: dict[ColumnName, Annotated[Column, AfterValidator(plain)]] = Field(
        default_factory=dict,
        description="Types of result columns. Absent: as Spark infers them. Another type ends the drain red.",
    )
    target: DerivedTarget = Field(
        default_factory=DerivedTarget,
        description="The table to write; absent: it has the flow's name.",
    )
    expectations: Suite = None
    sinks: dict[Identifier, FlowSink] = Field(
        default_factory=dict, description="Sinks by name: where each batch goes beside the table."
    )
    maintenance: Maintenance = Field(
        default_factory=Maintenance, description="Compaction and retention."
    )
    max_duration: MaxDuration = None
    max_batches: MaxBatches = None

    def table_name(self, flow_name: str) -> str:
        """Return the name of the target table."""
        return self.target.table or flow_name

    @property
    def history(self) -> History | None:
        """The history of each key, which the target asks for; None if another part says how the
        table follows.
        """
        return self.target.history

    @property
    def kind(self) -> str:
        """The kind of derivation: its key in `KINDS`."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def part(self) -> tuple[str, ...]:
        """The path of the part of the flow that says how the table follows from its source."""
        return ("target",) if self.kind == "history" else (self.kind,)

    @property
    def derivation(self) -> Derivation:
        """How the table follows from its source."""
        found: Derivation = getattr(self, self.kind)
        return found

    @property
    def transform(self) -> None:
        """A derived flow has no transform: its query shapes the rows."""

    @property
    def zone(self) -> str:
        """The time zone in which the flow's expressions are evaluated."""
        return "UTC"

    @property
    def grows(self) -> bool:
        """Whether input adds columns to the table: False, they are those of the query."""
        return False

    @property
    def known_columns(self) -> dict[str, str] | None:
        """The table's columns and their types: None, since Spark infers them."""
        return None

    @property
    def stored_columns(self) -> list[str] | None:
        """The columns of the table; None if only the query shows them."""
        match self.derivation:
            case Window() | Session() as found:
                return list(found.columns)
            case Processor() as found:
                return [*found.keys, *found.columns]
            case _:
                return None

    @property
    def measures(self) -> Mapping[str, str]:
        """The aggregates over the rows of a window or session, by name; none of other kinds."""
        found = self.derivation
        return found.measures if isinstance(found, Window | Session) else {}

    @property
    def interval(self) -> tuple[str, str] | None:
        """The columns of the table with the start and the end of a row's time; None of kinds
        without.
        """
        found = self.derivation
        return found.interval if isinstance(found, Window | Session) else None

    @property
    def times(self) -> Sequence[str]:
        """The columns of the table with times that the derivation computes."""
        found = self.derivation
        return [Join.BUCKET] if isinstance(found, Join) and found.times else self.interval or ()

    @property
    def upstream(self) -> tuple[str, ...]:
        """The tables that the flow reads, of its own pipeline or of others."""
        return tuple(one.table for one in self.source.read)

    @property
    def definition(self) -> Meaning:
        """What the file says of the query, in the words of its digest."""
        part = self.derivation
        return {
            "kind": self.kind,
            "part": part.meaning(),
            "tables": None if isinstance(part, Pairing) else self.source.meaning(),
            "columns": {name: column.meaning() for name, column in self.columns.items()},
            "allowed_lateness": self.allowed_lateness,
        }

    def meaning(self) -> Meaning:
        """Return what decides the rows of the table, in the words of a rebuild's digest."""
        target = {"table": self.target.table, "partition_by": self.target.partition_by}
        tables = sorted(one.table for one in self.source.read)
        return {"query": self.definition, "tables": tables, "target": target}

    @property
    def expressions(self) -> dict[tuple[str, ...], str]:
        """The SQL of the flow by its place in it."""
        return {(*self.part, *place): text for place, text in self.derivation.expressions.items()}

    @model_validator(mode="after")
    def _combination(self) -> DerivedFlow:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            choices = f"{', '.join(name for name in KINDS if name in type(self).model_fields)} or `{HISTORY}`"
            what = (
                f"has {' and '.join(given)}: keep one"
                if given
                else f"needs one of {choices}: how its table follows"
            )
            refuse([(("source",), what)])
        refuse([*self._target_problems(), *self._source_problems()])
        part = self.derivation
        if isinstance(part, Pairing):
            self.source.beside(part.right)
        self.settle()
        rest = [] if isinstance(part, Pairing) else self.settled_problems()
        refuse([*self._lateness_problems(), *self._column_problems(), *rest])
        return self

    def settle(self) -> None:
        """Take the keys of the result, and what follows from them, from the derivation and its
        source tables.

        To be called again once the keys of the source tables are known, of which those of two
        tables' rows consist.
        """
        part = self.derivation
        if isinstance(part, Pairing):
            part.bind(*self.source.read)
        self.target._row_keys = list(part.keys)
        self.target._statistics = [*part.keys, *([History.END] if self.history else [])]
        keys = part.keys if isinstance(part, Pairing) else None
        self.source._derivation = digest({**self.definition, "keys": keys, "code": part.told})[:16]
        self.source._lacking = part.lacking
        by_table = [part.sought(one) for one in self.source.read]
        self.source._sought = {
            key: [own[at] for own in by_table] for at, key in enumerate(part.scope_keys)
        }

    def settled_problems(self) -> list[Problem]:
        """Return what the keys of the result forbid, once `settle` took them from source tables
        that are known.
        """
        part = self.derivation
        own = part.key_problems() if isinstance(part, Pairing) else ()
        sent = sink_problems(self.sinks, self.target.row_keys, self.stored_columns, refuses=False)
        return [
            *(((self.kind, *place), text) for place, text in own),
            *self._partition_problems(),
            *sent,
        ]

    def place_of_table(self, at: int, field: str = "table") -> tuple[str, ...]:
        """Return the path within the flow of a field of source table number `at`."""
        if self.source.tables:
            return ("source", "tables", str(at), field)
        return (self.kind if at else "source", field)

    def _source_problems(self) -> Iterable[Problem]:
        part = self.derivation
        if self.source.tables and self.query is None:
            named = f"names its second table itself: `{self.kind}: {{table: NAME, on: ...}}`"
            how = named if isinstance(part, Pairing) else "reads one table"
            yield ("source", "tables"), f"{self.kind} {how}; write `source: {{table: NAME}}`"
            return
        if isinstance(part, Pairing) and part.table == self.source.table:
            again = "a join of a table with itself needs a copy under another name"
            yield (self.kind, "table"), f"is the table of `source` too: {again}"
        keys = [] if self.query is None else self.query.keys
        for at, one in enumerate(self.source.tables):
            place = ("source", "tables", str(at), "keys")
            unknown = [key for key in one.keys if key not in keys]
            yield from (((*place, key), f"is no key{unlike(key, keys)}") for key in unknown)
            doubled = repeated([one.column(key) for key in keys])
            yield from ((place, f"column {name!r} would be two keys") for name in doubled)

    def _lateness_problems(self) -> Iterable[Problem]:
        part = self.derivation
        if self.allowed_lateness is not None and not any(
            part.timed_by(one.table) for one in self.source.read
        ):
            timed = (
                "a window, a session, a processor or a join with `interval` has rows with a time"
            )
            yield ("allowed_lateness",), f"{self.kind} {part.UNTIMED}: {timed}"

    def _target_problems(self) -> Iterable[Problem]:
        if self.history is None:
            given = [
                n
                for n in ("keys", "sequence_by", "track_history", "apply_as_deletes")
                if getattr(self.target, n)
            ]
            why = (
                f"is of a history, `{HISTORY}`: what names the rows here follows from `{self.kind}`"
            )
            yield from ((("target", name), why) for name in given)

    def _column_problems(self) -> Iterable[Problem]:
        for name, kind in self.columns.items():
            if not kind.nullable:
                yield (
                    ("columns", name),
                    "is `not null`, which no row of a result is refused for; use an expectation",
                )
        for name in self.derivation.scope_keys:
            column = self.columns.get(name)
            if column is not None and (
                column.type in FLOATS or column.is_nested or column.type == "json"
            ):
                yield (
                    ("columns", name),
                    f"is {column.type}: a key needs a plain type that compares exactly",
                )

    def _partition_problems(self) -> Iterable[Problem]:
        for twice in repeated(self.target.partition_by):
            yield ("target", "partition_by"), f"names {twice!r} twice"
        for at, name in enumerate(self.target.partition_by):
            if name not in self.derivation.scope_keys:
                keys = ", ".join(self.derivation.scope_keys)
                yield (
                    ("target", "partition_by", str(at)),
                    f"{name!r} is no key, so it could change: keys are {keys}",
                )
