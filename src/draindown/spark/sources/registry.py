"""The reader of each kind of source."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from draindown.config.kafka import KafkaSource
from draindown.config.landing import FlowSpec
from draindown.config.sources import FilesSource
from draindown.sources.port import Source, located
from draindown.sources.slices import Slice
from draindown.spark.sources.files import FilesReader
from draindown.spark.sources.input import SliceInput
from draindown.spark.sources.kafka import KafkaReader
from draindown.spark.sources.port import SliceReader

READERS: MutableMapping[str, SliceReader] = {
    FilesSource.kind: FilesReader(),
    KafkaSource.kind: KafkaReader(),
}


def input_of(flow: FlowSpec, source: Source, pinned: Slice) -> SliceInput:
    """Return a slice of the flow's source as the input of a batch."""
    whole = replace(pinned, units=tuple(located(source, pinned.units)))
    return SliceInput(source, whole, READERS[flow.source.kind])
