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
from draindown.config.neighbours import Neighbours, Reader
from draindown.config.reading import Flow, column_problems, derived, readers
from draindown.config.table_source import SourceTable

Node = tuple[str, str]
"""A flow, by pipeline and name."""


@dataclass(frozen=True)
class _Reading:
    """A table of another pipeline that a flow reads. `place`: the path of its `pipeline` in the
    file.
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
        self._readers: dict[str, list[Reader]] = defaultdict(list)
        for spec in specs:
            for pipeline, one in readers(spec.pipeline, spec.flows):
                if pipeline is not None:
                    self._readers[pipeline].append(one)

    def problems(self, spec: PipelineSpec) -> list[str]:
        """Return what the pipeline can't read of others, each as a line that begins with its
        position.
        """
        return [one.line(why) for one in _readings(spec) if (why := self._wrong(one))]

    def beside(self, spec: PipelineSpec) -> PipelineSpec:
        """Return a pipeline without problems with what the others say."""
        return spec.beside(
            Neighbours(
                writers={str(one.table): self._writer(one.table) for one in _readings(spec)},
                keys={str(one.table): self._keys(one.table) for one in _readings(spec)},
                readers=tuple(self._readers[spec.pipeline]),
                unreadable=tuple(sorted(self._unreadable)),
            )
        )

    def _writer(self, table: SourceTable) -> str:
        return self._specs[table.pipeline or ""].graph.writers[table.table]

    def _keys(self, table: SourceTable) -> tuple[str, ...]:
        return self._keys_of(table.pipeline or "", self._writer(table), frozenset())

    def _keys_of(self, pipeline: str, name: str, within: frozenset[Node]) -> tuple[str, ...]:
        """Return the keys of a flow's table, which may be those of its source tables. `within`:
        flows that ask.
        """
        flow, node = self._specs[pipeline].flows[name], (pipeline, name)
        reading = [] if node in within else list(derived({name: flow}).values())
        for one in (table for own in reading for table in own.source.read):
            home = one.pipeline or pipeline
            writer = self._specs[home].graph.writers.get(one.table) if home in self._specs else None
            if writer is not None:
                one._written_by, one._row_keys = (
                    writer,
                    self._keys_of(home, writer, within | {node}),
                )
        for own in reading:
            own.settle()
        return tuple(flow.target.row_keys)

    def _wrong(self, one: _Reading) -> str:
        """Return why a table can't be read; empty if it can."""
        name, table = one.table.pipeline or "", one.table.table
        if name == one.spec.pipeline:
            return "is this pipeline: leave it out"
        if name in self._unreadable:
            file = self._unreadable[name]
            return f"the file of pipeline {name!r} can't be loaded, see: draindown validate {shlex.quote(str(file))}"
        other = self._specs.get(name)
        if other is None:
            known = [known for known in self._specs if known != one.spec.pipeline]
            return f"the project has no pipeline {name!r}{unlike(name, known) if known else ''}"
        if table not in (writers := other.graph.writers):
            return f"no flow of pipeline {name!r} writes table {table!r}{unlike(table, writers)}"
        if _lake(other) != _lake(one.spec):
            return f"pipeline {name!r} writes to another lake, {other.lake}: tables are read within one lake"
        way = self._way((name, writers[table]), (one.spec.pipeline, one.flow))
        if way:
            return f"depends on itself: {' → '.join('/'.join(node) for node in (way[-1], *way))}"
        return "; ".join(self._column_problems(one, other.flows[writers[table]]))

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
                other = self._specs.get(table.pipeline or pipeline)
                if other is not None and table.table in other.graph.writers:
                    yield other.pipeline, other.graph.writers[table.table]


def has_readings(spec: PipelineSpec) -> bool:
    """Return whether a pipeline reads tables of others."""
    return any(True for _ in _readings(spec))


def _readings(spec: PipelineSpec) -> Iterator[_Reading]:
    for name, flow in derived(spec.flows).items():
        for at, one in enumerate(flow.source.read):
            if one.pipeline:
                yield _Reading(
                    spec, name, one, ("flows", name, "source", *flow.source.place(at, "pipeline"))
                )


def _lake(spec: PipelineSpec) -> str:
    return posixpath.normpath(spec.lake)
