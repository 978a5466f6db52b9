"""Tables that pipelines of one project read from each other: who writes them, who reads them, what
can't work.
"""

from __future__ import annotations

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from draindown.config.models import PipelineSpec
from draindown.config.names import unlike
from draindown.config.neighbours import Neighbours, Reader, Writer
from draindown.config.reading import Flow, column_problems, derived, readers
from draindown.config.table_source import SourceTable

Node = tuple[str, str]
"""A flow, by pipeline and name."""


@dataclass(frozen=True)
class _Reading:
    """A table that a flow reads and no flow of its own pipeline writes. `place`: the path of its
    name in the file.
    """

    spec: PipelineSpec
    flow: str
    table: SourceTable
    place: tuple[str, ...]

    def line(self, message: str) -> str:
        keys = "".join(
            f"[{key}]" if key.isdecimal() else f".{key}" for key in self.place
        ).removeprefix(".")
        return f"{self.spec.place_of(*self.place)}: {keys}: {message}"


class Project:
    """The pipelines of a project. `unreadable`: the files of those that can't be loaded, by
    name.
    """

    def __init__(self, specs: Sequence[PipelineSpec], unreadable: Mapping[str, Path]) -> None:
        self._specs, self._unreadable = {spec.pipeline: spec for spec in specs}, unreadable
        self._writers: dict[tuple[str, str], PipelineSpec] = {
            (_lake(spec), table): spec for spec in specs for table in spec.graph.writers
        }
        self._readers: dict[str, list[Reader]] = defaultdict(list)
        for spec in specs:
            for one in readers(spec.pipeline, spec.flows):
                writer = self._writers.get((_lake(spec), one.table))
                if writer is not None and writer.pipeline != spec.pipeline:
                    self._readers[writer.pipeline].append(one)

    def problems(self, spec: PipelineSpec) -> list[str]:
        """Return what the pipeline can't read of others, each as a line that begins with its
        position.
        """
        return [one.line(why) for one in _readings(spec) if (why := self._wrong(one))]

    def beside(self, spec: PipelineSpec) -> PipelineSpec:
        """Return a pipeline without problems with what the others say."""
        return spec.beside(
            Neighbours(
                writers={one.table.table: self._writer(one) for one in _readings(spec)},
                readers=tuple(self._readers[spec.pipeline]),
                unreadable=tuple(sorted(self._unreadable)),
            )
        )

    def _writer(self, one: _Reading) -> Writer:
        spec = self._writers[_lake(one.spec), one.table.table]
        flow = spec.graph.writers[one.table.table]
        keys = self._keys_of(spec.pipeline, flow, frozenset())
        return Writer(pipeline=spec.pipeline, flow=flow, keys=keys)

    def _keys_of(self, pipeline: str, name: str, within: frozenset[Node]) -> tuple[str, ...]:
        """Return the keys of a flow's table, which may be those of its source tables. `within`:
        flows that ask.
        """
        flow, node = self._specs[pipeline].flows[name], (pipeline, name)
        reading = [] if node in within else list(derived({name: flow}).values())
        for one in (table for own in reading for table in own.source.read):
            home = self._writers.get((_lake(self._specs[pipeline]), one.table))
            if home is None:
                continue
            writer = home.graph.writers[one.table]
            one._pipeline = None if home.pipeline == pipeline else home.pipeline
            one._written_by = writer
            one._row_keys = self._keys_of(home.pipeline, writer, within | {node})
        for own in reading:
            own.settle()
        return tuple(flow.target.row_keys)

    def _wrong(self, one: _Reading) -> str:
        """Return why a table can't be read; empty if it can."""
        table = one.table.table
        other = self._writers.get((_lake(one.spec), table))
        if other is None:
            return self._unwritten(one)
        writer = other.graph.writers[table]
        way = self._way((other.pipeline, writer), (one.spec.pipeline, one.flow))
        if way:
            return f"depends on itself: {' → '.join('/'.join(node) for node in (way[-1], *way))}"
        return "; ".join(self._column_problems(one, other.flows[writer]))

    def _unwritten(self, one: _Reading) -> str:
        """Return why no flow is known that writes a table."""
        table, lake = one.table.table, _lake(one.spec)
        elsewhere = [spec for (_, name), spec in self._writers.items() if name == table]
        if elsewhere:
            return (
                f"pipeline {elsewhere[0].pipeline!r} writes table {table!r} to another lake, "
                f"{elsewhere[0].lake}: tables are read within one lake"
            )
        known = [name for home, name in self._writers if home == lake]
        why = f"no flow of this project writes table {table!r}{unlike(table, known)}"
        for name, file in self._unreadable.items():
            why += (
                f"; pipeline {name!r} may, but its file can't be loaded, see: "
                f"draindown validate {shlex.quote(str(file))}"
            )
        return why

    @staticmethod
    def _column_problems(one: _Reading, writer: Flow) -> Iterator[str]:
        (flow,) = derived({one.flow: one.spec.flows[one.flow]}).values()
        at = flow.source.read.index(one.table)
        for place, message in column_problems(flow, at, writer):
            yield f"{'.'.join(place)}: {message}"

    def _way(self, start: Node, end: Node) -> list[Node]:
        """Return the flows from one to another that it reads, directly or through others; empty if
        it does not.
        """
        read_by: dict[Node, Node | None] = {start: None}
        waiting = [start]
        while waiting and end not in read_by:
            node = waiting.pop()
            for other in self._upstream(node):
                if other not in read_by:
                    read_by[other] = node
                    waiting.append(other)
        way, at = list[Node](), end if end in read_by else None
        while at is not None:
            way.insert(0, at)
            at = read_by[at]
        return way

    def _upstream(self, node: Node) -> Iterator[Node]:
        pipeline, flow = node
        for one in derived({flow: self._specs[pipeline].flows[flow]}).values():
            for table in one.source.read:
                other = self._writers.get((_lake(self._specs[pipeline]), table.table))
                if other is not None:
                    yield other.pipeline, other.graph.writers[table.table]


def has_readings(spec: PipelineSpec) -> bool:
    """Return whether a pipeline reads tables that none of its own flows writes."""
    return any(True for _ in _readings(spec))


def _readings(spec: PipelineSpec) -> Iterator[_Reading]:
    own = spec.graph.writers
    for name, flow in derived(spec.flows).items():
        for at, one in enumerate(flow.source.read):
            if one.table not in own:
                yield _Reading(spec, name, one, ("flows", name, *flow.place_of_table(at)))


def _lake(spec: PipelineSpec) -> str:
    return posixpath.normpath(spec.lake)
