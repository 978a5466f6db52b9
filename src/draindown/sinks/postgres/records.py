"""The table draindown_sinks beside the target: the epoch of each place, and the newest batch of
each writer.

The row of a place has the writer ''. It is locked while a batch is applied, so batches of a place
never overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draindown.base.errors import TerminalError, TransientError
from draindown.sinks.port import SinkBatch, SinkPlace
from draindown.sinks.postgres.names import identifier
from draindown.sinks.postgres.target import Target

if TYPE_CHECKING:
    import psycopg

NAME = "draindown_sinks"
_NOBODY = ""
_DDL = """CREATE TABLE {table} (lake text NOT NULL, pipeline text NOT NULL, flow text NOT NULL, sink text NOT NULL, \
writer text NOT NULL, epoch bigint NOT NULL, number bigint, generation bigint, kind text, batch bigint, rows bigint, \
digest text, at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (lake, pipeline, flow, sink, writer));"""
_PLACE = "lake = %s and pipeline = %s and flow = %s and sink = %s and writer = %s"
_RIGHTS = ("SELECT", "INSERT", "UPDATE")


class Records:
    """The records of one place. `target` says in which schema they are."""

    def __init__(self, target: Target, place: SinkPlace) -> None:
        self._target, self._place = target, place
        self._table = f"{identifier(target.schema)}.{NAME}"

    @property
    def ddl(self) -> str:
        """The statement that makes the table."""
        return _DDL.format(table=self._table)

    def check(self, opened: psycopg.Connection[Any]) -> None:
        """Raise TerminalError `sink-denied` unless batches could be recorded."""
        if self._exists(opened):
            asked = ", ".join("has_table_privilege(%s, %s)" for _ in _RIGHTS)
            given = [value for right in _RIGHTS for value in (self._table, right)]
            row = opened.execute(f"select {asked}", given).fetchone() or ()
            lacking = [right for right, has in zip(_RIGHTS, row, strict=True) if not has]
            if lacking:
                grant = f"GRANT {', '.join(_RIGHTS)} ON {self._table} TO {identifier(self._target.user)};"
                raise self._error(
                    "sink-denied",
                    f"the user {self._target.user} lacks {', '.join(lacking)} on it",
                    [grant],
                )
        elif not self._target.may_create:
            why = "there is no such table, and this user can't create it"
            raise self._error("sink-denied", why, [self.ddl, self._place.command("plan")])

    def make(self, opened: psycopg.Connection[Any]) -> None:
        """Make the table if there is none. Raises as `check` does."""
        from psycopg import errors

        self.check(opened)
        if self._exists(opened):
            return
        try:
            opened.execute(self.ddl.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))
        # of the catalog: another connection makes it at the same moment
        except errors.UniqueViolation:
            if not self._exists(opened):
                raise

    def fence(self, opened: psycopg.Connection[Any], epoch: int) -> None:
        """Lock the place until the transaction ends, and exclude lower epochs. Raises
        TransientError `sink-fenced`.
        """
        place = self._of(_NOBODY)
        opened.execute(
            f"insert into {self._table} (lake, pipeline, flow, sink, writer, epoch) values (%s, %s, %s, %s, %s, %s)"
            " on conflict do nothing",
            [*place, epoch],
        )
        row = opened.execute(
            f"select epoch from {self._table} where {_PLACE} for update", place
        ).fetchone()
        if row is not None and row[0] > epoch:
            raise TransientError(
                "sink-fenced",
                tried=f"send to {self._target.place} as the driver with epoch {epoch}",
                found=f"a driver with epoch {row[0]} sends there since",
                next=self._place.command(
                    "run", "if no other run is at work: it takes a higher epoch"
                ),
            )
        if row is not None and row[0] < epoch:
            opened.execute(
                f"update {self._table} set epoch = %s, at = now() where {_PLACE}", [epoch, *place]
            )

    def newest(self, opened: psycopg.Connection[Any], writer: str) -> SinkBatch | None:
        """Return the newest recorded batch of a writer; None if none is, or nothing is recorded
        yet.
        """
        if not self._exists(opened):
            return None
        row = opened.execute(
            f"select number, generation, kind, batch, epoch, rows, digest from {self._table} where {_PLACE}",
            self._of(writer),
        ).fetchone()
        return None if row is None else SinkBatch(self._place, writer, *row)

    def record(self, opened: psycopg.Connection[Any], batch: SinkBatch) -> None:
        """Record a batch as its writer's newest."""
        names = ("epoch", "number", "generation", "kind", "batch", "rows", "digest")
        values = ", ".join(["%s"] * (5 + len(names)))
        changed = ", ".join(f"{name} = excluded.{name}" for name in names)
        opened.execute(
            f"insert into {self._table} (lake, pipeline, flow, sink, writer, {', '.join(names)}) values ({values})"
            f" on conflict (lake, pipeline, flow, sink, writer) do update set {changed}, at = now()",
            [*self._of(batch.writer), *(getattr(batch, name) for name in names)],
        )

    def _exists(self, opened: psycopg.Connection[Any]) -> bool:
        row = opened.execute("select to_regclass(%s) is not null", [self._table]).fetchone()
        return row is not None and bool(row[0])

    def _of(self, writer: str) -> list[str]:
        place = self._place
        return [place.lake, place.pipeline, place.flow, place.sink, writer]

    def _error(self, code: str, found: str, next: Sequence[str]) -> TerminalError:
        tried = f"look at {self._table}, which remembers the batches of {self._target.place}"
        return TerminalError(code, tried=tried, found=found, next=next)
