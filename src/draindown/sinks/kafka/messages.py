"""Rows of a batch as messages: key, value and headers.

The key is the text of the only key column, or a JSON object of several. The value is a JSON object
of all columns; a delete has none (a tombstone). A target without keys sends a withdrawn row as a
message with the header `withdrawn` and the row's id in its value; the key only places it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from draindown.sinks.port import FATE, ORIGIN, SinkBatch, SinkColumn
from draindown.sinks.values import JSON, ready, texts

Headers = list[tuple[str, bytes]]
_ID_BYTES = 16


@dataclass(slots=True)
class Message:
    """A message. `row` is the JSON text of the row's key, for errors."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    row: str


class Messages:
    """Makes the messages of one batch. `partition_by`: the columns that place rows without keys; none:
    their origin.
    """

    def __init__(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], partition_by: Sequence[str] = ()
    ) -> None:
        self._names = [column.name for column in columns]
        self._keys = [column.name for column in columns if column.key]
        self._keyed = self._keys != [ORIGIN]
        self._placing = self._keys if self._keyed else list(partition_by) or self._keys
        place = batch.place
        # with its digest: the rows of a batch that was given up and computed again are other
        # messages
        batch_of_place = (batch.writer, str(batch.number), batch.digest)
        self._batch = "\x1f".join(
            (place.lake, place.pipeline, place.flow, place.sink, *batch_of_place)
        )
        self._key_at = [self._names.index(name) for name in self._keys]
        self._fields = [f"{JSON(name)}:" for name in self._names]
        self._headers: Headers = [
            ("flow", f"{place.pipeline}.{place.flow}".encode()),
            ("generation", str(batch.generation).encode()),
            ("kind", batch.kind.encode()),
            ("batch", str(batch.batch).encode()),
        ]

    def of(self, rows: pa.RecordBatch) -> Iterator[Message]:
        """Yield a message per row."""
        columns = [texts(rows.column(name)) for name in self._names]
        placed = self._placed(rows)
        for fate, key, *row in zip(rows.column(FATE).to_pylist(), placed, *columns, strict=True):
            yield self._message(key, row, fate == "delete")

    def _message(self, key: bytes | None, row: Sequence[str], gone: bool) -> Message:
        text = self._object(row, self._key_at)
        id = hashlib.blake2b(f"{self._batch}\x1f{text}".encode(), digest_size=_ID_BYTES).hexdigest()
        headers = [("id", id.encode()), *self._headers]
        if not gone:
            value = self._object(row, range(len(row))).encode()
        elif self._keyed:
            value = None
        else:
            value, headers = text.encode(), [*headers, ("withdrawn", b"true")]
        return Message(key, value, headers, text)

    def _object(self, row: Sequence[str], places: Iterable[int]) -> str:
        return "{" + ",".join([self._fields[at] + row[at] for at in places]) + "}"

    def _placed(self, rows: pa.RecordBatch) -> list[bytes | None]:
        """Return what places each row: the only column's value, text as it is, or an object of
        several.
        """
        columns = [rows.column(name) for name in self._placing]
        if len(columns) > 1:
            fields = [self._fields[self._names.index(name)] for name in self._placing]
            parts = [
                [field + text for text in texts(column)]
                for field, column in zip(fields, columns, strict=True)
            ]
            return [("{" + ",".join(row) + "}").encode() for row in zip(*parts, strict=True)]
        values = ready(columns[0])
        return [
            None if one is None else (one if isinstance(one, str) else JSON(one)).encode()
            for one in values
        ]
