"""A Postgres table as a sink: every batch once, in one transaction that records it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from draindown.config.postgres_sink import PostgresSink
from draindown.sinks.conditions import null_keys
from draindown.sinks.port import Sink, SinkBatch, SinkColumn, SinkPlace
from draindown.sinks.postgres import failures, types
from draindown.sinks.postgres.connection import Connection
from draindown.sinks.postgres.culprit import RowRefused
from draindown.sinks.postgres.failures import NOT_COMMITTED, UNCERTAIN
from draindown.sinks.postgres.records import Records
from draindown.sinks.postgres.staging import Staging
from draindown.sinks.postgres.target import Target, look
from draindown.sinks.refusals import refused

if TYPE_CHECKING:
    import psycopg
    import pyarrow

Found = TypeVar("Found")
Reached = Callable[[str], None]
"""Called at each step of a batch: staged, locked, applied, recorded."""


def _nothing(step: str) -> None:
    """Do nothing at a step."""
    del step


class PostgresTable(Sink):
    """A table of a database. Nothing is connected before a method needs it, and no method alters a
    table.

    Methods raise TransientError `sink-unreachable`, `sink-busy`, `sink-full`, `sink-fenced`;
    TerminalError `sink-auth`, `sink-tls`, `sink-denied`, `sink-missing`, `sink-unfit`,
    `sink-refused`, `sink-options`, `secret-missing`.
    """

    records = True

    def __init__(
        self,
        spec: PostgresSink,
        place: SinkPlace,
        environ: Mapping[str, str] = os.environ,
        reached: Reached = _nothing,
    ) -> None:
        self._spec, self._place, self._reached = spec, place, reached
        self._connection = Connection(spec, place, environ)

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """See `Sink.check`."""
        with self._connection.step("look at") as opened:
            target = self._target(opened, columns)
            target.check(columns)
            self._records(target).check(opened)

    def fence(self, epoch: int) -> None:
        """See `Sink.fence`. The table of batches is made here if there is none."""
        with self._connection.step("exclude older drivers from") as opened:
            records = self._records(self._target(opened))
            records.make(opened)
            with opened.transaction():
                records.fence(opened, epoch)

    def unsendable(self, columns: Sequence[SinkColumn]) -> Mapping[str, str]:
        """See `Sink.unsendable`. The target's columns are looked up."""
        with self._connection.step("look at the columns of") as opened:
            target = self._target(opened, columns)
        found = dict(null_keys(columns))
        for column in columns:
            if (has := target.columns.get(column.name)) is not None:
                found |= types.refused(column, has.type)
        return found

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        """See `Sink.has`."""
        with self._connection.step("look for a batch of") as opened:
            return self._records(self._target(opened)).newest(opened, batch.writer)

    def send(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """See `Sink.send`."""
        try:
            self._once(batch, columns, rows, True, Staging.apply)
        except RowRefused as refusal:
            known = self._connection.named(refusal.error, f"send a batch to {self._spec.place}")
            raise refused(
                self._place,
                tried=known.tried,
                found=known.found,
                changed="nothing in the table",
                key=refusal.key,
                ways=failures.ways(refusal.error, self._spec.table),
            ) from refusal.error

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[pyarrow.RecordBatch]
    ) -> int:
        """See `Sink.retain`."""
        return (
            self._once(
                batch, [one for one in columns if one.key], keys, False, Staging.delete_others
            )
            or 0
        )

    def close(self) -> None:
        """See `Sink.close`."""
        self._connection.close()

    def _once(
        self,
        batch: SinkBatch,
        columns: Sequence[SinkColumn],
        rows: Iterable[pyarrow.RecordBatch],
        fates: bool,
        apply: Callable[[Staging, psycopg.Connection[Any]], Found],
    ) -> Found | None:
        """Apply a batch and record it, or do nothing and return None if it was done."""
        with self._connection.step("look for a batch of") as opened:
            target = self._target(opened, columns)
            records = self._records(target)
            if self._is_done(opened, records, batch):
                return None
        staging = Staging(self._connection, target, batch, columns)
        with self._transaction():
            with self._connection.step("make a temporary table for", NOT_COMMITTED) as opened:
                staging.make(opened)
            staging.fill(rows, fates)
            self._reached("staged")
            with self._connection.step("send a batch to", NOT_COMMITTED) as opened:
                opened.execute(
                    f"set local idle_in_transaction_session_timeout = '{self._spec.timeout}s'"
                )
                records.fence(opened, batch.epoch)
                self._reached("locked")
                if self._is_done(opened, records, batch):
                    return None
                self._connection.again()
                found = apply(staging, opened)
                self._reached("applied")
                self._connection.again()
                records.record(opened, batch)
                self._reached("recorded")
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Begin, and commit at the end of the block. An error breaks the connection, so the server
        undoes all of it.
        """
        with self._connection.step("begin a batch of", NOT_COMMITTED) as opened:
            opened.execute("begin isolation level read committed")
            # rows may take their time until they come; nothing is locked then
            opened.execute("set local idle_in_transaction_session_timeout = 0")
        try:
            yield
        except BaseException:
            self._connection.close()
            raise
        with self._connection.step("commit a batch of", UNCERTAIN) as opened:
            opened.execute("commit")

    def _target(
        self, opened: psycopg.Connection[Any], columns: Sequence[SinkColumn] = ()
    ) -> Target:
        return look(opened, self._spec.table, self._spec.place, columns)

    def _records(self, target: Target) -> Records:
        return Records(target, self._place)

    @staticmethod
    def _is_done(opened: psycopg.Connection[Any], records: Records, batch: SinkBatch) -> bool:
        """Return whether the batch is recorded as the newest one.

        With other rows under its number it is not: a person gave those up. Nor is one with a lower
        number: the lake was restored from an older copy, as epochs exclude older drivers.
        """
        newest = records.newest(opened, batch.writer)
        return newest is not None and (newest.number, newest.digest) == (batch.number, batch.digest)
