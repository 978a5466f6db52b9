"""The sources by kind: the one place that knows which package reads a kind of source. See
`sources.port`.

A package is imported when a flow of its kind asks for its source. So a kind's client library costs
other flows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from draindown.config.derived import DerivedFlow
from draindown.config.kafka import KafkaSource
from draindown.config.landing import FlowSpec
from draindown.config.sources import FilesSource
from draindown.config.table_source import TableSource
from draindown.lake.home import FlowHome
from draindown.sources.port import Source

Make = Callable[[Any, FlowHome, Path, str], Source]
"""Makes the source of a flow from the model of its kind, its layout, the project root and the id of
the run.
"""


def _in(module: str, name: str) -> Make:
    def make(*given: Any) -> Source:
        found: Source = getattr(import_module(module), name)(*given)
        return found

    return make


MAKERS: MutableMapping[str, Make] = {
    FilesSource.kind: _in("draindown.sources.files.source", "Files"),
    KafkaSource.kind: _in("draindown.sources.kafka.source", "Kafka"),
    TableSource.kind: _in("draindown.sources.tables.source", "Tables"),
}


class Asked(Protocol):
    """What a source is made from: a request."""

    @property
    def declared(self) -> FlowSpec | DerivedFlow:
        """The flow as its pipeline file describes it."""

    @property
    def layout(self) -> FlowHome:
        """The flow's paths."""

    @property
    def root(self) -> str:
        """The project root."""

    @property
    def run_id(self) -> str:
        """The run that asks."""


def source_of(asked: Asked) -> Source:
    """Return the flow's source, without looking at it."""
    source = asked.declared.source
    return MAKERS[source.kind](source, asked.layout, Path(asked.root), asked.run_id)
