"""The sources by kind: the one place that knows which package reads a kind of source. See `sources.port`."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from draindown.lake.layout import FlowLayout
from draindown.sources.files.source import Files
from draindown.sources.port import Source
from draindown.sources.tables.source import Tables
from draindown.spec.derived import DerivedFlow, TableSource
from draindown.spec.models import FlowSpec
from draindown.spec.sources import FilesSource

Make = Callable[[Any, FlowLayout, Path, str], Source]
"""Makes the source of a flow from the model of its kind, its layout, the project root and the id of the run."""

MAKERS: MutableMapping[str, Make] = {FilesSource.kind: Files, TableSource.kind: Tables}


class Asked(Protocol):
    """What a source is made from: a request."""

    @property
    def declared(self) -> FlowSpec | DerivedFlow:
        """The flow as its pipeline file describes it."""

    @property
    def layout(self) -> FlowLayout:
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
