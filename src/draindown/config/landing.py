"""The model of a landing flow, and combinations of its keys that can't work. No YAML, no IO."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field, model_validator

from draindown.base.digests import Meaning
from draindown.config import expression_names
from draindown.config.base import Model, Problem, refuse
from draindown.config.column_types import UNSTORED_WHY, Column
from draindown.config.history import EXCEPT
from draindown.config.names import (
    RESERVED_COLUMNS,
    ColumnName,
    Dotted,
    Expression,
    Identifier,
    caseless,
    near,
)
from draindown.config.sinks import FlowSink
from draindown.config.sinks import problems as sink_problems
from draindown.config.source import FIELD
from draindown.config.sources import AnySource
from draindown.config.targets import Maintenance, MaxBatches, MaxDuration, Suite, Target
from draindown.config.tolerance import Drift, QuarantineBounds


@dataclass(frozen=True)
class Written:
    """How text says the values of a column: a date or time by `pattern`, a number by its
    separators.
    """

    pattern: str | None
    decimal: str = "."
    thousands: str | None = None


class FlowSpec(Model):
    """A landing flow: a source of records, a contract, a target table."""

    source: AnySource = Field(description="Where the input comes from.")
    columns: dict[ColumnName, Column] = Field(
        min_length=1,
        description="The contract: name and type of each column. Other fields are kept in `_rescued_data`.",
    )
    rules: dict[Identifier, Expression] = Field(
        default_factory=dict,
        description="SQL conditions by name; a row for which one is false, null or fails goes to quarantine.",
        examples=[{"known_status": "status in ('scheduled', 'departed')"}],
    )
    drift: Drift = Field(
        default_factory=Drift,
        description="What to do about new fields and missing columns; absent: rescue, allow.",
    )
    transform: Dotted | None = Field(
        default=None,
        description="Function of jobs/transforms/ that adds or changes columns of valid rows.",
        examples=["flights.tidy"],
    )
    target: Target = Field(
        default_factory=Target, description="The table to write; absent: append to the flow's name."
    )
    expectations: Suite = None
    quarantine: QuarantineBounds = Field(
        default_factory=QuarantineBounds,
        description="Which share of the records may be refused; absent: warn from 1%, fail from 50%.",
    )
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
    def zone(self) -> str:
        """The time zone in which the flow's expressions are evaluated: rules, and conditions of
        sinks.
        """
        return self.source.timezone

    @property
    def grows(self) -> bool:
        """Whether input adds columns to the table."""
        return self.drift.new_columns == "add"

    @property
    def known_columns(self) -> dict[str, str] | None:
        """The table's columns and their types; None if only a run shows them: the transform or the
        input makes some.
        """
        if self.transform is not None or self.grows:
            return None
        types = {name: column.stored for name, column in self.columns.items()}
        return types if self.target.history is None else self.target.history.stored(types)

    @model_validator(mode="after")
    def _combination(self) -> FlowSpec:
        refuse(
            [
                *self._column_problems(),
                *self._place_problems(),
                *self._format_problems(),
                *self._name_problems(),
                *self._expression_problems(),
                *sink_problems(self.sinks, self.target.keys, self._sent_names, refuses=True),
                *self._history_problems(),
                *self._partial_problems(),
            ]
        )
        return self

    def meaning(self) -> Meaning:
        """Return what decides which rows a record becomes, in the words of a rebuild's digest."""
        return {
            "source": self.source.meaning(),
            "columns": {name: column.meaning() for name, column in self.columns.items()},
            "rules": self.rules,
            "drift": self.drift.meaning(),
            "transform": self.transform,
            "target": self.target.meaning(),
        }

    @property
    def record_columns(self) -> dict[str, Column]:
        """The columns that are read from a record's text; all others have a place beside it."""
        return {name: self.columns[name] for name in self.fields}

    @property
    def fields(self) -> dict[str, str]:
        """The field of a record that holds each column which is read from its text, by the column's
        name.
        """
        found = {
            name: self.source.field_of(name, column.taken_from)
            for name, column in self.columns.items()
        }
        return {name: field for name, field in found.items() if field is not None}

    @property
    def as_recorded(self) -> FlowSpec:
        """The flow with only the columns that are read from a record's text, each under the name of
        its field there.

        It is what a format's reader needs to know.
        """
        recorded = {field: self.columns[name] for name, field in self.fields.items()}
        return (
            self
            if list(recorded) == list(self.columns)
            else self.model_copy(update={"columns": recorded})
        )

    def written(self, name: str) -> Written | None:
        """Return how text says the values of a column, if not as Spark reads them."""
        column, shared = self.columns[name], self.source.separators
        if column.is_number:
            own = column.decimal_separator, column.thousands_separator
            decimal, thousands = shared if own == (None, None) else own
            return (
                None
                if (decimal or ".", thousands) == (".", None)
                else Written(None, decimal or ".", thousands)
            )
        return None if column.format is None else Written(column.format)

    @property
    def deletes_by_null(self) -> bool:
        """Whether a record without a value deletes its key: what it names then is its key and its
        time.

        Keys move between partitions when partitions are added, so an offset may only follow the
        time.
        """
        keys, order = (
            [self.columns.get(n) for n in names]
            for names in (self.target.keys, self.target.sequence_by)
        )
        places = [column and column.taken_from for column in order]
        by_key = bool(keys) and all(
            column is not None and column.taken_from == "key" for column in keys
        )
        return by_key and places[:1] == ["timestamp"] and set(places[1:]) <= {"offset"}

    @property
    def refuses_null_of_keys(self) -> bool:
        """Whether a record without a value names a key of the table, and is refused all the
        same.
        """
        keys = [self.columns.get(name) for name in self.target.keys]
        return (
            any(column and column.taken_from == "key" for column in keys)
            and not self.deletes_by_null
        )

    @property
    def _sent_names(self) -> list[str] | None:
        return None if self.known_columns is None else list(self.known_columns)

    @property
    def expressions(self) -> dict[tuple[str, ...], str]:
        """Return the SQL expressions of the flow over the columns of its contract, by their place
        in it.
        """
        found: dict[tuple[str, ...], str] = {
            ("rules", name): rule for name, rule in self.rules.items()
        }
        if self.target.apply_as_deletes is not None:
            found["target", "apply_as_deletes"] = self.target.apply_as_deletes
        return found

    def names_in_scope(self, place: tuple[str, ...]) -> list[str]:
        """Return the columns that the expression at `place` may use."""
        return (
            [*self.columns, *sorted(RESERVED_COLUMNS)]
            if place[0] == "rules"
            else list(self.columns)
        )

    def _expression_problems(self) -> Iterable[Problem]:
        for place, text in self.expressions.items():
            for problem in expression_names.problems(text, self.names_in_scope(place)):
                yield place, problem

    def _column_problems(self) -> Iterable[Problem]:
        seen: dict[str, str] = {}
        for name in self.columns:
            first = seen.setdefault(caseless(name), name)
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
                known = ", ".join(
                    f"{one}NAME" if one.endswith(":") else one for one in (*places, FIELD)
                )
                field = (
                    ""
                    if colon
                    else f"; a field of the value is from: {json.dumps(FIELD + head, ensure_ascii=False)}"
                )
                yield ("columns", name), f"from: {column.taken_from}: one of {known}{field}"
            elif column.type.partition("(")[0] not in types:
                yield (
                    ("columns", name),
                    f"from: {column.taken_from} is {' or '.join(types)}, not {column.type}",
                )
            elif self.written(name) is not None and "binary" not in types:
                yield (
                    ("columns", name),
                    f"from: {column.taken_from} is no text, so that it has no format",
                )
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
        if form.whole_line and [(n, c.type) for n, c in self.record_columns.items()] != [
            ("value", "string")
        ]:
            yield (
                ("columns",),
                "format text gives one column; write `value: string` (and nothing else)",
            )
        if not form.named or (form.delimited and not self.source.has_header):
            what = (
                f"a {form.name} without a header has"
                if form.delimited
                else f"format {form.name} has"
            )
            unnamed = {
                "new_columns": self.drift.new_columns == "add",
                "missing_columns": self.drift.missing_columns == "fail",
            }
            yield from (
                (("drift", key), f"{what} no names that could be {verb}")
                for (key, is_set), verb in zip(unnamed.items(), ("added", "missed"), strict=True)
                if is_set
            )
        for name, column in self.record_columns.items():
            if column.is_nested and not form.nested:
                yield (
                    ("columns", name),
                    f"a {form.name} cell can't hold {column.type}; use string and a transform",
                )
            if column.type == "json" and not form.json_columns and not form.whole_line:
                instead = "string, or the type of its values" if form.nested else "string"
                yield (
                    ("columns", name),
                    f"json counts for format json only, not for {form.name}; use {instead}",
                )

    def _name_problems(self) -> Iterable[Problem]:
        for name, column in self.columns.items():
            if column.unstored is not None and not self.transform:
                what = f"no table can hold: {UNSTORED_WHY}; use a transform"
                yield ("columns", name), f"has a field {column.unstored!r}, which {what}"
        for part in ("keys", "sequence_by", "partition_by"):
            for at, name in enumerate(getattr(self.target, part)):
                message = self._name_problem(part, name)
                if message:
                    yield ("target", part, str(at)), message
        if (
            self.target.partition_by
            and len(self.target.partition_by) >= len(self.columns)
            and not self.transform
        ):
            yield (
                ("target", "partition_by"),
                "names every column: a table needs one that is no partition",
            )

    def _history_problems(self) -> Iterable[Problem]:
        part = self.target.history
        if part is None:
            return
        for place, name in part.named:
            if place[0] == "track_history" and name not in self.columns and not self.transform:
                yield ("target", *place), f"{name!r} is in no column{near(name, self.columns)}"
        for name, sink in self.sinks.items():
            if not sink.is_of_refused:
                way = "give the sink to a flow that derives the history from an append table (source: {table: NAME})"
                yield (
                    ("sinks", name),
                    f"rows of a history that records land in are not sent; {way}",
                )

    def _partial_problems(self) -> Iterable[Problem]:
        part = self.target.partial
        for place, name in () if part is None else part.named:
            column = self.columns.get(name)
            if column is None and not self.transform:
                yield ("target", *place), f"{name!r} is in no column{near(name, self.columns)}"
            elif (
                column is not None
                and not column.nullable
                and EXCEPT not in place
                and not self.transform
            ):
                yield ("target", *place), f"{name!r} is `not null`: a record without it is refused"

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
