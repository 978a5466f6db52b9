"""The pipeline file as frozen models: names, defaults, and combinations that can't work. No YAML, no IO.

A problem that concerns several keys is raised as one `PydanticCustomError` whose context lists (path, message) pairs.
The loader reports each of them at its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from draindown.base.errors import TerminalError
from draindown.lake.layout import FlowLayout
from draindown.spec import expression_names, reading
from draindown.spec.base import Model, Problem, refuse
from draindown.spec.column_types import Column
from draindown.spec.derived import KINDS, DerivedFlow
from draindown.spec.flow_graph import FlowGraph
from draindown.spec.lease import LeaseSpec
from draindown.spec.names import RESERVED_COLUMNS, ColumnName, Dotted, Expression, Identifier, lake_root, near
from draindown.spec.neighbours import Neighbours, Reader
from draindown.spec.schedule import check_schedule
from draindown.spec.source import FIELD
from draindown.spec.sources import AnySource
from draindown.spec.table_source import TableSource
from draindown.spec.targets import Deadline, Maintenance, MaxBatches, Suite, Target
from draindown.spec.tolerance import Drift, QuarantineBounds


@dataclass(frozen=True)
class Written:
    """How text says the values of a column: a date or time by `pattern`, a number by its separators."""

    pattern: str | None
    decimal: str = "."
    thousands: str | None = None


class FlowSpec(Model):
    """A landing flow: a source of records, a contract, a target table."""

    source: AnySource = Field(description="Where the input comes from.")
    columns: dict[ColumnName, Column] = Field(
        min_length=1, description="The contract: name and type of each column. Other fields are kept in `_rescued`."
    )
    rules: dict[Identifier, Expression] = Field(
        default_factory=dict,
        description="SQL conditions by name; a row for which one is false, null or fails goes to quarantine.",
        examples=[{"known_status": "status in ('scheduled', 'departed')"}],
    )
    drift: Drift = Field(
        default_factory=Drift, description="What to do about new fields and missing columns; absent: rescue, accept."
    )
    transform: Dotted | None = Field(
        default=None,
        description="Function of jobs/transforms/ that adds or changes columns of valid rows.",
        examples=["flights.tidy"],
    )
    target: Target = Field(default_factory=Target, description="The table to write; absent: append to the flow's name.")
    expectations: Suite = None
    quarantine: QuarantineBounds = Field(
        default_factory=QuarantineBounds,
        description="Which share of the records may be refused; absent: warn from 1%, fail from 50%.",
    )
    maintenance: Maintenance = Field(default_factory=Maintenance, description="Compaction and retention.")
    deadline: Deadline = None
    max_batches: MaxBatches = None

    def table_name(self, flow_name: str) -> str:
        """Return the name of the target table."""
        return self.target.table or flow_name

    @property
    def known_columns(self) -> dict[str, str] | None:
        """The table's columns and their types; None if only a run shows them: the transform or the input makes some."""
        known = self.transform is None and self.drift.new != "add"
        return {name: column.stored for name, column in self.columns.items()} if known else None

    @model_validator(mode="after")
    def _combination(self) -> FlowSpec:
        refuse(
            [
                *self._column_problems(),
                *self._place_problems(),
                *self._format_problems(),
                *self._name_problems(),
                *self._expression_problems(),
            ]
        )
        return self

    @property
    def record_columns(self) -> dict[str, Column]:
        """The columns that are read from a record's text; all others have a place beside it."""
        return {name: self.columns[name] for name in self.fields}

    @property
    def fields(self) -> dict[str, str]:
        """The field of a record that holds each column which is read from its text, by the column's name."""
        found = {name: self.source.field_of(name, column.taken_from) for name, column in self.columns.items()}
        return {name: field for name, field in found.items() if field is not None}

    @property
    def as_recorded(self) -> FlowSpec:
        """The flow with only the columns that are read from a record's text, each under the name of its field there.

        It is what a format's reader needs to know.
        """
        recorded = {field: self.columns[name] for name, field in self.fields.items()}
        return self if list(recorded) == list(self.columns) else self.model_copy(update={"columns": recorded})

    def written(self, name: str) -> Written | None:
        """Return how text says the values of a column, if not as Spark reads them."""
        column, shared = self.columns[name], self.source.separators
        if column.is_number:
            own = column.decimal_separator, column.thousands_separator
            decimal, thousands = shared if own == (None, None) else own
            return None if (decimal or ".", thousands) == (".", None) else Written(None, decimal or ".", thousands)
        return None if column.format is None else Written(column.format)

    @property
    def deletes_by_null(self) -> bool:
        """Whether a record without a value deletes its key: what it names then is its key and its time.

        Keys move between partitions when partitions are added, so an offset may only follow the time.
        """
        keys, order = ([self.columns.get(n) for n in names] for names in (self.target.keys, self.target.sequence_by))
        places = [column and column.taken_from for column in order]
        by_key = bool(keys) and all(column is not None and column.taken_from == "key" for column in keys)
        return by_key and places[:1] == ["timestamp"] and set(places[1:]) <= {"offset"}

    @property
    def refuses_null_of_keys(self) -> bool:
        """Whether a record without a value names a key of the table, and is refused all the same."""
        keys = [self.columns.get(name) for name in self.target.keys]
        return any(column and column.taken_from == "key" for column in keys) and not self.deletes_by_null

    @property
    def expressions(self) -> dict[tuple[str, ...], str]:
        """Return the SQL expressions of the flow by their place in it."""
        found: dict[tuple[str, ...], str] = {("rules", name): rule for name, rule in self.rules.items()}
        if self.target.apply_as_deletes is not None:
            found["target", "apply_as_deletes"] = self.target.apply_as_deletes
        return found

    def names_in_scope(self, place: tuple[str, ...]) -> list[str]:
        """Return the columns that the expression at `place` may use."""
        return [*self.columns, *sorted(RESERVED_COLUMNS)] if place[0] == "rules" else list(self.columns)

    def _expression_problems(self) -> Iterable[Problem]:
        for place, text in self.expressions.items():
            for problem in expression_names.problems(text, self.names_in_scope(place)):
                yield place, problem

    def _column_problems(self) -> Iterable[Problem]:
        seen: dict[str, str] = {}
        for name in self.columns:
            first = seen.setdefault(name.lower(), name)
            if first != name:
                yield ("columns", name), f"is {first!r} again: case doesn't tell columns apart"

    def _place_problems(self) -> Iterable[Problem]:
        places = self.source.PLACES
        yield from self._field_problems()
        for name, column in self.columns.items():
            if name in self.fields:
                continue
            assert column.taken_from is not None
            head, colon, rest = column.taken_from.partition(":")
            types = places.get(head + colon, ())
            if not types or (colon and not rest):
                known = ", ".join(f"{one}NAME" if one.endswith(":") else one for one in (*places, FIELD))
                yield ("columns", name), f"from: {column.taken_from}: one of {known}"
            elif column.type.partition("(")[0] not in types:
                yield ("columns", name), f"from: {column.taken_from} is {' or '.join(types)}, not {column.type}"
            elif self.written(name) is not None and "binary" not in types:
                yield ("columns", name), f"from: {column.taken_from} is no text, so that it has no format"
        if places and not self.record_columns:
            yield ("columns",), "no column is read from the record; name one without `from`"

    def _field_problems(self) -> Iterable[Problem]:
        form, readers = self.source.form, dict[str, str]()
        unnamed = not form.named or (form.delimited and not self.source.has_header)
        for name, field in self.fields.items():
            first = readers.setdefault(field, name)
            if first != name:
                yield ("columns", name), f"from: {field}: is read by {first} already"
            if self.columns[name].taken_from is not None and unnamed:
                what = "a csv without a header" if form.delimited else f"format {form.name}"
                yield ("columns", name), f"from: {field}: {what} has no names of fields"
            elif not field or field != field.strip():
                yield ("columns", name), f"from: {field!r} begins or ends with a blank, or is empty"

    def _format_problems(self) -> Iterable[Problem]:
        form = self.source.form
        if form.whole_line and [(n, c.type) for n, c in self.record_columns.items()] != [("value", "string")]:
            yield ("columns",), "format text gives one column; write `value: string` (and nothing else)"
        if not form.named or (form.delimited and not self.source.has_header):
            what = f"a {form.name} without a header has" if form.delimited else f"format {form.name} has"
            unnamed = {"new": self.drift.new == "add", "missing": self.drift.missing == "refuse"}
            yield from (
                (("drift", key), f"{what} no names that could be {verb}")
                for (key, is_set), verb in zip(unnamed.items(), ("added", "missed"), strict=True)
                if is_set
            )
        for name, column in self.record_columns.items():
            if column.is_nested and not form.nested:
                yield ("columns", name), f"a {form.name} cell can't hold {column.type}; use string and a transform"
            if column.type == "json" and not form.json_columns and not form.whole_line:
                instead = "string, or the type of its values" if form.nested else "string"
                yield (
                    ("columns", name),
                    f"json counts for format json only, not for {form.name}; use {instead}",
                )

    def _name_problems(self) -> Iterable[Problem]:
        for name, column in self.columns.items():
            if column.unstored is not None and not self.transform:
                what = "no table can hold: Delta takes no blanks and ,;{}()= in names; use a transform"
                yield ("columns", name), f"has a field {column.unstored!r}, which {what}"
        for part in ("keys", "sequence_by", "partition_by"):
            for at, name in enumerate(getattr(self.target, part)):
                message = self._name_problem(part, name)
                if message:
                    yield ("target", part, str(at)), message
        if self.target.partition_by and len(self.target.partition_by) >= len(self.columns) and not self.transform:
            yield ("target", "partition_by"), "names every column: a table needs one that is no partition"

    def _name_problem(self, part: str, name: str) -> str | None:
        column = self.columns.get(name)
        if column is None:
            if self.transform:  # the output columns of a transform are not known before it runs
                return None
            close = near(name, self.columns)
            return f"{name!r} is in no column, and there is no transform to make it{close}"
        if column.is_nested or column.type == "json":
            return f"{name!r} is {column.type}: {part} needs plain types"
        if part == "partition_by" and column.type == "binary":
            return f"{name!r} is binary: Delta names partitions by text, which bytes need not be"
        if column.nullable and part != "partition_by":
            return f"{name!r} can be null; declare it as `{name}: {column} not null`"
        return None


def _form(flow: object) -> str:
    """Return the tag of a flow's model. A source that names a table makes a flow derived, whatever else it has."""
    source = flow.get("source") if isinstance(flow, dict) else getattr(flow, "source", None)
    tables = isinstance(source, TableSource) or (
        isinstance(source, dict) and not {"table", "tables"}.isdisjoint(source)
    )
    parts = isinstance(flow, dict) and not KINDS.keys().isdisjoint(flow)
    return DERIVED_FORM if tables or (parts and not isinstance(source, dict)) else LANDING_FORM


LANDING_FORM, DERIVED_FORM = "[landing]", "[derived]"
"""Tags of the two models of a flow. Errors have them in their path, where the file has nothing."""
AnyFlow = Annotated[
    Annotated[FlowSpec, Tag(LANDING_FORM)] | Annotated[DerivedFlow, Tag(DERIVED_FORM)], Discriminator(_form)
]


class PipelineSpec(Model):
    """One pipeline file: one Airflow DAG."""

    pipeline: Identifier = Field(description="Name of the pipeline and of its DAG.", examples=["flights"])
    description: str = Field(default="", description="One sentence for people; the DAG shows it.")
    schedule: Annotated[str, AfterValidator(check_schedule)] | None = Field(
        default=None, description="Cron line or preset, in UTC; absent: manual runs only.", examples=["*/15 * * * *"]
    )
    owner: str = Field(default="draindown", min_length=1, description="Who answers for it; the DAG's owner.")
    lake: str = Field(
        min_length=1,
        description="Root of everything the pipeline writes: a directory this machine sees.",
        examples=["${DRAINDOWN_LAKE:-lake}"],
    )
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] = Field(
        default_factory=list, description="Tags of the DAG.", examples=[["flights", "hourly"]]
    )
    retries: int = Field(default=2, ge=0, le=10, description="How often Airflow tries a task again when that may help.")
    max_active_tasks: int = Field(
        default=1, ge=1, le=100, description="How many tasks of a run work at once, each with a Spark of its own."
    )
    lease: LeaseSpec = Field(
        default_factory=LeaseSpec, description="How drivers on several hosts exclude each other; absent: they can't."
    )
    flows: dict[Identifier, AnyFlow] = Field(
        min_length=1, description="The flows, by name. A flow runs after those whose tables it reads."
    )

    _places: Mapping[tuple[str, ...], str] = PrivateAttr(default_factory=dict)
    _neighbours: Neighbours = PrivateAttr(default_factory=Neighbours)

    def __eq__(self, other: object) -> bool:
        # positions in the file and other files are not part of the spec's value
        return isinstance(other, PipelineSpec) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def written_at(self, places: Mapping[tuple[str, ...], str]) -> PipelineSpec:
        """Return a copy of the spec with the positions of its expressions: `file:line:column` by path."""
        found = self.model_copy()
        found._places = dict(places)
        return found

    def beside(self, neighbours: Neighbours) -> PipelineSpec:
        """Return the spec with what other pipeline files say: who writes the tables of theirs that it reads."""
        found = self.model_copy()
        found._neighbours = neighbours
        reading.name_writers(found.flows, neighbours)
        return found

    @property
    def neighbours(self) -> Neighbours:
        """What other pipeline files of the project say of the tables of this pipeline, and of those that it reads."""
        return self._neighbours

    def readers(self, table: str) -> list[Reader]:
        """Return the flows that read a table, first those of this pipeline, in the order of the file."""
        own = (one for pipeline, one in reading.readers(self.pipeline, self.flows) if pipeline is None)
        return [one for one in (*own, *self._neighbours.readers) if one.table == table]

    def place_of(self, *path: str) -> str:
        """Return the position of the value at a path as `file:line:column`; empty if it is not known."""
        return self._places.get(path, "")

    @field_validator("lake")
    @classmethod
    def _lake_root(cls, value: str) -> str:
        return lake_root(value)

    @model_validator(mode="after")
    def _combination(self) -> PipelineSpec:
        refuse(list(self._writer_problems()))  # the graph needs one writer per table
        refuse(list(reading.problems(self.flows)))
        reading.name_writers(self.flows)
        return self

    def _writer_problems(self) -> Iterable[Problem]:
        owners: dict[str, str] = {}
        for name, flow in self.flows.items():
            first = owners.setdefault(flow.table_name(name), name)
            if first != name:
                where = ("flows", name, "target", "table") if flow.target.table else ("flows", name)
                table = flow.table_name(name)
                yield where, f"writes table {table!r} as flow {first!r} does: one writer each"

    @property
    def graph(self) -> FlowGraph:
        """The flows by the tables between them."""
        return reading.graph(self.flows)

    def declared(self, name: str) -> FlowSpec | DerivedFlow:
        """Return the flow of that name. Raises TerminalError `unknown-flow`, which lists the flows."""
        if name not in self.flows:
            known = ", ".join(self.flows)
            raise TerminalError(
                "unknown-flow",
                tried=f"find flow {name!r} in pipeline {self.pipeline}",
                found=f"it has {known}{near(name, self.flows)}",
                next=f"draindown validate {self.pipeline}",
            )
        return self.flows[name]

    def is_derived(self, name: str) -> bool:
        """Return whether the flow of that name is derived. Raises TerminalError `unknown-flow`."""
        return isinstance(self.declared(name), DerivedFlow)

    def flow(self, name: str) -> FlowSpec:
        """Return the landing flow of that name. Raises TerminalError `unknown-flow`, `derived-flow`."""
        found = self.declared(name)
        if isinstance(found, DerivedFlow):
            raise TerminalError(
                "derived-flow",
                tried=f"use flow {name} of pipeline {self.pipeline} as one that reads records",
                found=f"it is derived from {found.source}: it has no input files, rules or quarantine",
                changed="nothing",
                next=[
                    f"draindown reset {self.pipeline} --flow {name}   # computes it again, and writes what differs",
                    f"draindown plan {self.pipeline} --flow {name}   # what waits at its source",
                ],
            )
        return found

    def layout(self, flow_name: str) -> FlowLayout:
        """Return the paths of the flow's tables and files. Raises TerminalError `unknown-flow`."""
        flow = self.declared(flow_name)
        table = flow.table_name(flow_name)
        return FlowLayout(self.lake, self.pipeline, flow_name, table, own_intakes=flow.source.own_intakes)
