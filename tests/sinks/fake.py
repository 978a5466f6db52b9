"""A sink in memory that keeps to the port: what its server holds outlives the sinks that send to
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from draindown.base.errors import TerminalError, TransientError
from draindown.sinks.port import FATE, Sink, SinkBatch, SinkColumn, SinkPlace

Key = tuple[Any, ...]


@dataclass
class FakeServer:
    """What a sink in memory holds: rows by key, the newest batch of each writer, and the epoch of
    each place.

    `fault` is called with the name of each step: reach, read, applied, recorded. What it raises
    ends the step, and nothing of the batch is kept.
    """

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    batches: dict[tuple[SinkPlace, str], SinkBatch] = field(default_factory=dict)
    epochs: dict[SinkPlace, int] = field(default_factory=dict)
    refused: set[Key] = field(default_factory=set)
    sent: int = 0
    fault: Callable[[str], None] = lambda step: None


class FakeSink(Sink):
    """A sink that applies batches to a server in memory, each as a transaction."""

    records = True

    def __init__(self, server: FakeServer, place: SinkPlace) -> None:
        self._server, self._place = server, place

    def check(self, columns: Sequence[SinkColumn]) -> None:
        self._server.fault("reach")
        if not any(column.key for column in columns):
            raise TerminalError(
                "sink-unfit", tried="look at the keys", found="no key", next="draindown validate"
            )

    def fence(self, epoch: int) -> None:
        self._server.fault("reach")
        self._not_older(epoch)
        self._server.epochs[self._place] = epoch

    def unsendable(self, columns: Sequence[SinkColumn]) -> Mapping[str, str]:
        texts = [column for column in columns if column.type == "string"]
        found = {
            f"key-null: {column.name}": f"`{column.name}` is null"
            for column in columns
            if column.key
        }
        return found | {
            f"nul-in-text: {column.name}": f"contains(`{column.name}`, chr(0))" for column in texts
        }

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        self._server.fault("reach")
        return self._server.batches.get((batch.place, batch.writer))

    def send(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[pa.RecordBatch]
    ) -> None:
        if self._is_new(batch):
            after = dict(self._server.rows)
            for row in (row for part in rows for row in part.to_pylist()):
                self._server.fault("read")
                self._apply(row, columns, after)
            self._commit(batch, after)

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[pa.RecordBatch]
    ) -> int | None:
        if not self._is_new(batch):
            return 0
        names = [column.name for column in columns if column.key]
        kept = {_key(row, names) for part in keys for row in part.to_pylist()}
        after = {key: row for key, row in self._server.rows.items() if key in kept}
        deleted = len(self._server.rows) - len(after)
        self._commit(batch, after)
        return deleted

    def close(self) -> None:
        pass

    def _is_new(self, batch: SinkBatch) -> bool:
        self._server.fault("reach")
        self._not_older(batch.epoch)
        known = self.has(batch)
        return known is None or (batch.number, batch.digest) != (known.number, known.digest)

    def _commit(self, batch: SinkBatch, after: dict[Key, dict[str, Any]]) -> None:
        server = self._server
        server.fault("applied")
        self._not_older(batch.epoch)
        server.rows, server.sent = after, server.sent + 1
        server.epochs[batch.place] = batch.epoch
        server.batches[batch.place, batch.writer] = batch
        server.fault("recorded")

    def _apply(
        self, row: dict[str, Any], columns: Sequence[SinkColumn], after: dict[Key, dict[str, Any]]
    ) -> None:
        key = _key(row, [column.name for column in columns if column.key])
        if key in self._server.refused:
            raise TerminalError(
                "sink-refused", tried="send a batch", found=f"key {key}", next="draindown sink skip"
            )
        if row[FATE] == "delete":
            after.pop(key, None)
        else:
            after[key] = {column.name: row[column.name] for column in columns}

    def _not_older(self, epoch: int) -> None:
        known = self._server.epochs.get(self._place)
        if known is not None and epoch < known:
            raise TransientError(
                "sink-fenced", tried=f"send as epoch {epoch}", found=f"epoch {known}"
            )


def _key(row: Mapping[str, Any], names: Sequence[str]) -> Key:
    """Return a row's key; a struct as text, since no dict is hashable."""
    return tuple(str(row[name]) if isinstance(row[name], dict) else row[name] for name in names)
