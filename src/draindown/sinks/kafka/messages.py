"""Rows of a batch as messages: key, value and headers.

The key is the text of the only key column, or a JSON object of several. The value is a JSON object of all columns; a
delete has none (a tombstone). A target without keys sends a withdrawn row as a message with the header `withdrawn` and
the row's id in its value; the key only places it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from draindown.sinks.port import FATE, ORIGIN, SinkBatch, SinkColumn
from draindown.sinks.values import JSON, ready

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
    """Makes the messages of one batch. `place_by`: the columns that place rows without keys; none: their origin."""

    def __init__(self, batch: SinkBatch, columns: Sequence[SinkColumn], place_by: Sequence[str] = ()) -> None:
        self._names = [column.name for column in columns]
        self._keys = [column.name for column in columns if column.key]
        self._keyed = self._keys != [ORIGIN]
        self._placing = self._keys if self._keyed else list(place_by) or self._keys
        place = batch.place
        # with its digest: the rows of a batch that was given up and computed again are other messages
        batch_of_place = (batch.writer, str(batch.number), batch.digest)
        self._batch = "\x1f".join((place.lake, place.pipeline, place.flow, place.sink, *batch_of_place))
        self._key_at = [self._names.index(name) for name in self._keys]
        self._placing_at = [self._names.index(name) for name in self._placing]
        self._headers: Headers = [
            ("flow", f"{place.pipeline}.{place.flow}".encode()),
            ("generation", str(batch.generation).encode()),
            ("kind", batch.kind.encode()),
            ("batch", str(batch.batch).encode()),
        ]

    def of(self, rows: pa.RecordBatch) -> Iterator[Message]:
        """Yield a message per row."""
        columns = [ready(rows.column(name)) for name in self._names]
        for fate, *values in zip(rows.column(FATE).to_pylist(), *columns, strict=True):
            yield self._message(values, fate == "delete")

    def _message(self, values: Sequence[Any], gone: bool) -> Message:
        text = JSON({self._names[at]: values[at] for at in self._key_at})
        id = hashlib.blake2b(f"{self._batch}\x1f{text}".encode(), digest_size=_ID_BYTES).hexdigest()
        headers = [("id", id.encode()), *self._headers]
        if not gone:
            value = JSON(dict(zip(self._names, values, strict=True))).encode()
        elif self._keyed:
            value = None
        else:
            value, headers = text.encode(), [*headers, ("withdrawn", b"true")]
        return Message(_placed([values[at] for at in self._placing_at], self._placing), value, headers, text)


def _placed(values: Sequence[Any], names: Sequence[str]) -> bytes | None:
    if len(values) > 1:
        return JSON(dict(zip(names, values, strict=True))).encode()
    (value,) = values
    if value is None:
        return None
    return (value if isinstance(value, str) else JSON(value)).encode()
