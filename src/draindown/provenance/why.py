"""Answer why a table has a row, or none with a key: from the row to the files, through all tables
between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from draindown.base.duck import connected
from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.config.models import PipelineSpec
from draindown.config.names import is_own
from draindown.config.units import parse_time
from draindown.lake import row_values
from draindown.lake.home import FlowHome
from draindown.lake.table import identifier, rows
from draindown.provenance.derived import DerivedTable, Lacking, of_source
from draindown.provenance.foreign import ORIGIN, ForeignWriter, condition
from draindown.provenance.landed import LandedTable, Row
from draindown.provenance.model import Trace, shown
from draindown.provenance.scan import Progress

_DUCK = {
    "byte": "tinyint",
    "short": "smallint",
    "long": "bigint",
    "string": "varchar",
    "int": "integer",
}
_DUCK |= {"timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
_PLAIN = ("tinyint", "smallint", "integer", "bigint", "boolean", "date", "float", "double")
_TIMES = ("timestamp", "timestamp_ntz")
_SHOWN = 3  # changed values of a row


@dataclass(frozen=True)
class Question:
    """What is asked of a table.

    Attributes:
        spec, flow: the pipeline, and its flow that writes the table.
        root: the project root.
        key: texts of key columns, by name; None for NULL.
        limit: at most so many rows, and so many source rows of each row.
        every: whether records of every batch are looked for.
        specs: returns another pipeline of the project.
    """

    spec: PipelineSpec
    flow: str
    root: Path
    key: Mapping[str, str | None]
    limit: int
    every: bool
    specs: Callable[[str], PipelineSpec]
    progress: Progress


def why(asked: Question) -> list[Trace]:
    """Return the traces of all rows with the key; without any, one of the key that is not there.

    Raises ValueError if a text can't be read as its column's type, or if no row is there and the
    key is not whole; TerminalError `nothing-to-prove` and others of `proof.pinned` of a derived
    table whose sources can't be read.
    """
    table = _Table(asked, asked.spec, asked.flow)
    key = table.key(asked.key)
    found = table.with_key(key)
    if found:
        return table.traces(found, asked.limit)
    if missing := [name for name in table.key_columns if name not in key]:
        raise ValueError(
            f"no row has this; to ask why, say all of its key: {', '.join(missing)} too"
        )
    return [table.absent(key)]


class _Table:
    """One table on the way, with the flow that writes it."""

    def __init__(self, asked: Question, spec: PipelineSpec, flow: str) -> None:
        self._asked, self._spec, self._flow = asked, spec, flow
        self._declared: FlowSpec | DerivedFlow = spec.declared(flow)
        self._layout: FlowHome = spec.layout(flow)
        self._log = self._layout.tables.target

    @property
    def key_columns(self) -> Sequence[str]:
        """The columns that name a row; ORIGIN of a table without keys."""
        declared = self._declared
        return (
            declared.target.keys if isinstance(declared, FlowSpec) else declared.target.row_keys
        ) or [ORIGIN]

    def key(self, given: Mapping[str, str | None]) -> dict[str, Any]:
        """Return texts of a key as values. Raises ValueError."""
        if list(given) == [ORIGIN]:
            return {ORIGIN: given[ORIGIN]}
        with connected() as db:
            texts = [_typed(name, self._types.get(name, "string")) for name in given]
            values = [_moment(self._types.get(name, ""), text) for name, text in given.items()]
            try:
                (found,) = rows(
                    db.sql(f"select {', '.join(texts)}", params=values).to_arrow_table()
                )
            except duckdb.Error as error:
                raise ValueError(str(error).partition("\n")[0]) from None
        _refuse_rounded(given, found)
        return found

    @property
    def _types(self) -> Mapping[str, str]:
        known = self._log.column_types if self._log.exists else {}
        own = {name: column.type for name, column in getattr(self._declared, "columns", {}).items()}
        return {name: str(kind) for name, kind in {**own, **known}.items()}

    def with_key(self, key: Mapping[str, Any]) -> Sequence[Row]:
        """Return the rows with a key, or a part of one, at most as many as asked for."""
        if not self._log.exists:
            return []
        known = self._log.column_types
        if lacking := [name for name in key if name not in known]:
            if lacking == [ORIGIN]:
                return []  # no batch has committed yet, and others wrote the table
            raise ValueError(f"the table has no column {', '.join(lacking)} yet")
        columns, where = ", ".join(map(identifier, known)), condition(key)
        order = (
            ", ".join(identifier(name) for name in self._declared.target.row_keys if name in known)
            or "1"
        )
        return self._log.rows(
            f"select {columns} from t where {where} order by {order} limit {self._asked.limit}"
        )

    def traces(self, found: Sequence[Row], limit: int) -> list[Trace]:
        """Return the traces of rows, which have all columns of the table."""
        return [self._foreign.marked(trace) for trace in self._traces(found, limit)]

    def _traces(self, found: Sequence[Row], limit: int) -> list[Trace]:
        if isinstance(self._declared, FlowSpec):
            return self._landed.rows(found, every=self._asked.every)
        it = DerivedTable(self._declared, self._layout, limit)
        behind = it.behind(
            row_values.table(found, self._log.query("select * from t limit 0").schema)
        )
        sources = self._sources(behind.rows, behind.otherwise)
        return [
            it.trace(
                self._named(row),
                row,
                _numbers(it, behind.number, at),
                sources.get(at, []),
                behind.gone,
            )
            for at, row in enumerate(found)
        ]

    def absent(self, key: Mapping[str, Any]) -> Trace:
        """Return the trace of a key that no row of the table has."""
        return self._foreign.marked(self._absent(key))

    def _absent(self, key: Mapping[str, Any]) -> Trace:
        if isinstance(self._declared, FlowSpec):
            return self._landed.absent(key)
        if not self._log.exists:
            where = f"{self._layout.pipeline}/{self._layout.flow}"
            raise TerminalError(
                "nothing-to-prove",
                tried=f"ask why a row of {where} is not there",
                found="no run has derived anything yet: there is no table",
                changed="nothing",
                next=f"draindown run {self._layout.pipeline}/{self._layout.flow}",
            )
        it = DerivedTable(self._declared, self._layout, self._asked.limit)
        asked = self._arrow(key)
        behind = it.behind(asked, key)
        sources = self._sources(behind.rows, behind.otherwise).get(0, [])
        number = _numbers(it, behind.number, 0)
        return it.absent(
            key, number, self._lacking(it, key, asked, Lacking(sources, gone=behind.gone))
        )

    def _lacking(
        self, it: DerivedTable, key: Mapping[str, Any], asked: pa.Table, known: Lacking
    ) -> Lacking:
        """Add what is known of a key beside the source rows that have it."""
        assert isinstance(self._declared, DerivedFlow)
        tables = [self._source(at) for at in range(len(self._declared.source.read))]
        found = it.former(asked, key, [table.row_names for table in tables], _FORMER)
        former = [
            table.former(row)
            for table, some in zip(tables, found, strict=True)
            for row in some.rows[:_FORMER]
        ]
        known = replace(
            known,
            former=former,
            had=sum(some.number for some in found),
            unread=it.unread(asked, key),
        )
        if known.sources or former or known.unread:
            return known
        without = self._absent_sources(key)
        if len(without) == len(tables) and all(trace.state != "unknown" for trace in without):
            # what the sources say of their keys is enough
            return replace(known, without=without, gone=[])
        return replace(
            known,
            without=without,
            gone=[*known.gone, *(text for some in found for text in some.gone)],
        )

    @property
    def row_names(self) -> Sequence[str]:
        """The columns of the table that name a row."""
        return self._declared.target.row_keys or [ORIGIN]

    def former(self, row: Row) -> Trace:
        """Return the trace of a row that the table had, as it was: of what it is now, or of its
        absence.
        """
        now = self.with_key(_named(row, self.row_names))
        if now:
            (trace, *_) = self.traces(now[:1], _FEWER)
            return replace(trace, counts=False, why=_changed(row, now[0]))
        return self.absent(_named(row, self.key_columns))

    def _arrow(self, key: Mapping[str, Any]) -> pa.Table:
        known = self._log.query("select * from t limit 0").schema
        return row_values.table([key], known)

    def _absent_sources(self, key: Mapping[str, Any]) -> list[Trace]:
        """Return the traces of absent source rows that would have the key, where the source has the
        same one.
        """
        assert isinstance(self._declared, DerivedFlow)
        found = []
        for at, one in enumerate(self._declared.source.read):
            table = self._source(at)
            names = {one.column(name): value for name, value in key.items()}
            if set(table.key_columns) <= names.keys():
                own = {name: names[name] for name in table.key_columns}
                found += [] if table.with_key(own) else [table.absent(own)]
        return found

    def _sources(
        self, behind: Sequence[Mapping[int, Sequence[Row]]], otherwise: Sequence[str]
    ) -> dict[int, list[Trace]]:
        """Return the traces of source rows by the place of the row that they are behind."""
        told: dict[int, list[Trace]] = {}
        for at, by_row in enumerate(behind):
            flat = [(place, row) for place, some in by_row.items() for row in some]
            traces = self._source(at).traces([row for _, row in flat], _FEWER) if flat else []
            for (place, row), trace in zip(flat, traces, strict=True):
                told.setdefault(place, []).append(of_source(trace, row, otherwise[at]))
        return told

    def _source(self, at: int) -> _Table:
        assert isinstance(self._declared, DerivedFlow)
        one = self._declared.source.read[at]
        spec = self._asked.specs(one.pipeline) if one.pipeline else self._spec
        return _Table(self._asked, spec, one.written_by or spec.graph.writers[one.table])

    @cached_property
    def _foreign(self) -> ForeignWriter:
        return ForeignWriter(self._declared, self._layout)

    @property
    def _landed(self) -> LandedTable:
        assert isinstance(self._declared, FlowSpec)
        return LandedTable(self._declared, self._layout, self._asked.root, self._asked.progress)

    def _named(self, row: Row) -> dict[str, Any]:
        return {name: row.get(name) for name in self.key_columns}


_FORMER = 3  # source rows that a key had: to ask what became of one may take a scan of all input
_FEWER = 5  # source rows of a row that is itself one: what a table of tables shows grows by powers


def _named(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of a row that name it; ORIGIN as commands have it."""
    if list(names) == [ORIGIN]:
        return {ORIGIN: f"{row[ORIGIN]['input']}:{row[ORIGIN]['position']}"}
    return {name: row[name] for name in names}


def _changed(then: Row, now: Row) -> str:
    """Return which values of a row changed, as text."""
    names = [name for name in then if not is_own(name) and name in now and then[name] != now[name]]
    changed = (f"{name} was {shown(then[name])}, is {shown(now[name])}" for name in names[:_SHOWN])
    return f"it had the key earlier: {'; '.join(changed)}"


def _numbers(it: DerivedTable, number: Sequence[Mapping[int, int]], at: int) -> dict[str, int]:
    return {table: own.get(at, 0) for table, own in zip(it.tables, number, strict=True)}


def _moment(kind: str, text: str | None) -> str | None:
    return text if text is None or kind not in _TIMES else parse_time(text).isoformat()


def _refuse_rounded(given: Mapping[str, str | None], found: Mapping[str, Any]) -> None:
    """Raise ValueError for a number that its column can't have: the cast would ask for another
    row.
    """
    for name, text in given.items():
        value = found[name]
        if text is not None and isinstance(value, int | Decimal) and not isinstance(value, bool):
            try:
                same = Decimal(text.strip()) == value
            except ArithmeticError:
                same = True  # a form of a number that only DuckDB reads, such as 0x10
            if not same:
                raise ValueError(f"{name} can't be {text}: its type takes it for {value}")


def _typed(name: str, kind: str) -> str:
    """Return a parameter cast to one of Delta's types, or of Spark's, in DuckDB's SQL. Raises
    ValueError.
    """
    known = _DUCK.get(kind, kind)
    if known not in (*_DUCK.values(), *_PLAIN) and not kind.startswith("decimal"):
        raise ValueError(f"{name} is of a type that can't be given as text; leave it out")
    return f"cast(? as {known}) as {identifier(name)}"
