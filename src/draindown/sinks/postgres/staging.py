"""Rows of a batch in a temporary table of their own. The server drops it with the transaction,
whatever ends that.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from draindown.sinks.port import FATE, SinkBatch, SinkColumn
from draindown.sinks.postgres import culprit
from draindown.sinks.postgres.connection import Connection
from draindown.sinks.postgres.failures import NOT_COMMITTED
from draindown.sinks.postgres.names import identifier
from draindown.sinks.postgres.target import Target
from draindown.sinks.values import JSON, ready

if TYPE_CHECKING:
    import psycopg

# NULL is what has no quotes
_WRITTEN = csv.WriteOptions(include_header=False, quoting_style="all_valid")
_AT_ONCE = 50_000  # rows of one COPY, which ends within `timeout`


class Staging:
    """The temporary table of one batch, named so that a look at the server tells whose it is."""

    def __init__(
        self,
        connection: Connection,
        target: Target,
        batch: SinkBatch,
        columns: Sequence[SinkColumn],
    ) -> None:
        self._connection, self._target, self._columns = connection, target, columns
        self._keys = [identifier(column.name) for column in columns if column.key]
        self._names = [identifier(column.name) for column in columns]
        name = f"draindown_g{batch.generation}_e{batch.epoch}_b{batch.number}"
        self._name = f"pg_temp.{identifier(name)}"
        self._plain = identifier(name)

    def make(self, opened: psycopg.Connection[Any]) -> None:
        """Make it, with the types of the target's columns, which is not locked while rows come."""
        declared = [
            f"{identifier(one.name)} {self._target.columns[one.name].declared}"
            for one in self._columns
        ]
        listed = ", ".join([*declared, f"{identifier(FATE)} text"])
        opened.execute(f"create temp table {self._plain} ({listed}) on commit drop")

    def fill(self, rows: Iterable[pa.RecordBatch], fates: bool) -> None:
        """Copy rows into it. The time that `rows` takes to give them is not bounded here. Raises
        RowRefused.
        """
        names = [column.name for column in self._columns]
        listed = [*self._names, identifier(FATE)] if fates else self._names
        statement = f"copy {self._name} ({', '.join(listed)}) from stdin (format csv)"
        for part in rows:
            for start in range(0, part.num_rows, _AT_ONCE):
                some = part.slice(start, _AT_ONCE)
                with self._connection.step("copy rows for", NOT_COMMITTED) as opened:
                    copied = partial(
                        _copy, opened, statement, some, [*names, FATE] if fates else names
                    )
                    self._attempt(opened, some.num_rows, copied, partial(self._key_of, some))

    def apply(self, opened: psycopg.Connection[Any]) -> None:
        """Delete and upsert in the target. Raises RowRefused, and TerminalError `sink-unfit`."""
        opened.execute(f"analyze {self._name}")
        number = opened.execute(f"select count(*) from {self._name}").fetchone() or (0,)
        self._attempt(
            opened, number[0], partial(self._apply, opened), partial(self._key_at, opened)
        )

    def _attempt(
        self,
        opened: psycopg.Connection[Any],
        rows: int,
        work: Callable[[int | None], None],
        key: Callable[[int], str],
    ) -> None:
        def timed(most: int | None) -> None:
            self._connection.again()
            work(most)

        culprit.attempt(opened, rows, timed, key)

    def _apply(self, opened: psycopg.Connection[Any], most: int | None) -> None:
        """Apply all rows, or the first ones: deletes come first, their rows may hold what a unique
        index guards.
        """
        fate, names = identifier(FATE), ", ".join(self._names)
        rows = self._name if most is None else f"({self._ordered} limit {most})"
        opened.execute(
            f"delete from {self._target.text} t using {rows} s where s.{fate} = 'delete' and {self._same}"
        )
        self._connection.again()
        changed = ", ".join(
            f"{name} = excluded.{name}" for name in self._names if name not in self._keys
        )
        opened.execute(
            f"insert into {self._target.text} ({names}) select {names} from {rows} s where {fate} = 'upsert'"
            f" on conflict ({', '.join(self._keys)}) do {f'update set {changed}' if changed else 'nothing'}"
        )
        self._connection.again()
        # one that is deferred would fail the commit
        opened.execute("set constraints all immediate")
        if self._target.triggers and most is None:
            self._connection.again()
            self._refuse_changed(opened)

    def _refuse_changed(self, opened: psycopg.Connection[Any]) -> None:
        """Raise TerminalError `sink-unfit` if a trigger gave a row another key, or left it out or
        in place.
        """
        keys, there = (
            ", ".join(self._keys),
            f"exists (select from {self._target.text} t where {self._same})",
        )
        statement = f"select {keys} from {self._name} s where (s.{identifier(FATE)} = 'upsert') <> {there} limit 1"
        row = opened.execute(statement).fetchone()
        if row is not None:
            raise self._target.changed_by_trigger(self._key_text(row))

    @property
    def _ordered(self) -> str:
        return f"select * from {self._name} order by {identifier(FATE)} = 'upsert', ctid"

    def _key_at(self, opened: psycopg.Connection[Any], number: int) -> str:
        """Return the key of a row by its number in `_ordered`, from 0."""
        row = opened.execute(
            f"select {', '.join(self._keys)} from ({self._ordered} offset {number} limit 1) s"
        ).fetchone()
        return self._key_text(row or ())

    def _key_text(self, row: Sequence[Any]) -> str:
        keys = [column.name for column in self._columns if column.key]
        return culprit.text_of(
            {name: pa.array([value]) for name, value in zip(keys, row, strict=True)}
        )

    def _key_of(self, rows: pa.RecordBatch, number: int) -> str:
        keys = [column.name for column in self._columns if column.key]
        return culprit.text_of({name: rows.column(name).slice(number, 1) for name in keys})

    def delete_others(self, opened: psycopg.Connection[Any]) -> int:
        """Delete the rows of the target whose keys are not here. Return how many."""
        opened.execute(f"analyze {self._name}")
        self._connection.again()
        return opened.execute(
            f"delete from {self._target.text} t where not exists (select from {self._name} s where {self._same})"
        ).rowcount

    @property
    def _same(self) -> str:
        return " and ".join(f"t.{key} = s.{key}" for key in self._keys)


def _copy(
    opened: psycopg.Connection[Any],
    statement: str,
    rows: pa.RecordBatch,
    names: Sequence[str],
    most: int | None,
) -> None:
    with opened.cursor().copy(statement) as copy:
        copy.write(as_csv(rows.slice(0, most), names))


def as_csv(rows: pa.RecordBatch, names: Sequence[str]) -> bytes:
    """Return columns as the CSV that COPY reads: values in quotes, NULL as nothing."""
    out = io.BytesIO()
    csv.write_csv(
        pa.table([_written(rows.column(name)) for name in names], names=list(names)), out, _WRITTEN
    )
    return out.getvalue()


def _written(column: pa.Array) -> pa.Array:
    form = column.type
    if pa.types.is_nested(form):
        return pa.array(
            [None if value is None else JSON(value) for value in ready(column)], pa.string()
        )
    if pa.types.is_binary(form) or pa.types.is_large_binary(form):
        return pa.array(
            [None if value is None else "\\x" + value.hex() for value in column.to_pylist()],
            pa.string(),
        )
    if pa.types.is_timestamp(form):
        return column.cast(pa.timestamp("us", "UTC" if form.tz else None))
    if pa.types.is_null(form):
        return column.cast(pa.string())
    if pa.types.is_dictionary(form):
        return pc.cast(column, form.value_type)
    return column
