"""What reads raw records again, by kind of source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, MutableMapping
from pathlib import Path

from draindown.config.kafka import KafkaSource
from draindown.config.landing import FlowSpec
from draindown.config.sources import FilesSource
from draindown.lake.home import FlowHome
from draindown.provenance.file_records import FileRecords
from draindown.provenance.kept_records import KeptRecords
from draindown.provenance.records import Record, RecordReader
from draindown.sources.slices import Unit

READERS: MutableMapping[str, Callable[[FlowSpec, FlowHome], RecordReader]] = {
    FilesSource.kind: FileRecords,
    KafkaSource.kind: KeptRecords,
}


class _NoRecords:
    """The reader of a kind of source whose records nobody reads again."""

    of_waiting = "what waits was not looked at"

    def __init__(self, flow: FlowSpec, layout: FlowHome) -> None:  # noqa: ARG002
        self._kind = flow.source.kind

    def gone(self, unit: Unit) -> str:
        return f"{unit.range}: records of {self._kind} can't be read again here"

    def records(self, unit: Unit, needles: Collection[bytes] = ()) -> Iterator[Record]:  # noqa: ARG002
        yield from ()

    def waiting(self, root: Path) -> Iterator[Unit]:  # noqa: ARG002
        yield from ()


def reader_of(flow: FlowSpec, layout: FlowHome) -> RecordReader:
    """Return the reader of a flow's records."""
    return READERS.get(flow.source.kind, _NoRecords)(flow, layout)
