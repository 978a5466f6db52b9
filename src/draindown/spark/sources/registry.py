"""The reader of each kind of source."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from draindown.sources.port import Source, located
from draindown.sources.slices import Slice
from draindown.spark.sources.files import FilesReader
from draindown.spark.sources.input import SliceInput
from draindown.spark.sources.kafka import KafkaReader
from draindown.spark.sources.port import SliceReader
from draindown.spec.kafka import KafkaSource
from draindown.spec.landing import FlowSpec
from draindown.spec.sources import FilesSource

READERS: MutableMapping[str, SliceReader] = {
    FilesSource.kind: FilesReader(),
    KafkaSource.kind: KafkaReader(),
}


def input_of(flow: FlowSpec, source: Source, pinned: Slice) -> SliceInput:
    """Return a slice of the flow's source as the input of a batch."""
    whole = replace(pinned, units=tuple(located(source, pinned.units)))
    return SliceInput(source, whole, READERS[flow.source.kind])
