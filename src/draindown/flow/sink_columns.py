"""The columns and keys of a flow's sinks, whether a sink could take a batch, and has those that
were sent. No JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.config.sinks import ORIGIN_KEY, QUARANTINED, FlowSink
from draindown.flow import sink_identity, sink_state
from draindown.flow.sink_state import Holds, SinkState
from draindown.lake.home import FlowHome
from draindown.runs.request import Request
from draindown.sinks import registry
from draindown.sinks.port import Sink, SinkBatch, SinkColumn, SinkPlace

_SPARK_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def place_of(request: Request, name: str) -> SinkPlace:
    """Return the identity of a sink, which does not depend on the generation."""
    layout = request.layout
    return SinkPlace(sink_identity.lake_name(layout), layout.pipeline, layout.flow, name)


def keys_of(request: Request, sink: FlowSink) -> list[str]:
    """Return the columns that identify a row at a sink, by their names in the table."""
    if sink.is_of_refused:
        return ["quarantine_id"]
    return request.declared.target.row_keys or [ORIGIN_KEY]


def key_names(request: Request, sink: FlowSink) -> list[str]:
    """Return the columns that identify a row at a sink, by their names there."""
    keys = keys_of(request, sink)
    return list(sink.named(keys, keys).values())[: len(keys)]


def holds_of(request: Request, sink: FlowSink) -> Holds:
    """Return what decides which rows a sink holds: its spec, and the table that they are from."""
    fingerprint = sink.fingerprint(keys_of(request, sink), request.declared.zone)
    return Holds(
        fingerprint,
        request.layout.tables.quarantine.path
        if sink.is_of_refused
        else request.layout.tables.target.path,
    )


def columns_of(request: Request, sink: FlowSink, types: Mapping[str, str]) -> dict[str, SinkColumn]:
    """Return the columns that a sink gets, keys first, by their names in the table.

    `types`: the columns of the table. Raises TerminalError `sink-columns` if it lacks one of them.
    """
    keys = keys_of(request, sink)
    named = sink.named(list(types), keys)
    missing = [name for name in named if name not in types]
    if missing:
        raise TerminalError(
            "sink-columns",
            tried=f"send rows of flow {request.flow} of pipeline {request.spec.pipeline}",
            found=f"`columns` names {', '.join(missing)}, and the table has {', '.join(types)}",
            changed="nothing of this batch is in a sink or in the table",
            next=f"draindown run {request.spec.pipeline}/{request.flow}   # once the file is corrected",
        )
    return {name: SinkColumn(to, types[name], name in keys) for name, to in named.items()}


def findings(request: Request, layout: FlowHome) -> list[Finding]:
    """Return a finding for each sink that must be filled. No-op, and no look at anything, for a
    flow without sinks.
    """
    sinks = request.declared.sinks
    holds = {name: holds_of(request, sink) for name, sink in sinks.items()}
    return [
        Finding(
            kind="sink-stale",
            subject=name,
            detail=f"is not as the table: {why}",
            next=fill_command(request, name),
        )
        for name, why in sink_state.stale(layout, holds)
    ]


def fill_command(request: Request, name: str) -> str:
    """Return the command that fills a sink."""
    return f"draindown sink resync {request.spec.pipeline}/{request.flow} {name} --yes"


def refuse_unready(request: Request, layout: FlowHome) -> None:
    """Ask each sink whether it could take a batch: it answers, and target, rights, columns and keys
    fit.

    Raises the errors of `Sink.check`, and TerminalError `sink-columns`.
    """
    for name, sink in request.declared.sinks.items():
        # else the first batch asks, once it has made the table
        if _types(request, sink, layout) is not None:
            refuse_unready_sink(request, layout, name)


def refuse_unready_sink(request: Request, layout: FlowHome, name: str) -> None:
    """Ask one sink as `refuse_unready` does, or only whether its target is there if a run alone
    knows the columns.
    """
    sink = request.declared.sinks[name]
    types = _types(request, sink, layout)
    with closing(registry.sink_of(sink, place_of(request, name))) as target:
        if types is None:
            target.unsendable([])
        else:
            target.check(list(columns_of(request, sink, types).values()))


def behind(request: Request, layout: FlowHome, name: str, target: Sink) -> Iterator[str]:
    """Yield in words what the sink has recorded otherwise than it was sent. `target`: the sink.

    It lacks batches if it was restored from an older copy, or is another one than before; it has
    later ones than the flow knows if the lake was restored. A batch that was sent while the sink
    recorded none is not asked for. Raises the errors of `Sink.has`.
    """
    place = place_of(request, name)
    for one in SinkState.read(layout, name).sendings:
        if not (one.sent and one.recorded and target.records):
            continue
        asked = SinkBatch(
            place, one.writer, one.number, 0, one.kind, one.number, one.epoch, one.rows, one.digest
        )
        there = target.has(asked)
        if there is None or there.number != one.number:
            ends = f"ends at batch {there.number}" if there else "has no batch"
            yield f"sink {name} {ends} of kind {one.kind}; {one.number} was sent last"


def note_restored(request: Request, layout: FlowHome, name: str, target: Sink) -> None:
    """Mark a sink as stale that has not the batches which were sent to it. Call it under the lease,
    before a batch.

    The next batch is recorded over the older one, so that nobody could tell afterwards. Raises the
    errors of `Sink.has`.
    """
    try:
        is_restored = any(behind(request, layout, name, target))
    except TerminalError as error:
        if error.code != "sink-records":
            raise
        is_restored = True  # its records were begun anew
    state = SinkState.read(layout, name)
    if is_restored and (stale := state.because(sink_state.RESTORED)) != state:
        stale.write(layout, name)


def _types(request: Request, sink: FlowSink, layout: FlowHome) -> Mapping[str, str] | None:
    """Return the columns of what a sink gets, with Spark's names of their types; None before the
    first batch.
    """
    if sink.is_of_refused:
        return QUARANTINED
    table = layout.tables.target
    types = request.declared.known_columns
    if table.exists:
        types = {name: _spark_name(kind) for name, kind in table.column_types.items()}
    if types is None:
        return None
    return types if request.declared.target.row_keys else {**types, ORIGIN_KEY: "string"}


def _spark_name(kind: Any) -> str:
    """Return the name that Spark SQL has for a type of Delta."""
    kind = json.loads(kind) if isinstance(kind, str) and kind.startswith("{") else kind
    if isinstance(kind, str):
        return _SPARK_NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_spark_name(kind['elementType'])}>"
        case "map":
            return f"map<{_spark_name(kind['keyType'])},{_spark_name(kind['valueType'])}>"
        case _:
            fields = (f"{field['name']}:{_spark_name(field['type'])}" for field in kind["fields"])
            return f"struct<{','.join(fields)}>"
