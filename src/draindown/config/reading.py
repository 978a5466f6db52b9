"""Which flows of a pipeline read which tables, and what can't be read as a file says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from draindown.config import query_names, result_columns
from draindown.config.base import Problem
from draindown.config.derived import DerivedFlow
from draindown.config.flow_graph import FlowGraph
from draindown.config.neighbours import Neighbours, Reader
from draindown.config.pairing import Pairing, side_problems
from draindown.config.table_source import SourceTable
from draindown.config.target_kinds import TargetKind


class Target(Protocol):
    """What is asked of any target."""

    @property
    def kind(self) -> TargetKind:
        """The kind of table."""

    @property
    def row_keys(self) -> Sequence[str]:
        """The columns that name a row; none for a table that appends."""


class Flow(Protocol):
    """What is asked of any flow."""

    @property
    def target(self) -> Target:
        """The table to write."""

    @property
    def known_columns(self) -> Mapping[str, str] | None:
        """The table's columns and their types; None if only a run shows them."""

    @property
    def grows(self) -> bool:
        """Whether input adds columns to the table."""

    def table_name(self, flow_name: str) -> str:
        """Return the name of the target table."""


Flows = Mapping[str, Flow]


def derived(flows: Flows) -> dict[str, DerivedFlow]:
    """Return the derived flows."""
    return {name: flow for name, flow in flows.items() if isinstance(flow, DerivedFlow)}


def graph(flows: Flows) -> FlowGraph:
    """Return the flows by the tables between them."""
    writers = {flow.table_name(name): name for name, flow in flows.items()}
    reads = {
        name: flow.upstream if isinstance(flow, DerivedFlow) else () for name, flow in flows.items()
    }
    return FlowGraph(writers, reads)


def name_writers(flows: Flows, neighbours: Neighbours | None = None) -> None:
    """Write into each source table who writes it, and its keys: a flow of this pipeline, or of
    another one as `neighbours` says.

    The keys of a derived flow may be those of its source tables, so it is settled before flows that
    read its table.
    """
    found, reading = graph(flows), derived(flows)
    own = found.writers
    for flow in (reading[name] for name in found.order if name in reading):
        for one in flow.source.read:
            if one.table in own:
                one._written_by = own[one.table]
                one._row_keys = tuple(flows[own[one.table]].target.row_keys)
            elif neighbours is not None and one.table in neighbours.writers:
                writer = neighbours.writers[one.table]
                one._pipeline, one._written_by, one._row_keys = (
                    writer.pipeline,
                    writer.flow,
                    writer.keys,
                )
        flow.settle()


def key_problems(flows: Flows) -> Iterator[Problem]:
    """Yield what the keys of source tables forbid, where they are all known."""
    for name, flow in derived(flows).items():
        if isinstance(flow.derivation, Pairing) and all(one.written_by for one in flow.source.read):
            yield from ((("flows", name, *place), text) for place, text in flow.settled_problems())


def problems(flows: Flows) -> Iterator[Problem]:
    """Yield cycles, and columns that a source table of this pipeline lacks."""
    found, reading = graph(flows), derived(flows)
    for name, table, message in found.problems():
        at = reading[name].upstream.index(table)
        yield ("flows", name, *reading[name].place_of_table(at)), message
    for name, flow in reading.items():
        wrong = list[Problem]()
        for at, one in enumerate(flow.source.read):
            writer = found.writers.get(one.table)
            wrong += column_problems(flow, at, flows[writer] if writer else None)
        yield from ((("flows", name, *place), text) for place, text in wrong)
        if isinstance(flow.derivation, Pairing) and not wrong:
            every = [_columns(flows, found, one) for one in flow.source.read]
            known = {
                one.table: own
                for one, own in zip(flow.source.read, every, strict=True)
                if own is not None
            }
            if len(known) == len(every):
                clashes = side_problems(flow.derivation, known)
                yield from ((("flows", name, flow.kind, *place), text) for place, text in clashes)
        if flow.query is not None and not wrong:
            columns = {one.table: _columns(flows, found, one) for one in flow.source.read}
            wrong_names = query_names.problems(flow.query.sql, flow.query.keys, columns)
            yield from ((("flows", name, "query", "sql"), text) for text in wrong_names)


def column_problems(flow: DerivedFlow, at: int, writer: Flow | None) -> Iterator[Problem]:
    """Yield problems of a flow with source table number `at`, by their path in the flow. `writer`:
    of that table.
    """
    if writer is None:
        return result_columns.problems(flow, at, None, None)
    types, kind = writer.known_columns, writer.target.kind
    return result_columns.problems(flow, at, types, kind, grows=writer.grows)


def _columns(flows: Flows, found: FlowGraph, table: SourceTable) -> Mapping[str, str] | None:
    """Return the columns of a source table; None if the pipeline file alone does not show them."""
    writer = found.writers.get(table.table)
    flow = flows[writer] if writer else None
    if not isinstance(flow, DerivedFlow) or flow.history is None:
        return flow.known_columns if flow else None
    events = found.writers.get(flow.source.read[0].table)
    types = flows[events].known_columns if events else None
    return (
        None
        if types is None or not {*flow.history.sequence_by} <= {*types}
        else flow.history.stored(types)
    )


def readers(pipeline: str, flows: Flows) -> Iterator[Reader]:
    """Yield a reader for each table that a flow reads, of its own pipeline or of others."""
    for name, flow in derived(flows).items():
        for one in flow.source.read:
            columns = tuple(column for column in flow.derivation.sought(one) if column is not None)
            yield Reader(pipeline=pipeline, flow=name, table=one.table, columns=columns)
